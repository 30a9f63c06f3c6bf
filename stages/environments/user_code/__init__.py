"""Environments that a user writes: an object of two methods, in a file beside the recipe or in an installed package."""
