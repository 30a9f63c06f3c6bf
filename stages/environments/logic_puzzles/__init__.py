"""Code that Temporal Clue and zebra share: lettered answers, CP-SAT, minimal sets of clues, lines of derivations."""
