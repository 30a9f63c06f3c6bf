"""Temporal Clue as text: writes prompts and statements, and reads them back."""
