"""Generators of reasoning-gym 0.1.25 that cannot be used, each with the reason."""

REFUSED = {
    "composite": "it mixes other generators; use environment = 'mixture'",
    "propositional_logic": "its items have no answer",
    "rush_hour": "its items have no answer",
    "puzzle24": "its scorer accepts any four numbers that give 24, such as 6+6+6+6, whatever the question says",
    "game_of_life_halting": "its scorer accepts every answer that is not empty",
}
"""`python -m tests.benchmarks.panel` measures all generators."""
