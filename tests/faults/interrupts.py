"""Ctrl-C and SIGTERM at moments of tiny runs: `python -m tests.faults.interrupts --count 14 [--json]`, by hand.

`tests/support/interrupts.py` describes the moments and checks; `tests/flow/test_interrupts.py` is the short form.
"""

import argparse
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.support.bars import Bar, add_json_option, kept, tell
from tests.support.interrupts import MOMENTS, campaign

LONGEST_S = 2.0
PROMISES = {
    "processes left over": "not reached, no progress",
    "folders left over": "scratch folders",
    "work repeated": "was made again|sampled twice",
    "other ends than one line": "",
}
"""What must not happen, and the words of the errors of `tests.support.interrupts` that tell of it."""


def main() -> None:
    """Interrupts, and prints how long the ends took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=len(MOMENTS), help="interruptions")
    parser.add_argument("--seed", type=int, default=1)
    add_json_option(parser)
    options = parser.parse_args()
    scratch = Path(tempfile.mkdtemp(prefix="interrupts-"))
    print(f"runs in {scratch}; it stays if one of them fails", file=sys.stderr, flush=True)
    report, bars = kept(PROMISES, lambda: campaign(options.count, scratch, options.seed))
    for name in ("seconds", "left_s"):
        what = "end of the command" if name == "seconds" else "end of its last process"
        if found := report.get(name):
            bars = [*bars, Bar.at_most(f"seconds to the {what}", max(found.values()), LONGEST_S)]
    if all(bar.met for bar in bars):
        shutil.rmtree(scratch)
    tell(report, bars, lambda: show(report), as_json=options.json)


def show(report: dict[str, Any]) -> None:
    """Prints the longest times by moment."""
    table = Table(title="Ctrl-C and SIGTERM", title_justify="left")
    for name in ("", "command, s", "processes, s"):
        table.add_column(name, justify="left" if not name else "right")
    for moment, seconds in report["seconds"].items():
        table.add_row(moment, f"{seconds:.2f}", f"{report['left_s'][moment]:.2f}")
    Console().print(table)
    print(f"{report['interrupts']} interruptions of {report['runs']} runs")


if __name__ == "__main__":
    main()
