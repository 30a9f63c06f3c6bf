"""SIGKILL at random moments of tiny runs: `python -m tests.faults.kills --count 200 [--json]`, by hand.

`tests/support/kills.py` describes the kills and the checks that follow; `tests/flow/test_kills.py` is the short form.
"""

import shutil
import tempfile
from pathlib import Path

from tests.support.bars import Bar, kept, parser_of, progress, tell
from tests.support.kills import USUAL, campaign
from tests.support.kills_kinds import EVERY

ALL = "all"
PROMISES = {
    "work repeated": "was made again|sampled twice",
    "processes or folders left over": "not reached, no progress|left over",
    "runs that did not finish": "it hangs|does not finish",
    "work lost": "",
}
"""What must not happen, and the words of the errors of `tests.support.kills` that tell of it."""
MOST_LEFT_S = 2.0


def main() -> None:
    """Kills, and prints what became of it."""
    parser = parser_of(__doc__)
    parser.add_argument("--count", type=int, default=200, help="processes to kill")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=1, help="runs side by side")
    parser.add_argument(
        "--kinds",
        nargs="+",
        choices=(*EVERY, ALL),
        default=USUAL,
        help="kinds in turn; by default plain twice, deployed",
    )
    options = parser.parse_args()
    scratch = Path(tempfile.mkdtemp(prefix="kills-"))
    progress(f"runs in {scratch}; it stays if one of them fails")
    kinds = EVERY if ALL in options.kinds else options.kinds
    report, bars = kept(PROMISES, lambda: campaign(options.count, scratch, options.seed, options.at_once, kinds))
    if "left_s" in report:
        bars.append(Bar.at_most("seconds until nothing of an ended command is left", report["left_s"], MOST_LEFT_S))
    if all(bar.met for bar in bars):
        shutil.rmtree(scratch)
    tell(report, bars, as_json=options.json)


if __name__ == "__main__":
    main()
