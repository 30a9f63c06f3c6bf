"""SIGKILL at random moments of tiny runs: `python -m tests.faults.kills --count 200 [--json]`, by hand.

`tests/support/kills.py` describes the kills and the checks that follow; `tests/flow/test_kills.py` is the short form.
"""

import argparse
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.support.bars import add_json_option, kept, tell
from tests.support.kills import campaign

PROMISES = {
    "work repeated": "was made again|sampled twice",
    "processes left over": "not reached, no progress",
    "runs that did not finish": "it hangs|does not finish",
    "work lost": "",
}
"""What must not happen, and the words of the errors of `tests.support.kills` that tell of it."""


def main() -> None:
    """Kills, and prints what became of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200, help="processes to kill")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=1, help="runs side by side")
    parser.add_argument("--saving", action="store_true", help="kill only while a training state is being saved")
    add_json_option(parser)
    options = parser.parse_args()
    scratch = Path(tempfile.mkdtemp(prefix="kills-"))
    print(f"runs in {scratch}; it stays if one of them fails", file=sys.stderr, flush=True)
    report, bars = kept(
        PROMISES, lambda: campaign(options.count, scratch, options.seed, options.at_once, while_saving=options.saving)
    )
    if all(bar.met for bar in bars):
        shutil.rmtree(scratch)
    tell(report, bars, lambda: show(report), as_json=options.json)


def show(report: dict[str, Any]) -> None:
    """Prints the number of kills by process."""
    table = Table(title="SIGKILL at random moments", title_justify="left")
    table.add_column("")
    table.add_column("kills", justify="right")
    for name, number in sorted(report["kills"].items()):
        table.add_row(name, str(number))
    Console().print(table)
    told = f"{report['runs']} runs, {report['starts']} starts, {report['retries']} retries by Prefect"
    print(told)


if __name__ == "__main__":
    main()
