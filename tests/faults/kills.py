"""SIGKILL at random moments of tiny runs: `python -m tests.faults.kills --count 200 [--json]`, by hand.

`tests/support/kills.py` says what is killed and what has to hold afterwards; `tests/flow/test_kills.py` is the short
form.
"""

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.support.kills import campaign


def main() -> None:
    """Prints the table; an AssertionError if work was lost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200, help="processes to kill")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=1, help="runs side by side")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    scratch = Path(tempfile.mkdtemp(prefix="kills-"))
    print(f"runs in {scratch}; it stays if one of them fails", file=sys.stderr, flush=True)
    report = campaign(options.count, scratch, options.seed, options.at_once)
    shutil.rmtree(scratch)
    if options.json:
        print(json.dumps(report, indent=2))
        return
    table = Table(title="SIGKILL at random moments", title_justify="left")
    table.add_column("")
    table.add_column("kills", justify="right")
    for name, number in sorted(report["kills"].items()):
        table.add_row(name, str(number))
    Console().print(table)
    told = f"{report['runs']} runs, {report['starts']} starts, {report['retries']} retries by Prefect"
    print(f"{told}: all finished; nothing lost, repeated or left behind")


if __name__ == "__main__":
    main()
