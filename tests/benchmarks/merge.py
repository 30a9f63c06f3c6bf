"""Merged specialists, and puzzles that are directed by concepts: `python -m tests.benchmarks.merge --json`.

Three parts, each of which `--parts` selects:

* `puzzles`: 500 concept-directed puzzles, proved from their text: each unique, minimal, and with a derivation that uses
  every concept that was drawn. The entropy of their sets of concepts is compared with that of 500 random puzzles.
* `harder`: the model of the recipe `answers_only` on directed puzzles with at least three case splits, and on random
  puzzles of the same board with the same numbers of clues. The board has so few puzzles that most of those drawn with
  another seed are in the run's train split; they are left out.
* `merged`: the recipes `tinyr1_*`: a base, two specialists, their merges by each method and in both orders, and a run
  on mixed data with the samples of both. All are measured after the last iteration, on the test puzzles of the base,
  which no run learned from: their sets are of one stream, and the benchmark compares the digests.

The claims were written down before any run. TinyR1 found its merge better than each specialist in its own domain; here
it must keep half of what each specialist gained. A bar that is missed refutes the claim at this scale.

The recipe `tinyr1` first merged clue into zebra. After seed 804 the other order was expected to be better. Seeds 805
and 806 agreed, and the recipe was turned.

`--join FILE...` adds the seeds of documents that earlier calls printed.
"""

import argparse
import math
import statistics
import sys
from collections import Counter
from collections.abc import Iterable, Sequence, Set
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from artifacts.reading import Artifact
from artifacts.schemas import PUZZLES
from artifacts.store.store import Store
from flows.config.recipes import load_recipe
from flows.lookup.splits import named_split
from stages.environments.generate import generate_nth
from stages.environments.puzzle import Puzzle
from stages.environments.temporal_clue.config import ConceptConfig, PuzzleConfig
from tests.support.bars import Bar, tell
from tests.support.boards import on_puzzles
from tests.support.concept_proofs import Proof, entropy, prove, used_concepts
from tests.support.seeded import joined, parse, run_store, seeded_parser
from tests.support.whole_runs import deerstalker, train

PARTS = ("puzzles", "harder", "merged")
SEEDS = (804, 805, 806)
"""Those of `merged`; the published table of `harder` has 801 to 803."""
BOARD = PuzzleConfig(suspects=(3, 3), weapons=(2, 2), rooms=(3, 4), motives=(0, 3))
"""Small enough that every derivation is as short as possible, with all kinds of clues of a puzzle without times."""
DIRECTED, PROVED_PUZZLES = ConceptConfig(count=(3, 4)), 500
HARD, HARD_PUZZLES = ConceptConfig(count=(2, 3), case_splits=(3, 1000)), 400
KEPT_BAR, HARDER_BAR = 0.5, 10.0
BASE, CLUE, ZEBRA, MIXED, MERGED = "tinyr1_base", "tinyr1_clue", "tinyr1_zebra", "tinyr1_mixed", "tinyr1"
OWN = {CLUE: "temporal_clue", ZEBRA: "zebra"}
MERGES = {
    "fusion, clue into zebra": ["--model", CLUE, "--base", ZEBRA],
    "fusion, zebra into clue": ["--model", ZEBRA, "--base", CLUE],
    "average": ["--model", CLUE, "--model", ZEBRA, "--method", "average"],
    "task arithmetic": ["--model", CLUE, "--model", ZEBRA, "--base", BASE, "--method", "task_arithmetic"],
    "ties": ["--model", CLUE, "--model", ZEBRA, "--base", BASE, "--method", "ties"],
}
RECIPE_MERGE, OTHER_ORDER = "fusion, zebra into clue", "fusion, clue into zebra"


def proofs(count: int) -> dict[str, Any]:
    """Proves directed puzzles, and compares which concepts they and random ones use."""
    config = BOARD.model_copy(update={"concepts": DIRECTED})
    with ProcessPoolExecutor() as pool:
        proved: list[Proof] = list(pool.map(partial(prove, config), range(count), chunksize=8))
        drawn = pool.map(partial(generate_nth, BOARD, 0), range(count), chunksize=8)
        random_sets = list(pool.map(used_concepts, drawn, chunksize=8))
    holds = {name: sum(getattr(one, name) for one in proved) for name in ("unique", "minimal", "uses_all", "level")}
    return {
        "puzzles": count,
        **holds,
        "entropy_bits": entropy(one.used for one in proved),
        "random_entropy_bits": entropy(random_sets),
        "asked": dict(Counter(concept for one in proved for concept in one.asked).most_common()),
    }


