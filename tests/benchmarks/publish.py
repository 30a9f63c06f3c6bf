"""Publishing files in a folder, against a plain copy that reaches the disk: `python -m tests.benchmarks.publish`.

Three sides copy the same files out of memory, in turns, in one run. Ours copies them into an attempt's folder and
publishes them: each file is hashed and flushed, and the manifest is written. `cp` copies and flushes them, at the speed
of the disk. `rclone copy` runs without options, and its files are flushed as well. There are `--files` of one size, as
several processes write an optimizer state. Then ours reads the artifact as the next stage does and checks every
checksum; the other side is `cat`. Both read from the page cache the files that are still in it.
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
from artifacts.refs import OptimizerState, Ref
from artifacts.store.store import Store
from tests.support.bars import Bar, parser_of, progress, tell

TARGET = 0.9
_BLOCK_BYTES = 16 << 20


Round = dict[str, float]
"""Seconds of each side in one round."""


def write_random(path: Path, size_bytes: int) -> None:
    """Writes a file that cannot be compressed."""
    with path.open("wb") as stream:
        for start in range(0, size_bytes, _BLOCK_BYTES):
            stream.write(os.urandom(min(_BLOCK_BYTES, size_bytes - start)))


class Bench:
    """The files in memory, a folder on the disk, and the ways to bring the ones to the other."""

    def __init__(self, source: Path, disk: Path, size_mb: int, files: int) -> None:
        self.source, self.disk = source, disk
        self.store = Store.open(str(disk / "store"))
        for number in range(files):
            write_random(source / f"__{number}_0.distcp", (size_mb << 20) // files)
        self._rounds = 0
        self._ref: Ref[OptimizerState] | None = None

    def round(self) -> Round:
        """Runs each side once; who goes first changes with every round."""
        sides: list[tuple[str, Callable[[], None]]] = [
            ("ours", self._ours), ("cp", self._cp), ("rclone", self._rclone),
        ]  # fmt: skip
        first = self._rounds % len(sides)
        self._rounds += 1
        seconds = {name: self._timed(side) for name, side in sides[first:] + sides[:first]}
        # `_ours` of this round is on the disk until here, so that its files can be read.
        reads = {"check": self._check, "cat": self._cat}
        order = list(reads)[:: 1 if self._rounds % 2 else -1]
        seconds |= {name: self._timed(reads[name]) for name in order}
        progress(f"round {self._rounds}: {seconds}")
        self.store.delete("runs")
        return {f"{name}_s": seconds[name] for name in ("ours", "cp", "rclone", "check", "cat")}

    def _ours(self) -> None:
        address = ArtifactAddress(self.store, f"runs/r/iterations/{self._rounds:04d}/optimizer_state", OptimizerState)
        attempt = address.attempt(Identity.of("finetune", 1, {}))
        with attempt.folder(self.disk) as folder:
            for path in sorted(self.source.iterdir()):
                shutil.copyfile(path, folder / path.name)
        self._ref = attempt.publish()

    def _cp(self) -> None:
        self._copied(lambda out: subprocess.run(["cp", "-r", f"{self.source}/.", str(out)], check=True))

    def _rclone(self) -> None:
        program = str(Path(sys.executable).with_name("rclone"))
        command = [program, "--config", os.devnull, "copy", str(self.source)]
        self._copied(lambda out: subprocess.run([*command, str(out)], check=True))

    def _copied(self, copy: Callable[[Path], object]) -> None:
        out = self.disk / "copy"
        out.mkdir()
        copy(out)
        for path in out.iterdir():
            with path.open("rb") as stream:
                os.fsync(stream.fileno())

    def _check(self) -> None:
        assert self._ref is not None
        Artifact.open(self.store, self._ref).local_folder(self.disk / "cache")

    def _cat(self) -> None:
        assert self._ref is not None
        folder = self.store.local_path(self._ref.key)
        assert folder is not None
        subprocess.run(
            ["find", folder, "-name", "*.distcp", "-exec", "cat", "{}", "+"], stdout=subprocess.DEVNULL, check=True
        )

    def _timed(self, action: Callable[[], None]) -> float:
        started = time.perf_counter()
        action()
        seconds = time.perf_counter() - started
        shutil.rmtree(self.disk / "copy", ignore_errors=True)
        return seconds


def summary(rounds: list[Round], size_mb: int) -> dict[str, float]:
    """Median throughputs in MB/s, and the ratios of the medians."""
    median = {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}
    figures = {f"{name.removesuffix('_s')}_mb_per_s": size_mb / seconds for name, seconds in median.items()}
    return figures | {
        "of_cp": median["cp_s"] / median["ours_s"],
        "of_rclone": median["rclone_s"] / median["ours_s"],
        "check_of_cat": median["cat_s"] / median["check_s"],
    }


def main() -> None:
    """Measures and prints."""
    parser = parser_of(__doc__)
    parser.add_argument("--size-mb", type=int, default=4096)
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scratch", type=Path, help="a folder of the disk to measure; by default the temporary one")
    parser.add_argument("--memory", type=Path, default=Path("/dev/shm"), help="a folder in memory for the source")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(dir=options.scratch, prefix="publish-") as disk,
        tempfile.TemporaryDirectory(dir=options.memory, prefix="publish-source-") as source,
    ):
        bench = Bench(Path(source), Path(disk), options.size_mb, options.files)
        rounds = [bench.round() for _ in range(options.rounds)]
    figures = summary(rounds, options.size_mb)
    bars = [
        Bar.at_least("cp's seconds over ours", figures["of_cp"], TARGET),
        Bar.at_least("rclone copy's seconds over ours", figures["of_rclone"], TARGET),
    ]
    report = {"size_mb": options.size_mb, "files": options.files, **figures, "rounds": rounds}
    tell(report, bars, as_json=options.json)


if __name__ == "__main__":
    main()
