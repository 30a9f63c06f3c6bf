"""Small file systems that fill up while tiny runs write to them, and the checks that follow.

A run writes to four disks: its store, TMPDIR, Prefect's database and the home folder with the caches of engine and
trainer. At a random moment one of them, or all, are filled but for a few bytes. The command must end with one line that
names the folder and says what is free and what to do. Then the disk is freed, and the same command continues, until the
next disk is full. At its end the run has everything that it had published before, and what an undisturbed run has.
"""

import itertools
import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from artifacts.local.full_disk import free_bytes
from artifacts.store.store import S3Options, Store
from tests.support.kills_run import RUN_LIMIT_S, Run
from tests.support.servers import BUCKET, S3Server, moto_server

DISKS = ("store", "scratch", "prefect", "home")
FAULTS_A_RUN = 12
S3_EVERY, EXT4_EVERY = 4, 3
"""Every fourth run has its store on S3, and every third writes to ext4 instead of tmpfs."""
SIZE_MIB = 96
LATEST_SHARE = 0.6
"""The latest moment at which a disk is filled, as a share of the time that an undisturbed run takes alone."""
LEFT_BYTES = (0, 0, 4 << 10, 16 << 10, 64 << 10, 256 << 10)
LINE = re.compile(
    r"error: (?P<folder>/\S+): no space left, [0-9.]+ MiB are free; expected room for [^;]+; free some space there \("
    r"`deerstalker prune` .*\), then the same command continues where it stopped"
)
_STAGE = re.compile(r"\b([a-z_]+)-(?:[0-9]{4}|[a-z0-9]+)\b")


@dataclass
class Fault:
    """One disk that was full, and what the command said.

    Attributes:
        disk: Name of the disk, or `all`.
        file_system: tmpfs or ext4.
        left_bytes: Bytes that were left free.
        stage: The last line of progress before.
        said: The last line of the command.
        wrong: What is wrong with that line; empty if nothing is.
    """

    disk: str
    file_system: str
    left_bytes: int
    stage: str
    said: str
    wrong: str = ""


class SmallDisk:
    """A mounted file system of a few megabytes.

    Args:
        place: Where it is mounted; made if missing.
        file_system: tmpfs or ext4.
    """

    def __init__(self, place: Path, file_system: str) -> None:
        self.place, self._filler = place, place / ".filler"
        place.mkdir(parents=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE_MIB}m", "tmpfs", str(place)]
        if file_system == "ext4":
            image = place.with_name(f"{place.name}.img")
            with image.open("wb") as stream:
                stream.truncate(SIZE_MIB << 20)
            subprocess.run(["mkfs.ext4", "-q", "-m", "0", str(image)], check=True)
            command = ["mount", "-o", "loop", str(image), str(place)]
        subprocess.run(command, check=True)
        self.folder = place / "files"
        self.folder.mkdir()

    def fill(self, left_bytes: int) -> None:
        """Fills the disk but for some bytes, while others write to it."""
        with self._filler.open("ab") as filler:
            for _ in range(100):
                more = free_bytes(self.place) - left_bytes
                if more <= 0:
                    return
                with suppress(OSError):  # others have taken a part of it meanwhile
                    os.posix_fallocate(filler.fileno(), os.fstat(filler.fileno()).st_size, more)

    def free(self) -> None:
        """Gives the space back."""
        self._filler.unlink(missing_ok=True)

    def unmount(self) -> None:
        """Unmounts the file system."""
        subprocess.run(["umount", str(self.place)], check=True)


