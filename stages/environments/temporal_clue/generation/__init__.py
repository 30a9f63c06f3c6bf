"""Generates Temporal Clue puzzles: a random world, true clues about it, and a minimal set of these."""
