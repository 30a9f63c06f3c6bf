"""Disks that fill up while tiny runs write: `python -m tests.faults.disk --count 100 [--json]`, by hand, as root.

`tests/support/full_disks.py` describes the disks and the checks. Root mounts them.
"""

import shutil
import tempfile
from pathlib import Path

from tests.support.bars import Bar, parser_of, progress, tell
from tests.support.full_disks import campaign


def main() -> None:
    """Fills disks, and prints what became of the runs."""
    parser = parser_of(__doc__)
    parser.add_argument("--count", type=int, default=100, help="commands that a full disk ends")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=2, help="runs side by side")
    options = parser.parse_args()
    scratch = Path(tempfile.mkdtemp(prefix="disks-"))
    progress(f"runs in {scratch}; those that fail stay")
    report = campaign(options.count, scratch, options.seed, options.at_once)
    bars = [
        Bar.at_least("disks filled", report["faults"], options.count),
        Bar.at_most("runs that lost work, hung or left processes", len(report["broken"]), 0),
        Bar.at_most("wrong lines", len(report["wrong"]), 0),
    ]
    if all(bar.met for bar in bars):
        shutil.rmtree(scratch)
    tell(report, bars, as_json=options.json)


if __name__ == "__main__":
    main()
