"""The generator against the published one: time a puzzle and size class, and the kinds of clues side by side.

python -m tests.benchmarks.generator [--seeds N] [--val PATH] [--json]
"""

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
from tests.support.bars import Bar, parser_of, tell

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
    parser = parser_of(__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--val", type=Path, default=VAL)
    options = parser.parse_args()
    report: dict[str, Any] = {"classes": {}, "kinds": compare_kinds(options.val) if options.val.exists() else {}}
    for name, (config, published_s) in CLASSES.items():
        timed = time_class(config, options.seeds)
        report["classes"][name] = {**timed, "published_s": published_s, "ratio": published_s / timed["median_s"]}
    rows = report["classes"].items()
    bars = [Bar.at_least(f"{name}: the published generator's seconds over ours", row["ratio"], 1) for name, row in rows]
    tell(report, bars, as_json=options.json)


if __name__ == "__main__":
    main()
