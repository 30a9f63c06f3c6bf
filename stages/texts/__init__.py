"""Texts that a model is trained on before GRPO: their selection, their tokens and their checks."""
