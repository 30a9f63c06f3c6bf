"""Finds in a store what a person names: runs, checkpoints, splits, models."""
