"""Compares recipes on the same rollouts, and runs with each other."""
