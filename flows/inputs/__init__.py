"""Resolves the names that people give to models and puzzle sets, and runs the stages that make them."""
