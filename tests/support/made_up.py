"""What `made_up_tokens.py` makes up, for those who do not import vLLM."""

EXECUTOR = "tests.support.made_up_tokens.MadeUpTokens"
"""Value of vLLM's argument `--distributed-executor-backend`; `tests` must be on PYTHONPATH."""
SWITCH, AHEAD = "MADE_UP", "MADE_UP_AHEAD"
"""Environment variables."""


def made_up(place: int) -> tuple[int, float]:
    """The token at a place of a completion, from 0, and its log-probability; no two of the first 50 are alike."""
    return 10 + place % 50, -(place % 50) / 8
