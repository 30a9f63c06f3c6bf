"""Computes memory, time and price of a recipe on GPUs that nobody has rented yet."""
