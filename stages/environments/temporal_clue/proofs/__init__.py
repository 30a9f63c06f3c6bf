"""Proofs from the clues of a Temporal Clue puzzle: rules, solver, derivations, deductions."""
