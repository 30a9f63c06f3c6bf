"""A run whose S3 server is killed twice: `python -m tests.faults.outage [--json]`, by hand.

While the run samples, the server is away for a moment, and the run waits. While `finetune` publishes, the server goes
for good, and the command ends with one line. When the server is back, the same command finishes; nothing is sampled,
trained or published twice, and every file matches its checksum.
"""

import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from artifacts.manifest import Manifest
from artifacts.store.store import Store
from artifacts.verification import verify
from tests.support.bars import kept, parser_of, tell
from tests.support.installed import SLOW, TINY
from tests.support.processes import DEERSTALKER
from tests.support.servers import S3Server, free_port, start_rclone
from tests.support.stored import attempts_of
from tests.support.waiting import wait_until

BUCKET = "outage"
AWAY_S = 8.0
LIMIT_S = 600.0


@dataclass
class Outage:
    """A run on a server that comes and goes.

    Attributes:
        folder: The server's objects lie under it as files, readable while it is away.
    """

    folder: Path
    port: int
    server: S3Server

    @property
    def iteration(self) -> Path:
        """Folder of the first iteration."""
        return self.folder / "served" / BUCKET / "runs" / "tiny" / "iterations" / "0001"

    def back(self) -> None:
        """Starts the server where it was."""
        self.server = start_rclone(self.folder / "served", port=self.port)

    def start(self) -> subprocess.Popen[str]:
        """Starts the command as a user would."""
        command = [
            DEERSTALKER, "train", "--recipe", str(TINY),
            "--profile", str(SLOW), "--store", f"s3://{BUCKET}", "--set", "iterations=1", "--json",
        ]  # fmt: skip
        environment = os.environ | self.server.environment() | {"PREFECT_HOME": str(self.folder / "prefect")}
        return subprocess.Popen(
            command, env=environment, cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )

    def shards(self) -> set[str]:
        """Names of the groups stored so far; a name carries a checksum."""
        return {path.name for path in self.iteration.glob("rollouts/*/*.parquet")}

    def published(self, part: str) -> bool:
        """Whether a part of the iteration is published."""
        return (self.iteration / part / "manifest.json").exists()

    def attempts(self) -> dict[str, str]:
        """Attempt of every artifact, by key."""
        return attempts_of(Store.open(str(self.folder / "served" / BUCKET), writable=False))

    def kill_when(self, reached: Callable[[], bool], process: subprocess.Popen[str]) -> None:
        """Kills the server at the first moment at which something is reached."""

        def seen() -> bool:
            assert process.poll() is None, process.communicate()[1][-3000:]
            return reached()

        wait_until(seen, LIMIT_S, poll_s=0.002)
        self.server.kill()


PROMISES = {"work repeated": "published twice|sampled twice", "work lost, or a wrong end": ""}
"""What must not happen, and the words of the errors that tell of it."""


def campaign(folder: Path) -> dict[str, Any]:
    """The story.

    Raises:
        AssertionError: The run did not wait, did not end, or did something twice.
    """
    port = free_port()
    (folder / "served").mkdir()
    run = Outage(folder, port, start_rclone(folder / "served", port=port))
    try:
        run.server.create_bucket(BUCKET)
        return _story(run)
    finally:
        run.server.kill()


def _story(run: Outage) -> dict[str, Any]:
    process = run.start()
    run.kill_when(lambda: len(run.shards()) > 1, process)
    first = run.shards()
    assert not run.published("rollouts"), "it was over before the server was killed"
    time.sleep(AWAY_S)
    assert process.poll() is None, "it did not wait"
    run.back()
    run.kill_when(lambda: any(run.iteration.glob("optimizer_state/*/*")), process)
    gone_at = time.monotonic()
    assert run.published("batch") and not run.published("checkpoint"), "it was over before the server was killed"
    before = run.attempts()
    said = process.communicate(timeout=LIMIT_S)[1].strip().splitlines()
    ended_s = time.monotonic() - gone_at
    assert process.returncode != 0
    assert said[-1].startswith("error: ") and str(run.port) in said[-1], said[-5:]
    assert not any("Traceback" in line for line in said), said

    run.back()
    again = run.start()
    lines = again.communicate(timeout=LIMIT_S)[1].splitlines()
    assert again.returncode == 0, lines[-10:]
    after = run.attempts()
    assert {key: after[key] for key in before} == before, "published twice"
    rollouts = Manifest.from_bytes((run.iteration / "rollouts" / "manifest.json").read_bytes(), "rollouts")
    assert first <= set(rollouts.files), f"sampled twice: {first - set(rollouts.files)}"
    store = Store.open(f"s3://{BUCKET}", options=run.server.options())
    assert verify(store).damaged == []
    return {
        "waited_out_s": AWAY_S,
        "shards_before": len(first),
        "shards": len(rollouts.files),
        "ended_s": round(ended_s, 1),
        "said": said[-1],
        "published_before": len(before),
        "published_after": len(after),
        "cached": sum(line.rstrip().endswith("cached") for line in lines),
    }


def main() -> None:
    """Kills the server twice, and prints what became of the run."""
    parser = parser_of(__doc__)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="outage-") as scratch:
        report, bars = kept(PROMISES, lambda: campaign(Path(scratch)))
    tell(report, bars, as_json=options.json)


if __name__ == "__main__":
    main()
