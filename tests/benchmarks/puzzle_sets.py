"""Whole puzzle sets, proved: every puzzle unique, minimal and read back from its text, no puzzle in two splits.

python -m tests.benchmarks.puzzle_sets [--count N] [--store DIR] [--size NAME ...] [--json]

Each set is made by `deerstalker puzzles make`, so an interrupted run of this benchmark continues where it stopped.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from artifacts.reading import Artifact
from artifacts.refs import Ref
from artifacts.schemas import PUZZLES
from artifacts.store.store import Store
from stages.environments import environment
from stages.environments.puzzle import Checked, Puzzle
from stages.environments.tables import from_table
from stages.prepare import SPLITS
from tests.support.bars import Bar, add_json_option, tell

SIZES = ("easy", "small", "large")


def make(size: str, count: int, folder: str) -> tuple[dict[str, list[Puzzle]], float]:
    """The splits of a set (four fifths, a tenth, a tenth) and the command's wall time in seconds."""
    held_out = count // 10
    command = [
        str(Path(sys.executable).with_name("deerstalker")), "puzzles", "make", "--size", size, "--seed", "11",
        "--count", str(count - 2 * held_out), "--val", str(held_out), "--test", str(held_out),
        "--out", folder, "--json",
    ]  # fmt: skip
    started = time.perf_counter()
    made = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    seconds = time.perf_counter() - started
    artifact = Artifact.open(Store.open(folder), Ref(**made["artifact"]))
    return {name: from_table(artifact.read_table(f"{name}.parquet", PUZZLES)) for name in SPLITS}, seconds


def check(puzzle: Puzzle) -> Checked:
    """The proofs of one puzzle, from its text."""
    return environment.get(puzzle.environment).check(puzzle, minimal=True)


def prove(splits: dict[str, list[Puzzle]]) -> dict[str, Any]:
    """How many puzzles of a set pass each proof."""
    puzzles = [puzzle for rows in splits.values() for puzzle in rows]
    started = time.perf_counter()
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        checked = list(pool.map(check, puzzles, chunksize=4))
    return {
        "puzzles": len(puzzles),
        "unique": sum(item.all_unique for item in checked),
        "equal": sum(item.equal for item in checked),
        "minimal": sum(item.needless == () for item in checked),
        "round_trip": sum(item.same_text for item in checked),
        "different": len({puzzle.digest for puzzle in puzzles}),
        "prove_s": time.perf_counter() - started,
    }


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--size", nargs="+", default=list(SIZES))
    parser.add_argument("--store", default=None)
    add_json_option(parser)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sets = map(partial(make, count=options.count, folder=options.store or folder), options.size)
        rows = [{"size": size, "make_s": s, **prove(x)} for size, (x, s) in zip(options.size, sets, strict=True)]
    proofs = ("unique", "equal", "minimal", "round_trip", "different")
    bars = [Bar.at_least(f"{row['size']}: {name}", row[name], row["puzzles"]) for row in rows for name in proofs]
    tell({"sizes": rows}, bars, lambda: show(rows), as_json=options.json)


def show(rows: list[dict[str, Any]]) -> None:
    """Prints a row a size."""
    names = list(rows[0])
    print("".join(f"{name:>12}" for name in names))
    for row in rows:
        print("".join(f"{row[name]:>12.1f}" if name.endswith("_s") else f"{row[name]:>12}" for name in names))


if __name__ == "__main__":
    main()
