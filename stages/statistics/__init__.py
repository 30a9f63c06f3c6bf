"""Means, intervals and totals of graded completions."""
