"""Measures a model on boards that it was, or was not, trained on."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from stages.environments.generate import PuzzleConfig, ZebraConfig, generate_nth
from stages.environments.puzzle import Puzzle
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
        rows[name] = on_puzzles(checkpoint, drawn, file, store, profile, max_tokens)
    return rows


def on_puzzles(
    checkpoint: str, puzzles: Sequence[Puzzle], file: Path, store: str, profile: str, max_tokens: int
) -> dict[str, float]:
    """Writes puzzles to a file, and returns the figures of a checkpoint on them, as `on_boards`."""
    fields = [{"num_clues": one.num_clues, "prompt": one.prompt, "solution": one.solution} for one in puzzles]
    file.write_text(json.dumps(fields))
    sampling = ["--count", str(len(puzzles)), "--max-tokens", str(max_tokens)]
    return evaluated(checkpoint, "--puzzles", str(file), "--store", store, "--profile", profile, *sampling)


def evaluated(checkpoint: str, *options: str) -> dict[str, float]:
    """Returns the figures of a checkpoint, as `on_boards`, from `deerstalker evaluate` with these options."""
    strict = deerstalker("evaluate", "--checkpoint", checkpoint, *options)["gradings"]["strict"]
    return {
        f"{mode}_{metric}": 100 * strict[mode][metric]["mean"]
        for mode in ("sampled", "greedy")
        for metric in ("accuracy", "exact")
    }
