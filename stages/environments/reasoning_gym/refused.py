"""Generators of reasoning-gym 0.1.25 that cannot be used, each with the reason."""

_HASH_SEED = "its items differ from process to process (they depend on Python's hash seed)"
_NO_ANSWER = "its items have no right answer, only a scorer, so that an unsolvable one would go unnoticed"
REFUSED = {
    "composite": "it mixes other generators; use environment = 'mixture'",
    **dict.fromkeys(("arc_agi", "rearc"), "its scorer compares tuples, which an item stored as JSON does not have"),
    **dict.fromkeys(("isomorphic_strings", "knight_swap", "polynomial_multiplication", "ransom_note"), _HASH_SEED),
    **dict.fromkeys(("codeio", "intermediate_integration", "list_functions", "word_ladder"), _HASH_SEED),
    **dict.fromkeys(("boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"), _NO_ANSWER),
    "puzzle24": "its scorer accepts any four numbers that give 24, such as 6+6+6+6, whatever the question says",
    "quantum_lock": "its scorer presses each letter A, B or C of any text, so banana opens some locks",
    "game_of_life_halting": "its scorer accepts every answer that is not empty",
}
"""`python -m tests.benchmarks.panel` measures all generators."""