@dataclass
class DiskRun(Run):
    """A run of the tiny recipe on small disks, which `folder` holds.

    Attributes:
        file_system: tmpfs or ext4.
        server: S3 server of the store; None for a store in a folder.
        latest_s: The latest moment of a fault after the start of a command.
    """

    log_mode: ClassVar[Literal["ab", "wb"]] = "wb"
    file_system: str = "tmpfs"
    server: S3Server | None = None
    latest_s: float = 0.0
    faults: list[Fault] = field(default_factory=list[Fault])
    disks: dict[str, SmallDisk] = field(default_factory=dict[str, SmallDisk])

    @contextmanager
    def mounted(self) -> Generator[None]:
        """Mounts the disks for the length of a with block."""
        with ExitStack() as mounts:
            for name in DISKS:
                disk = SmallDisk(self.folder / name, self.file_system)
                mounts.callback(disk.unmount)
                self.disks[name] = disk
            yield

    @property
    def store(self) -> Path:
        """The folder of its artifacts, empty if they are on S3."""
        return self.disks["store"].folder

    @property
    def scratch(self) -> Path:
        """TMPDIR of its processes."""
        return self.disks["scratch"].folder

    @property
    def url(self) -> str:
        """Address of the store."""
        return f"s3://{BUCKET}/{self.folder.name}" if self.server else str(self.store)

    @property
    def environment(self) -> dict[str, str]:
        """Variables of the command, whose files all stand on the disks."""
        folders = {name: str(disk.folder) for name, disk in self.disks.items()}
        on_server = self.server.environment() if self.server else {}
        places = {"PREFECT_HOME": folders["prefect"], "HOME": folders["home"]}
        return super().environment | on_server | places

    def opened(self) -> Store:
        """Opens the store."""
        return Store.open(self.url, options=self.server.options() if self.server else S3Options(), writable=False)

    @property
    def begun(self) -> bool:
        """Whether there is a store; one on S3 is there from the beginning."""
        return self.server is not None or super().begun

    def disturb(self, kills: int) -> None:
        """Fills disks at random moments, frees them and starts the command again, then lets it finish.

        Raises:
            AssertionError: The run hangs, does not finish, lost something, or leaves a process behind.
        """
        for _ in range(kills):
            if self.one_fault():
                return
        if not self.ended_with_success(self.start()):
            raise AssertionError(f"it does not finish:\n{self.tail()}")

    def one_fault(self) -> bool:
        """Starts the command and fills a disk; returns whether the run has finished all the same."""
        (name,) = self.generator.choices([*DISKS, "all"], [0 if self.server else 3, 3, 3, 1, 3])
        full = list(self.disks.values()) if name == "all" else [self.disks[name]]
        left_bytes = self.generator.choice(LEFT_BYTES)
        process = self.start()
        with suppress(subprocess.TimeoutExpired):
            process.wait(self.generator.uniform(0.0, self.latest_s) if self.generator.random() < 0.9 else 0.0)
        self.remember()
        for disk in full:
            disk.fill(left_bytes)
        finished = self.ended_with_success(process)
        if not finished:
            fault = Fault(name, self.file_system, left_bytes, self.stage(), self.last_line())
            fault.wrong = self.wrong(fault.said, process.returncode, full)
            self.faults.append(fault)
        for disk in full:
            disk.free()
        self.remember()
        return finished

    def ended_with_success(self, process: subprocess.Popen[bytes]) -> bool:
        """Waits for the command's end and returns whether it succeeded."""
        try:
            process.wait(RUN_LIMIT_S)
        except subprocess.TimeoutExpired as error:
            process.kill()
            raise AssertionError(f"it hangs:\n{self.tail()}") from error
        self.nothing_is_left()
        return process.returncode == 0

    def wrong(self, said: str, status: int, full: Sequence[SmallDisk]) -> str:
        """Returns what is wrong with the last line of a command that met a full disk; empty if nothing is."""
        if status != 1:
            return f"status {status}"
        match = LINE.fullmatch(said)
        if not match:
            return "another line"
        inside = any(Path(match["folder"]).is_relative_to(disk.place) for disk in full)
        return "" if inside else f"a folder that is not full: {match['folder']}"

    def last_line(self) -> str:
        """Returns the last line of the log."""
        return next(reversed(self.tail().strip().splitlines()), "")

    def stage(self) -> str:
        """Returns the name of the last stage in the log."""
        lines = (self.folder / "log.txt").read_text(errors="replace").splitlines()[:-1]
        return next((match[1] for line in reversed(lines) if (match := _STAGE.search(line))), "start")


def campaign(count: int, scratch: Path, seed: int = 1, at_once: int = 1) -> dict[str, Any]:
    """Fills disks until `count` commands have ended because of it.

    Args:
        at_once: Runs side by side.

    Returns:
        Every fault, and the errors of the runs that lost something or did not finish.
    """
    with moto_server() as server:
        server.create_bucket(BUCKET)
        first, began = DiskRun(_folder(scratch / "undisturbed"), random.Random(seed)), time.monotonic()
        with first.mounted():
            first.disturb(0)
            undisturbed, latest_s = first.digests(), LATEST_SHARE * (time.monotonic() - began)
        assert undisturbed
        faults, broken, starts = list[Fault](), list[str](), list[int]()
        numbers, began = itertools.count(), time.monotonic()

        def one() -> None:
            number = next(numbers)
            run = DiskRun(
                _folder(scratch / f"run-{number}"),
                random.Random(f"{seed} {number}"),
                file_system="ext4" if number % EXT4_EVERY == EXT4_EVERY - 1 else "tmpfs",
                server=server if number % S3_EVERY == S3_EVERY - 1 else None,
                latest_s=latest_s,
            )
            with run.mounted():
                try:
                    run.disturb(FAULTS_A_RUN)
                    run.check(undisturbed)
                except AssertionError as error:
                    broken.append(f"run {number}: {error}")
                    print(broken[-1], file=sys.stderr, flush=True)
                    for pid in run.processes():
                        with suppress(ProcessLookupError):
                            os.kill(pid, 9)
                    run.nothing_is_left()
            faults.extend(run.faults)
            starts.append(run.starts)
            for fault in run.faults:
                if fault.wrong:
                    print(f"run {number}: {fault}", file=sys.stderr, flush=True)
            told = f"run {number}: {len(run.faults)} faults, {len(faults)} in all, {time.monotonic() - began:.0f} s"
            print(told, file=sys.stderr, flush=True)
            if not any(fault.wrong for fault in run.faults) and not broken:
                shutil.rmtree(run.folder)

        def work() -> None:
            while len(faults) < count:
                one()

        with ThreadPoolExecutor(at_once) as pool:
            for worker in [pool.submit(work) for _ in range(at_once)]:
                worker.result()
    return {
        "faults": len(faults),
        "runs": len(starts),
        "starts": sum(starts),
        "disks": dict(Counter(fault.disk for fault in faults)),
        "file_systems": dict(Counter(fault.file_system for fault in faults)),
        "stages": dict(Counter(fault.stage for fault in faults)),
        "wrong": [vars(fault) for fault in faults if fault.wrong],
        "broken": broken,
    }


def _folder(path: Path) -> Path:
    path.mkdir(parents=True)
    return path
