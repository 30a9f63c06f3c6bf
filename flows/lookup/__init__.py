"""Finds runs, checkpoints and splits in a store by their names."""