def matched(board: PuzzleConfig, seed: int, count: int, known: Set[str]) -> tuple[list[Puzzle], list[Puzzle]]:
    """Returns hard directed puzzles and random ones, pairwise with equal numbers of clues.

    All are different, and none has a digest in `known`.
    """
    with ProcessPoolExecutor() as pool:
        config = board.model_copy(update={"concepts": HARD})
        hard = _unknown(pool.map(partial(generate_nth, config, seed), range(4 * count), chunksize=8), known)[:count]
        drawn = pool.map(partial(generate_nth, board, seed + 1), range(10 * count), chunksize=64)
        spare: dict[int, list[Puzzle]] = {}
        for puzzle in _unknown(drawn, {*known, *(one.digest for one in hard)}):
            spare.setdefault(puzzle.num_clues, []).append(puzzle)
    pairs = [(one, spare[one.num_clues].pop()) for one in hard if spare.get(one.num_clues)]
    return [one for one, _ in pairs], [other for _, other in pairs]


def _unknown(puzzles: Iterable[Puzzle], known: Set[str]) -> list[Puzzle]:
    return list({one.digest: one for one in puzzles if one.digest not in known}.values())


def digests(store: Path, run: str, *splits: str) -> set[str]:
    """Returns the digests of the puzzles in some splits of a run's set."""
    opened = Store.open(str(store), writable=False)
    found: set[str] = set()
    for split in splits:
        puzzles, _ = named_split(f"{run}:{split}", opened, run)
        found.update(Artifact.open(opened, puzzles).read_table(f"{split}.parquet", PUZZLES)["digest"])
    return found


def harder(seed: int, store: Path, options: argparse.Namespace) -> dict[str, float]:
    """Measures the model of `answers_only` on hard and on random puzzles; returns percentages."""
    settings = [*scaled("answers_only", options.scale), *options.settings]
    recipe = load_recipe("answers_only", settings)
    board = recipe.puzzles.puzzle
    assert isinstance(board, PuzzleConfig)
    train("answers_only", "answers_only", str(store), [f"seed={seed}", *settings], options.profile)
    row: dict[str, float] = {}
    pairs = matched(board, seed + 1_000_000, options.hard, digests(store, "answers_only", "train", "val"))
    for name, puzzles in zip(("hard", "random"), pairs, strict=True):
        longest = recipe.final.sampled.max_tokens
        figures = on_puzzles("answers_only", puzzles, store / f"{name}.json", str(store), options.profile, longest)
        row |= {f"{name}_{mode}_exact": figures[f"{mode}_exact"] for mode in ("sampled", "greedy")}
        row[f"{name}_puzzles"] = len(puzzles)
    return row


