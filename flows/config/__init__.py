"""Recipes and profiles: TOML in, typed config out."""
