"""Two commands that run the same run at the same time, on one S3 store: `python -m tests.faults.same_run [--json]`.

They have nothing in common but the bucket, as on two machines: each has a Prefect server and a folder of its own. Both
do the same work, and whoever publishes an artifact first has made it for both. Once in front of a server that honours
conditional puts (moto), and once in front of one that does not (rclone).
"""

import json
import os
import subprocess
import tempfile
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from artifacts.store.store import Store
from artifacts.verification import verify
from tests.support.bars import Bar, kept, parser_of, tell
from tests.support.installed import ONE_ENGINE, TINY
from tests.support.processes import DEERSTALKER
from tests.support.servers import S3Server, moto_server, rclone_server
from tests.support.stored import attempts_of, manifests_of
from tests.support.tiny_runs import SHORTEST
from tests.support.waiting import changes, wait_until

BUCKET, RUN, NAMES = "same", "same", ("first", "second")
LIMIT_S = 600.0
"""Seconds without progress after which a command counts as hung."""
PROMISES = {
    "artifacts that changed": "changed",
    "commands that disagree on the result": "disagree",
    "commands that did not finish": "ended with|no progress",
    "damage": "",
}
"""What must not happen, and the words of the errors that tell of it."""


@contextmanager
def served(kind: str, folder: Path) -> Generator[S3Server]:
    """Yields a server with an empty bucket."""
    folder.mkdir()
    with moto_server() if kind == "moto" else rclone_server(folder) as server:
        server.create_bucket(BUCKET)
        yield server


def start(folder: Path, server: S3Server, iterations: int) -> subprocess.Popen[bytes]:
    """Starts one of the two commands, whose log and document go to its folder."""
    folder.mkdir()
    changed = [word for setting in (f"iterations={iterations}", *SHORTEST) for word in ("--set", setting)]
    command = [DEERSTALKER, "train", "--recipe", str(TINY), "--profile", str(ONE_ENGINE), "--run", RUN, *changed]
    environment = os.environ | server.environment() | {"PREFECT_HOME": str(folder / "prefect")}
    with (folder / "log.txt").open("wb") as log, (folder / "document.json").open("wb") as document:
        return subprocess.Popen(
            [*command, "--store", f"s3://{BUCKET}", "--json"], cwd=folder, env=environment, stdout=document, stderr=log
        )


def campaign(kind: str, iterations: int, scratch: Path) -> dict[str, Any]:
    """Runs both commands to their ends, and compares what they say and what is stored.

    Raises:
        AssertionError: A command fails, an artifact changed, the commands disagree, or the store is damaged.
    """
    with served(kind, scratch / kind) as server:
        folders = [scratch / f"{kind}-{name}" for name in NAMES]
        processes = [start(folder, server, iterations) for folder in folders]
        store = Store.open(f"s3://{BUCKET}", options=server.options())
        seen: dict[str, str] = {}

        def said() -> str:
            return "\n".join((folder / "log.txt").read_text(errors="replace")[-2000:] for folder in folders)

        def over() -> bool:
            for key, attempt in attempts_of(store).items():
                assert seen.setdefault(key, attempt) == attempt, f"{key} changed"
            return all(process.poll() is not None for process in processes)

        try:
            wait_until(over, LIMIT_S, said, 15.0, lambda: [changes(folder) for folder in folders])
        finally:
            for process in processes:
                process.kill()
        codes = [process.wait() for process in processes]
        assert codes == [0, 0], f"ended with {codes}:\n{said()}"
        assert seen == attempts_of(store), "an artifact changed, or is gone"
        first, second = (json.loads((folder / "document.json").read_text()) for folder in folders)
        for part in ("test", "promoted"):
            assert first[part] == second[part], f"they disagree: {first[part]} {second[part]}"
        assert verify(store).damaged == []
        makers = Counter(made.provenance["process_began"] for made in manifests_of(store).values())
        return {"iterations": iterations, "artifacts": len(seen), "made_by": sorted(makers.values())}


def main() -> None:
    """Runs the same run twice at once, and prints who made what."""
    parser = parser_of(__doc__)
    parser.add_argument("--iterations", type=int, default=200)
    parser.add_argument("--kind", choices=("moto", "rclone"), action="append", help="only this server")
    options = parser.parse_args()
    rows: dict[str, dict[str, Any]] = {}
    bars: list[Bar] = []
    broken_by = None
    with tempfile.TemporaryDirectory(prefix="same-run-") as scratch:
        for kind in options.kind or ("moto", "rclone"):
            promises = {f"{kind}: {promise}": words for promise, words in PROMISES.items()}
            rows[kind], kind_bars = kept(promises, lambda kind=kind: campaign(kind, options.iterations, Path(scratch)))
            broken_by = rows[kind].pop("broken_by") or broken_by
            bars += kind_bars
    tell({"servers": rows, "broken_by": broken_by}, bars, as_json=options.json)


if __name__ == "__main__":
    main()
