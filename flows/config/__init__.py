"""Loads recipes and profiles from TOML into typed configs."""
