"""Generates Temporal Clue puzzles: a night, true clues, and no more than needed."""
