"""Ctrl-C and SIGTERM at moments of tiny runs: `python -m tests.faults.interrupts --count 14 [--json]`, by hand.

`tests/support/interrupts.py` describes the moments and checks; `tests/flow/test_interrupts.py` is the short form.
"""

import shutil
import tempfile
from pathlib import Path

from tests.support.bars import Bar, kept, parser_of, progress, tell
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
    parser = parser_of(__doc__)
    parser.add_argument("--count", type=int, default=len(MOMENTS), help="interruptions")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    scratch = Path(tempfile.mkdtemp(prefix="interrupts-"))
    progress(f"runs in {scratch}; it stays if one of them fails")
    report, bars = kept(PROMISES, lambda: campaign(options.count, scratch, options.seed))
    for name in ("seconds", "left_s"):
        what = "end of the command" if name == "seconds" else "end of its last process"
        if found := report.get(name):
            bars = [*bars, Bar.at_most(f"seconds to the {what}", max(found.values()), LONGEST_S)]
    if all(bar.met for bar in bars):
        shutil.rmtree(scratch)
    tell(report, bars, as_json=options.json)


if __name__ == "__main__":
    main()
