"""Temporal Clue: who murdered Mr. Boddy, with what, where, when and why."""
