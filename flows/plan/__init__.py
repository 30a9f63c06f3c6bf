"""Computes memory, time and price of a recipe on GPUs that this machine need not have."""
