"""The generator against the published one: time a puzzle and size class, and the kinds of clues side by side.

python -m tests.benchmarks.generator [--seeds N] [--val PATH] [--json]
"""

import argparse
import statistics
import time
from collections import Counter
from pathlib import Path
from typing import Any

from stages.environments import environment
from stages.environments.published import read_puzzles
from stages.environments.temporal_clue.config import TIERS, PuzzleConfig
from stages.environments.temporal_clue.formal import FormalPuzzle
from stages.environments.temporal_clue.generation.generate import generate_formal
from stages.environments.temporal_clue.language.reader import read_formal
from tests.support.bars import Bar, add_json_option, tell

FAMILY = environment.get("temporal_clue")
VAL = Path(__file__).parents[2].parent / "shared" / "data" / "temporal-clue" / "val.json"
CLASSES: dict[str, tuple[PuzzleConfig, float]] = {
    "2 suspects": (PuzzleConfig(), 0.18),
    "3 to 5 suspects": (TIERS["small"], 0.3),
    "8 suspects, 10 rooms, 9 times": (TIERS["large"], 409.0),
}
"""Size class to config and the published generator's seconds a puzzle (the low end where it is a range)."""


def time_class(config: PuzzleConfig, seeds: int) -> dict[str, float]:
    """Median and largest CPU seconds a puzzle on one core, and the median number of clues."""
    seconds: list[float] = []
    clues: list[int] = []
    for seed in range(seeds):
        started = time.process_time()
        formal, _ = generate_formal(config, seed)
        seconds.append(time.process_time() - started)
        clues.append(len(formal.clues))
    return {"median_s": statistics.median(seconds), "max_s": max(seconds), "clues": statistics.median(clues)}


def config_like(formal: FormalPuzzle) -> PuzzleConfig:
    """A config for puzzles of the same sizes."""
    shape = formal.scenario.shape
    motives = len(shape.motive_counts)
    return PuzzleConfig(
        suspects=(shape.suspects, shape.suspects),
        weapons=(shape.weapons, shape.weapons),
        rooms=(shape.rooms, shape.rooms),
        times=(shape.times, shape.times),
        motives=(motives, motives),
        shared_motives=any(count > 1 for count in shape.motive_counts),
    )


def compare_kinds(path: Path) -> dict[str, dict[str, float]]:
    """Share of each clue kind in the published puzzles of `path` and in generated ones of the same sizes."""
    theirs, ours = Counter[str](), Counter[str]()
    for i, puzzle in enumerate(read_puzzles(path)):
        formal = read_formal(puzzle.prompt).puzzle
        theirs += Counter(FAMILY.kinds(puzzle).clues)
        ours += Counter(FAMILY.kinds(FAMILY.generate(config_like(formal), i)).clues)
    names = sorted(theirs | ours, key=lambda name: -theirs[name])
    return {name: {"published": theirs[name] / theirs.total(), "ours": ours[name] / ours.total()} for name in names}


def main() -> None:
    """Prints the comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--val", type=Path, default=VAL)
    add_json_option(parser)
    options = parser.parse_args()
    report: dict[str, Any] = {"classes": {}, "kinds": compare_kinds(options.val) if options.val.exists() else {}}
    for name, (config, published_s) in CLASSES.items():
        timed = time_class(config, options.seeds)
        report["classes"][name] = {**timed, "published_s": published_s, "ratio": published_s / timed["median_s"]}
    rows = report["classes"].items()
    bars = [Bar.at_least(f"{name}: the published generator's seconds over ours", row["ratio"], 1) for name, row in rows]
    tell(report, bars, lambda: show(report), as_json=options.json)


def show(report: dict[str, Any]) -> None:
    """Prints both comparisons."""
    print(f"{'size class':32} {'published s':>12} {'ours s':>10} {'ratio':>8} {'clues':>6}")
    for name, row in report["classes"].items():
        print(f"{name:32} {row['published_s']:12.2f} {row['median_s']:10.4f} {row['ratio']:8.0f} {row['clues']:6.0f}")
    print(f"\n{'clue kind':32} {'published':>12} {'ours':>10}")
    for name, row in report["kinds"].items():
        print(f"{name:32} {row['published']:12.3f} {row['ours']:10.3f}")


if __name__ == "__main__":
    main()
