"""Curricula: pass rates of puzzles, the order in which iterations take puzzles, and the phases of a run."""
