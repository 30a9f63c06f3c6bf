"""Figures and fits of runs and models: learning curves, lengths, difficulty, reliability, cost and soundness."""
