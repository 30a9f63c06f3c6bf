"""Puzzle environments behind one interface, and the grading that they share."""
