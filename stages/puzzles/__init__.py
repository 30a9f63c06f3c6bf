"""Puzzle families behind one interface, and the grading that they share."""
