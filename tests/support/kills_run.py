"""One tiny run that is killed now and then, and the checks that follow."""

import os
import random
import signal
import subprocess
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

from artifacts.manifest import Manifest
from artifacts.store.store import Store
from artifacts.verification import verify
from stages.processes.scratch import _LOG_SUFFIXES, _LOGS_KEPT, _OWNER, _PREFIXES
from tests.support.installed import SLOW, TINY
from tests.support.processes import DEERSTALKER, Descendants
from tests.support.stored import manifests_of
from tests.support.waiting import changes, wait_until

MARK = "DEERSTALKER_KILLS"
TINY_RUN = ("--recipe", str(TINY), "--profile", str(SLOW))
VICTIMS = {
    "engine": "sampling/server.py",
    "engine core": "VLLM::EngineCore",
    "trainer rank": "-m stages.training.worker_group.worker --queue",
    "torchrun": "torch.distributed.run",
    "Prefect server": "flows/orchestration/server/server_process.py",
    "guard": "stages/processes/guard.py",
}
LONGEST_WAIT_S = 12.0
LEFT_LIMIT_S = 120.0
"""Seconds after which no process of a killed flow may be left."""
RUN_LIMIT_S = 300.0
"""Seconds without progress after which a run counts as hung."""
DETERMINISTIC = ("puzzles/", "models/")


