"""Means, intervals, totals and fits of the results of graded completions."""
