"""A run in progress: the calls of its stages, its recipe, its addresses and its views."""