@dataclass
class Run:
    """One run under one store, killed now and then.

    Attributes:
        arguments: Recipe and profile, as `train` takes them.
        longest_wait_s: Seconds between two kills, at most.
        deterministic: Beginnings of the keys of artifacts that do not depend on sampling.
        left_s: Longest time in seconds from the end of a command to that of the last process that it started.
        left_last: Command lines of the processes that were left then.
        log_mode: Whether the log holds the output of all commands (`ab`) or of the present one (`wb`).
    """

    log_mode: ClassVar[Literal["ab", "wb"]] = "ab"

    folder: Path
    generator: random.Random
    arguments: tuple[str, ...] = TINY_RUN
    kills: Counter[str] = field(default_factory=Counter[str])
    starts: int = 0
    seen: dict[str, str] = field(default_factory=dict[str, str])
    shards: set[str] = field(default_factory=set[str])
    longest_wait_s: float = LONGEST_WAIT_S
    deterministic: tuple[str, ...] = DETERMINISTIC
    left_s: float = 0.0
    left_last: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        self.descendants = Descendants(MARK, self.folder)

    @property
    def store(self) -> Path:
        """The folder of its artifacts."""
        return self.folder / "store"

    @property
    def scratch(self) -> Path:
        """TMPDIR of its processes, beside its folder, because what changes there is no progress."""
        return self.folder.with_name(f"{self.folder.name}-scratch")

    @property
    def url(self) -> str:
        """Address of the store."""
        return str(self.store)

    @property
    def environment(self) -> dict[str, str]:
        """Variables of the command."""
        return {**os.environ, MARK: str(self.folder), "TMPDIR": str(self.scratch)}

    @property
    def begun(self) -> bool:
        """Whether there is a store."""
        return self.store.is_dir() and any(self.store.iterdir())

    def opened(self) -> Store:
        """Opens the store, which exists."""
        return Store.open(self.url, writable=False)

    @property
    def command(self) -> list[str]:
        """The words of the command."""
        return ["train", *self.arguments, "--store", self.url, "--json"]

    def start(self) -> subprocess.Popen[bytes]:
        """Starts the command as a user would."""
        self.starts += 1
        self.scratch.mkdir(exist_ok=True)
        with (self.folder / "log.txt").open(self.log_mode) as log:
            return subprocess.Popen(
                [DEERSTALKER, *self.command], stdout=subprocess.DEVNULL, stderr=log, start_new_session=True,
                env=self.environment, cwd=self.folder,
            )  # fmt: skip

    def processes(self) -> dict[int, str]:
        """Live processes that descend from this run, wherever they are now, by command line."""
        return self.descendants.living()

    def disturb(self, kills: int) -> None:
        """Kills something at random moments, starting the command again whenever it has ended, and lets it finish.

        Raises:
            AssertionError: See `let_finish`.
        """
        process = self.start()
        for _ in range(kills):
            try:
                process.wait(self.generator.uniform(0.2, self.longest_wait_s))
                self.nothing_is_left()
                if process.returncode == 0:
                    return
                process = self.start()
            except subprocess.TimeoutExpired:
                self.kill_one(process)
        self.let_finish(process)

    def let_finish(self, process: subprocess.Popen[bytes]) -> None:
        """Lets the run finish, and starts its command again if kills have ended it.

        Raises:
            AssertionError: The run does not finish, or leaves a process behind.
        """
        for _ in range(2):  # a run ends if the kills have used up its retries; it is then started once more
            self.wait_for_end(process)
            self.nothing_is_left()
            if process.returncode == 0:
                return
            process = self.start()
        raise AssertionError(f"it does not finish:\n{self.tail()}")

    def victims(self, lines: dict[int, str]) -> dict[str, list[int]]:
        """Ids of the processes of each kind."""
        return {name: [pid for pid, line in lines.items() if part in line] for name, part in VICTIMS.items()}

    def kill_one(self, flow: subprocess.Popen[bytes]) -> None:
        """Kills the flow or one of its living processes; all kinds are equally likely."""
        lines = self.processes()
        living = {**self.victims(lines), "flow": [flow.pid]}
        known = {pid for pids in living.values() for pid in pids}
        living["another one"] = [pid for pid in lines if pid not in known]  # forkservers and what they forked
        name = self.generator.choice([name for name, pids in living.items() if pids])
        self.kill(name, self.generator.choice(living[name]))

    def kill(self, name: str, pid: int) -> None:
        """Notes the stored artifacts and shards, then kills a process."""
        self.remember()
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        self.kills[name] += 1

    def remember(self) -> None:
        """Notes the artifacts and shards that are stored now; none may change afterwards."""
        if not self.begun:
            return
        for key, manifest in self.manifests().items():
            assert self.seen.setdefault(key, manifest.attempt) == manifest.attempt, f"{key} was made again"
        keys = self.opened().list("runs")
        self.shards |= {key.rpartition("/")[2] for key in keys if "/rollouts/" in key and key.endswith(".parquet")}

    def manifests(self) -> dict[str, Manifest]:
        """Every artifact by key."""
        return manifests_of(self.opened())

    def nothing_is_left(self) -> None:
        """Waits until all processes that the command started have ended, and notes how long that takes."""
        last: dict[int, str] = {}

        def all_ended() -> bool:
            nonlocal last
            living = self.processes()
            last = living or last
            return not living

        left_s = wait_until(all_ended, LEFT_LIMIT_S, self.processes, 0.05)
        if left_s > self.left_s:
            self.left_s, self.left_last = left_s, [line[:300] for line in last.values()]

    def wait_for_end(self, process: subprocess.Popen[bytes]) -> None:
        """Waits until a command ends.

        Raises:
            AssertionError: It hangs.
        """
        wait_until(lambda: process.poll() is not None, RUN_LIMIT_S, self.tail, 0.1, self.progress)

    def progress(self) -> object:
        """Returns what changes while the run makes progress: its log, and its store where that is a folder."""
        return changes(self.folder)

    def tail(self) -> str:
        """Returns the end of the command's log."""
        return (self.folder / "log.txt").read_text(errors="replace")[-3000:]

    def check(self, undisturbed: dict[str, str]) -> None:
        """Compares the finished run with everything noted on the way, and with an undisturbed run."""
        self.remember()
        assert not self.seen.keys() - self.manifests().keys(), "an artifact is gone"
        assert self.digests() == undisturbed
        rollouts = [manifest for manifest in self.manifests().values() if manifest.kind == "Rollouts"]
        stored = {name for manifest in rollouts for name in manifest.files}
        assert self.shards <= stored, f"sampled twice: {self.shards - stored}"
        assert verify(self.opened()).damaged == []
        folders = {name for name in self.scratch_folders() if not self._keeps_logs(self.scratch / name)}
        assert not folders, f"folders are left over: {folders}"

    def _keeps_logs(self, folder: Path) -> bool:
        """Returns whether a command that failed has kept its logs and nothing else, for whoever reads its error."""
        owner = folder / _OWNER
        files = {path for path in folder.rglob("*") if path.is_file()} - {owner}
        kept = owner.is_file() and owner.read_bytes() == _LOGS_KEPT
        return kept and all(path.suffix in _LOG_SUFFIXES for path in files)

    def scratch_folders(self) -> set[str]:
        """Names of the scratch folders that are left."""
        return {path.name for path in self.scratch.glob("*") if path.name.startswith(_PREFIXES)}

    def digests(self) -> dict[str, str]:
        """Content digests of the artifacts that do not depend on sampling."""
        return {key: found.digest for key, found in self.manifests().items() if key.startswith(self.deterministic)}
