"""Weights and training states on disk and in the store."""
