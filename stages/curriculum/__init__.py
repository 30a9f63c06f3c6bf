"""Curricula: pass rates of puzzles, the order in which iterations take puzzles, and the stages of a run."""
