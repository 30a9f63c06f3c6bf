"""Recipes compared on the same rollouts, and runs compared with each other."""