def merged(seed: int, store: Path, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Trains base, specialists and mixed run, merges in all ways, and measures all; returns percentages by model."""
    for name in (BASE, CLUE, ZEBRA, MIXED):
        changes = [f"seed={seed}", *scaled(name, options.scale), *options.settings]
        train(name, name, str(store), changes, options.profile)
    held_out = digests(store, BASE, "test")
    for name in (BASE, CLUE, ZEBRA, MIXED):
        if learned := held_out & digests(store, name, "train"):
            sys.exit(f"{len(learned)} of the {len(held_out)} test puzzles are in the train split of {name}")
    where = ["--store", str(store), "--profile", options.profile]
    # The last iterations: what was promoted may be the base itself, which leaves nothing to merge.
    names = {
        name: f"{name}@{load_recipe(name, scaled(name, options.scale)).iterations}"
        for name in (BASE, CLUE, ZEBRA, MIXED)
    }
    for way, words in MERGES.items():
        named = [names.get(word, word) for word in words]
        names[way] = deerstalker("merge", *named, *where)["checkpoint"]["key"]
    final = load_recipe(MERGED, [*scaled(MERGED, options.scale), *options.settings]).final
    sampling = ["--count", str(final.puzzles), "--samples", str(final.sampled.samples_per_prompt)]
    sampling += ["--max-tokens", str(final.sampled.max_tokens), "--puzzles", f"{BASE}:test"]
    rows: dict[str, dict[str, float]] = {}
    for name, checkpoint in names.items():
        tasks = deerstalker("evaluate", "--checkpoint", checkpoint, *sampling, *where)["tasks"]
        rows[name] = {
            f"{task}_{metric}": 100 * tasks[task]["sampled"][metric]["mean"]
            for task in OWN.values()
            for metric in ("accuracy", "exact")
        }
    return rows


def scaled(name: str, scale: float) -> list[str]:
    """Settings by which a recipe takes a share of its time, to see that all of it runs."""
    if scale == 1:
        return []
    recipe = load_recipe(name)
    sizes = {
        "puzzles.train": recipe.puzzles.train, "puzzles.val": recipe.puzzles.val, "puzzles.test": recipe.puzzles.test,
        "evaluate.puzzles": recipe.evaluate.puzzles, "final.puzzles": recipe.final.puzzles,
    }  # fmt: skip
    if recipe.iterations:
        sizes |= {"iterations": recipe.iterations, "sample.puzzles_per_iteration": recipe.sample.puzzles_per_iteration}
    if recipe.warm_start:
        sizes |= {"warm_start.steps": recipe.warm_start.steps}
    least = {"sample.puzzles_per_iteration": recipe.pack.updates}
    return [f"{setting}={max(least.get(setting, 1), round(size * scale))}" for setting, size in sizes.items()]


def kept(rows: dict[str, dict[str, float]], way: str) -> dict[str, float]:
    """The share of each specialist's gain in accuracy on its own puzzles that a merge keeps; NaN without a gain."""
    return {task: merge_gain / gain if gain > 0 else math.nan for task, gain, merge_gain in _gains(rows, way)}


def over_half(rows: dict[str, dict[str, float]], way: str) -> float:
    """Points by which a merge exceeds the base plus half of a specialist's gain, the least of the specialists.

    A share would be positive, too, if specialist and merge had both become worse than the base.
    """
    return min(merge_gain - KEPT_BAR * gain for _, gain, merge_gain in _gains(rows, way))


def _gains(rows: dict[str, dict[str, float]], way: str) -> list[tuple[str, float, float]]:
    """Returns for each task the gains of its specialist and of a merge in accuracy over the base, in points."""
    of_task = {task: (specialist, f"{task}_accuracy") for specialist, task in OWN.items()}
    return [
        (task, rows[specialist][figure] - rows[BASE][figure], rows[way][figure] - rows[BASE][figure])
        for task, (specialist, figure) in of_task.items()
    ]


def bars(document: dict[str, Any]) -> list[Bar]:
    """The bars of the parts that were measured."""
    found: list[Bar] = []
    if proved := document.get("puzzles"):
        for name in ("unique", "minimal", "uses_all", "level"):
            found.append(Bar.at_least(f"P1: directed puzzles, {name}, %", 100 * proved[name] / proved["puzzles"], 100))
        gained = proved["entropy_bits"] - proved["random_entropy_bits"]
        found.append(Bar.at_least("P4: entropy of concepts over that of random puzzles, bits", gained, 0.0))
    if rows := document.get("harder"):
        fell = [row["random_sampled_exact"] - row["hard_sampled_exact"] for row in rows.values()]
        found.append(Bar.at_least("P2: all right, sampled, lower by, mean, points", statistics.mean(fell), HARDER_BAR))
    if seeds := document.get("merged"):
        least = min(over_half(rows, RECIPE_MERGE) for rows in seeds.values())
        found.append(
            Bar.at_least("M2: the fusion over base plus half of a specialist's gain, least of all, points", least, 0.0)
        )
        equal = sum(rows[RECIPE_MERGE] == rows[OTHER_ORDER] for rows in seeds.values())
        found.append(Bar.at_most("M3: seeds in which the order of the fusion makes no difference", equal, 0))
        over = [
            statistics.mean(
                rows[RECIPE_MERGE][f"{task}_accuracy"] - rows[MIXED][f"{task}_accuracy"] for task in OWN.values()
            )
            for rows in seeds.values()
        ]
        found.append(Bar.at_least("fusion over mixed data, accuracy, mean, points", statistics.mean(over), 0.0))
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = seeded_parser(__doc__, SEEDS)
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=list(PARTS))
    parser.add_argument("--count", type=int, default=PROVED_PUZZLES, help="puzzles of the part `puzzles`")
    parser.add_argument("--hard", type=int, default=HARD_PUZZLES, help="puzzles of each kind in the part `harder`")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the recipes' sizes, for a trial")
    parser.add_argument("--set", action="append", default=[], dest="settings", metavar="KEY=VALUE")
    options = parse(parser, arguments)
    measured: dict[str, Any] = {}
    if "puzzles" in options.parts:
        measured["puzzles"] = proofs(options.count)
    with run_store(options) as stores:
        for seed in options.seeds:
            store = Path(stores) / str(seed)
            store.mkdir(parents=True, exist_ok=True)
            for part, measure in (("harder", harder), ("merged", merged)):
                if part in options.parts:
                    measured.setdefault(part, {})[seed] = measure(seed, store, options)
    document = joined(options.join, measured)
    tell(document, bars(document), as_json=options.json)


if __name__ == "__main__":
    main()
