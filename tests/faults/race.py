"""Two writer processes race for one address, again and again: `python -m tests.faults.race --count 200 [--json]`.

`tests/support/race.py` describes a race; here it runs on a folder, on an S3 server that honours conditional puts
(moto), and on one that does not (rclone).
"""

import tempfile
from pathlib import Path
from typing import Any

from tests.support.bars import Bar, kept, parser_of, tell
from tests.support.race import KINDS, place, race


def main() -> None:
    """Races, and prints who won."""
    parser = parser_of(__doc__)
    parser.add_argument("--count", type=int, default=200, help="races in each kind of store")
    parser.add_argument("--kind", choices=KINDS, action="append", help="only this kind of store; may be repeated")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rows: dict[str, dict[str, Any]] = {}
    bars: list[Bar] = []
    broken_by = None
    with tempfile.TemporaryDirectory(prefix="races-") as scratch:
        for kind in options.kind or KINDS:
            with place(kind, Path(scratch)) as where:
                promise = {f"{kind}: races without one winner, or in which the writers disagree": ""}
                rows[kind], kind_bars = kept(promise, lambda where=where: race(where, options.count, options.seed))
            broken_by = rows[kind].pop("broken_by") or broken_by
            bars += kind_bars
    tell({"stores": rows, "broken_by": broken_by}, bars, as_json=options.json)


if __name__ == "__main__":
    main()
