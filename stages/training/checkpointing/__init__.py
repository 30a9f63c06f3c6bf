"""Weights and optimizer states on disk and in the store."""
