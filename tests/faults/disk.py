"""Disks that fill up while tiny runs write: `python -m tests.faults.disk --count 100 [--json]`, by hand, as root.

`tests/support/full_disks.py` describes the disks and the checks. Root mounts them.
"""

import argparse
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.support.bars import Bar, add_json_option, tell
from tests.support.full_disks import campaign


def main() -> None:
    """Fills disks, and prints what became of the runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100, help="commands that a full disk ends")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=2, help="runs side by side")
    add_json_option(parser)
    options = parser.parse_args()
    scratch = Path(tempfile.mkdtemp(prefix="disks-"))
    print(f"runs in {scratch}; those that fail stay", file=sys.stderr, flush=True)
    report = campaign(options.count, scratch, options.seed, options.at_once)
    bars = [
        Bar.at_least("disks filled", report["faults"], options.count),
        Bar.at_most("runs that lost work, hung or left processes", len(report["broken"]), 0),
        Bar.at_most("wrong lines", len(report["wrong"]), 0),
    ]
    if all(bar.met for bar in bars):
        shutil.rmtree(scratch)
    tell(report, bars, lambda: show(report), as_json=options.json)


def show(report: dict[str, Any]) -> None:
    """Prints the number of faults by disk and by stage, and what went wrong."""
    for what in ("disks", "file_systems", "stages"):
        table = Table(title=f"full disks, by {what}", title_justify="left")
        table.add_column("")
        table.add_column("commands", justify="right")
        for name, number in sorted(report[what].items()):
            table.add_row(name, str(number))
        Console().print(table)
    print(f"{report['runs']} runs, {report['starts']} starts")
    for wrong in (*report["wrong"], *report["broken"]):
        print(wrong)


if __name__ == "__main__":
    main()
