"""Two writer processes race for one slot, again and again: `python -m tests.faults.race --count 200`.

`tests/support/race.py` says what a race is; here it is run on a folder, on an S3 server that honours conditional puts
(moto), and on one that does not (rclone).
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.support.race import KINDS, place, race


def main() -> None:
    """Prints a row a store; an AssertionError where a race had no one winner."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200, help="races in each kind of store")
    parser.add_argument("--kind", choices=KINDS, action="append", help="only this kind of store; may be repeated")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="races-") as scratch:
        for kind in options.kind or KINDS:
            with place(kind, Path(scratch)) as where:
                rows[kind] = race(where, options.count, options.seed)
    if options.json:
        json.dump(rows, sys.stdout, indent=2)
        return
    table = Table(title="two processes, one slot: one winner each time, both agree", title_justify="left")
    for name in ("store", "races", "first won", "second won", "seconds"):
        table.add_column(name, justify="left" if name == "store" else "right")
    for kind, row in rows.items():
        table.add_row(kind, *(f"{value:.0f}" for value in row.values()))
    Console().print(table)


if __name__ == "__main__":
    main()
