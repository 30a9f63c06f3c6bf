"""A checkpoint to an S3 server and back, ours against `rclone copy`: `python -m tests.benchmarks.store`.

Both talk to the same `rclone serve s3`, in turns, in one run. Ours does the work of a stage: the files go up and the
artifact is published; it is opened and its files come down verified. Each time includes connecting, ours also the pause
in which a writer settles who was first on a server without conditional puts. `rclone copy` is as it comes, without
options.
`--scratch` has to hold three times the size; in memory (`/dev/shm`) the disk does not blur the ratios.
"""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from artifacts.address import ArtifactAddress
from artifacts.identity import Identity
from artifacts.reading import Artifact
from artifacts.refs import Checkpoint, Ref
from artifacts.store.store import Store
from tests.benchmarks.publish import write_random
from tests.support.bars import Bar, parser_of, tell
from tests.support.servers import S3Server, rclone_server

BUCKET, TARGET = "benchmark", 0.8
Round = dict[str, float]
"""Seconds of each side and way in one round."""


class Bench:
    """One server, one checkpoint, and two ways to move it."""

    def __init__(self, server: S3Server, scratch: Path, size_mb: int) -> None:
        self.server, self.scratch, self.size_bytes = server, scratch, size_mb << 20
        self.source = scratch / "source"
        self.source.mkdir()
        write_random(self.source / "model.safetensors", self.size_bytes)
        (self.source / "config.json").write_text("{}")
        self._rounds = 0
        self._ref: Ref[Checkpoint] | None = None

    def round(self) -> Round:
        """Up and down, once each way; who goes first changes with every round."""
        self._rounds += 1
        order = 1 if self._rounds % 2 else -1
        up = {"ours_up_s": self._ours_up, "rclone_up_s": self._rclone_up}
        down = {"ours_down_s": self._ours_down, "rclone_down_s": self._rclone_down}
        seconds = {name: self._timed(up[name]) for name in list(up)[::order]}
        seconds |= {name: self._timed_down(down[name]) for name in list(down)[::order]}
        store = self._open()
        store.delete("runs")
        store.delete("rclone")
        return {name: seconds[name] for name in (*up, *down)}

    def _open(self) -> Store:
        return Store.open(f"s3://{BUCKET}", options=self.server.options())

    def _slot(self, store: Store) -> ArtifactAddress[Checkpoint]:
        return ArtifactAddress(store, f"runs/r/iterations/{self._rounds:04d}/checkpoint", Checkpoint)

    def _ours_up(self) -> None:
        identity = Identity.of("finetune", 1, {})
        attempt = self._slot(self._open()).attempt(identity)
        with attempt.folder(self.scratch) as folder:
            for path in self.source.iterdir():
                os.link(path, folder / path.name)  # as if the trainer had written it there
        self._ref = attempt.publish()

    def _ours_down(self) -> None:
        assert self._ref is not None
        folder = Artifact.open(self._open(), self._ref).local_folder(self.scratch / "down")
        if (folder / "model.safetensors").stat().st_size != self.size_bytes:
            raise AssertionError("ours is not complete")

    def _rclone(self, *arguments: str) -> None:
        settings = {
            "TYPE": "s3", "PROVIDER": "Rclone", "ENDPOINT": self.server.url,
            "ACCESS_KEY_ID": self.server.access_key, "SECRET_ACCESS_KEY": self.server.secret_key,
        }  # fmt: skip
        environment = {f"RCLONE_CONFIG_BENCH_{name}": value for name, value in settings.items()}
        program = str(Path(sys.executable).with_name("rclone"))
        command = [program, "--config", os.devnull, *arguments]
        subprocess.run(command, env=os.environ | environment, check=True)

    def _rclone_up(self) -> None:
        self._rclone("copy", str(self.source), f"bench:{BUCKET}/rclone")

    def _rclone_down(self) -> None:
        self._rclone("copy", f"bench:{BUCKET}/rclone", str(self.scratch / "down" / "rclone"))
        if (self.scratch / "down" / "rclone" / "model.safetensors").stat().st_size != self.size_bytes:
            raise AssertionError("rclone's is not complete")

    def _timed_down(self, action: Callable[[], None]) -> float:
        try:
            return self._timed(action)
        finally:
            shutil.rmtree(self.scratch / "down")

    @staticmethod
    def _timed(action: Callable[[], None]) -> float:
        started = time.perf_counter()
        action()
        return time.perf_counter() - started


def summary(rounds: list[Round], size_mb: int) -> dict[str, float]:
    """Median throughputs in MB/s, and the medians over rounds of ours over rclone's."""
    figures: dict[str, float] = {}
    for way in ("up", "down"):
        for who in ("ours", "rclone"):
            figures[f"{who}_{way}_mb_per_s"] = statistics.median(size_mb / one[f"{who}_{way}_s"] for one in rounds)
        figures[f"{way}_ratio"] = statistics.median(one[f"rclone_{way}_s"] / one[f"ours_{way}_s"] for one in rounds)
    return figures


def measure(size_mb: int, count: int, scratch: Path) -> list[Round]:
    """Runs so many rounds in an empty folder, after a small one that warms both up."""
    (scratch / "served").mkdir()
    with rclone_server(scratch / "served") as server:
        server.create_bucket(BUCKET)
        (scratch / "warm").mkdir()
        Bench(server, scratch / "warm", 1).round()
        bench = Bench(server, scratch, size_mb)
        return [bench.round() for _ in range(count)]


def main() -> None:
    """Measures and prints."""
    parser = parser_of(__doc__)
    parser.add_argument("--size-mb", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scratch", type=Path, help="a folder for the files; by default a temporary one")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.scratch, prefix="store-benchmark-") as folder:
        rounds = measure(options.size_mb, options.rounds, Path(folder))
    figures = summary(rounds, options.size_mb)
    ratios = {way: figures[f"{way}_ratio"] for way in ("up", "down")}
    bars = [Bar.at_least(f"rclone's seconds over ours, {way}", ratio, TARGET) for way, ratio in ratios.items()]
    report = {"size_mb": options.size_mb, **figures, "rounds": rounds}
    tell(report, bars, as_json=options.json)


if __name__ == "__main__":
    main()
