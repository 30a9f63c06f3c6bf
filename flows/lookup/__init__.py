"""Finds in a store what a person names: runs, checkpoints and splits."""
