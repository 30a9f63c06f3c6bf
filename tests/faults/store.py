"""Publishing and reading over a network that fails on purpose: `python -m tests.faults.store --count 1000 [--json]`.

The campaign of `tests/support/store_faults.py`, once in front of a server without conditional puts (rclone) and once in
front of one with them (moto). Then one bit is flipped in each of as many stored files.
"""

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from artifacts.store.store import Store
from tests.support.bars import kept, parser_of, tell
from tests.support.flips import flip_bits
from tests.support.servers import moto_server, rclone_server
from tests.support.store_faults import BUCKET, campaign

PROMISES = {
    "artifacts half published": "before it was complete",
    "files repeated or left over": "files that no attempt explains",
    "flipped bits unseen or misnamed": "a flipped bit",
    "artifacts lost or altered": "",
}
"""What must not happen, and the words of the errors of `tests.support` that tell of it."""


def main() -> None:
    """Injects the faults, and prints what became of them."""
    parser = parser_of(__doc__)
    parser.add_argument("--count", type=int, default=1000, help="faults to inject, and files to flip a bit in")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    report, bars = kept(PROMISES, lambda: injected(options.count, options.seed))
    tell(report, bars, as_json=options.json)


def injected(count: int, seed: int) -> dict[str, Any]:
    """Injects half of the faults before each server, and flips a bit in as many files.

    Raises:
        AssertionError: The store failed.
    """
    report: dict[str, Any] = {"servers": {}, "flips": {}}
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="store-faults-")))
        servers = {
            "rclone": stack.enter_context(rclone_server(scratch / "served")),
            "moto": stack.enter_context(moto_server()),
        }
        half = -(-count // 2)
        for name, server in servers.items():
            server.create_bucket(BUCKET)
            report["servers"][name] = campaign(server, half, scratch, seed)
        over_s3 = Store.open(f"s3://{BUCKET}/flips", options=servers["rclone"].options())
        for place, store in {"folder": Store.open(str(scratch / "folder")), "rclone": over_s3}.items():
            report["flips"][place] = flip_bits(store, half, scratch / "cache", seed)
    return report


if __name__ == "__main__":
    main()
