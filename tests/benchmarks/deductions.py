"""What a proof costs: building a puzzle's judge, a verdict as evaluation computes it, and one CP-SAT proof by itself.

python -m tests.benchmarks.deductions [--count N] [--val PATH] [--json]
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stages.environments.published import read_puzzles
from stages.environments.temporal_clue.config import PuzzleConfig
from stages.environments.temporal_clue.formal import At, FormalPuzzle, Statement
from stages.environments.temporal_clue.generation.candidates import piece_ref
from stages.environments.temporal_clue.generation.generate import generate_formal
from stages.environments.temporal_clue.language.reader import read_formal
from stages.environments.temporal_clue.proofs.deductions import Judge
from tests.benchmarks.generator import VAL
from tests.support.bars import add_json_option, tell


def placements(puzzle: FormalPuzzle, count: int, rng: random.Random) -> list[Statement]:
    """Random statements that somebody or something was somewhere at a time, true or false."""
    shape = puzzle.scenario.shape
    pieces = shape.suspects + shape.weapons + 1
    return [
        At(piece_ref(shape, rng.randrange(pieces)), rng.randrange(shape.rooms), rng.randrange(shape.times))
        for _ in range(count)
    ]


def milliseconds(call: Callable[[], object]) -> float:
    """Wall time of a call."""
    started = time.perf_counter()
    call()
    return 1e3 * (time.perf_counter() - started)


def measure(puzzles: list[FormalPuzzle], statements: int) -> dict[str, float]:
    """Medians in milliseconds over puzzles, with so many statements each."""
    rng = random.Random(0)
    builds: list[float] = []
    verdicts: list[float] = []
    proofs: list[float] = []
    for puzzle in puzzles:
        started = time.perf_counter()
        judge = Judge(puzzle)
        builds.append(1e3 * (time.perf_counter() - started))
        for statement in placements(puzzle, statements, rng):
            verdicts.append(milliseconds(lambda judge=judge, it=statement: judge.verdict(it)))
            proofs.append(milliseconds(lambda judge=judge, it=statement: judge.proves(it)))
    medians = {"build_ms": builds, "verdict_ms": verdicts, "proof_ms": proofs}
    return {"puzzles": len(puzzles), **{name: statistics.median(values) for name, values in medians.items()}}


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--val", type=Path, default=VAL)
    add_json_option(parser)
    options = parser.parse_args()
    sets = {"2 suspects, 2 rooms": [generate_formal(PuzzleConfig(), seed)[0] for seed in range(options.count)]}
    if options.val.exists():
        sets["published validation"] = [read_formal(item.prompt).puzzle for item in read_puzzles(options.val)]
    rows: dict[str, Any] = {name: measure(puzzles, 5) for name, puzzles in sets.items()}
    tell({"sets": rows}, [], lambda: show(rows), as_json=options.json)


def show(rows: dict[str, Any]) -> None:
    """Prints a row a set of puzzles."""
    print(f"{'':24}{'puzzles':>9}{'build ms':>10}{'verdict ms':>12}{'proof ms':>10}")
    for name, row in rows.items():
        print(f"{name:24}{row['puzzles']:>9}{row['build_ms']:>10.2f}{row['verdict_ms']:>12.3f}{row['proof_ms']:>10.2f}")


if __name__ == "__main__":
    main()
