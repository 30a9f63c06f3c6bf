"""Measures a model on boards that it was, or was not, trained on."""

import json
from collections.abc import Mapping
from pathlib import Path

from stages.environments.generate import PuzzleConfig, ZebraConfig, generate_nth
from tests.support.whole_runs import deerstalker


def on_boards(
    checkpoint: str,
    boards: Mapping[str, PuzzleConfig | ZebraConfig],
    store: str,
    profile: str,
    *,
    seed: int,
    puzzles: int,
    max_tokens: int,
) -> dict[str, dict[str, float]]:
    """Returns percentages of right answers and of puzzles with all answers right, by board.

    A name is `MODE_METRIC`, such as `greedy_exact`. The puzzles are drawn by the seed, with which no recipe draws, and
    kept as files in the store's folder.

    Args:
        checkpoint: A run, or `RUN@N`.
        boards: Settings of each board by its name.
        store: Folder of the store.
        profile: Name or path of the profile.
        seed: Seed of the puzzles.
        puzzles: Number of puzzles of each board.
        max_tokens: Longest completion.
    """
    rows: dict[str, dict[str, float]] = {}
    for name, board in boards.items():
        drawn = [generate_nth(board, seed + 1_000_000, number) for number in range(puzzles)]
        file = Path(store) / f"{name.replace(' ', '-').replace(',', '')}-{seed}.json"
        fields = [{"num_clues": one.num_clues, "prompt": one.prompt, "solution": one.solution} for one in drawn]
        file.write_text(json.dumps(fields))
        sampling = ["--count", str(puzzles), "--max-tokens", str(max_tokens)]
        where = ["--puzzles", str(file), "--store", store, "--profile", profile]
        strict = deerstalker("evaluate", "--checkpoint", checkpoint, *where, *sampling)["gradings"]["strict"]
        rows[name] = {
            f"{mode}_{metric}": 100 * strict[mode][metric]["mean"]
            for mode in ("sampled", "greedy")
            for metric in ("accuracy", "exact")
        }
    return rows
