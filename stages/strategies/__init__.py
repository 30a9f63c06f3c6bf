"""Strategies at test time: ways to make one answer of several samples or several rounds of a model."""
