"""A run that samples ahead, killed while it samples and trains, goes on in two commands, one for each half."""

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from artifacts.layout import MANIFEST_NAME, RunLayout
from artifacts.reading import Artifact
from artifacts.store.store import Store
from artifacts.verification import verify
from tests.support.installed import ONE_ENGINE, SLOWLY, TINY
from tests.support.processes import DEERSTALKER
from tests.support.tiny_runs import AHEAD
from tests.support.waiting import changes, wait_until

LAYOUT = RunLayout("ahead")
LIMIT_S = 600.0
EXECUTED = re.compile(r"^([a-z]+-[0-9]{4}) +[0-9.]+ s$", re.MULTILINE)
"""A line about a stage that was not found in the store."""


class Commands:
    """Commands of one run in one store."""

    def __init__(self, folder: Path, prefect_api_url: str) -> None:
        self.folder, self.store = folder, folder / "store"
        self.environment = {**os.environ, "PREFECT_API_URL": prefect_api_url}

    def start(self, role: str) -> subprocess.Popen[bytes]:
        """Starts the command as a user would; its log is `ROLE.txt`."""
        command = [DEERSTALKER, "train", "--recipe", str(TINY), "--json"]
        command += ["--run", LAYOUT.run, "--profile", str(ONE_ENGINE), "--set-profile", SLOWLY]
        command += ["--store", str(self.store), "--role", role]
        command += [word for setting in AHEAD for word in ("--set", setting)]
        with (self.folder / f"{role}.txt").open("wb") as log:
            return subprocess.Popen(
                command, stdout=subprocess.DEVNULL, stderr=log, start_new_session=True, env=self.environment
            )

    def end(self, process: subprocess.Popen[bytes]) -> None:
        """Waits until a command succeeds."""
        wait_until(lambda: process.poll() is not None, LIMIT_S, self.said, 0.1, lambda: changes(self.folder))
        assert process.returncode == 0, self.said()

    def said(self) -> str:
        """The commands' last words."""
        return "\n".join(path.read_text(errors="replace")[-2000:] for path in self.folder.glob("*.txt"))

    def executed(self, role: str) -> set[str]:
        """The stages that a command executed."""
        return set(EXECUTED.findall((self.folder / f"{role}.txt").read_text(errors="replace")))

    def part(self, n: int, part: str) -> Path:
        """Folder of an artifact."""
        return self.store / LAYOUT.iteration(n, part)

    def manifests(self) -> dict[Path, bytes]:
        """The manifest of every artifact."""
        return {path: path.read_bytes() for path in self.store.rglob(MANIFEST_NAME)}


@pytest.mark.release
def test_a_run_that_is_killed_while_it_samples_ahead_loses_nothing(tmp_path: Path, prefect_api_url: str) -> None:
    commands = Commands(tmp_path, prefect_api_url)
    process = commands.start("both")

    def both_halves_run() -> bool:
        assert process.poll() is None, commands.said()
        shards = any(commands.part(3, "rollouts").glob("*/*.parquet"))
        return shards and commands.part(1, "checkpoint").joinpath(MANIFEST_NAME).exists()

    wait_until(both_halves_run, LIMIT_S, commands.said, 0.01, lambda: changes(tmp_path))
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not commands.part(2, "decision").joinpath(MANIFEST_NAME).exists(), "it was over before"
    before = commands.manifests()
    shards = {path.name for path in commands.part(3, "rollouts").glob("*/*.parquet")}

    trainer, sampler = commands.start("trainer"), commands.start("sampler")
    commands.end(sampler)
    commands.end(trainer)
    after = commands.manifests()
    assert {path: after[path] for path in before} == before, "an artifact was made twice"
    assert shards <= set(Artifact.at(Store.open(str(commands.store)), LAYOUT.iteration(3, "rollouts")).manifest.files)
    assert commands.executed("sampler") <= {"sample-0003"}
    assert not {name for name in commands.executed("trainer") if name.startswith("sample")}

    commands.end(commands.start("both"))
    assert commands.executed("both") == set()
    assert commands.manifests() == after

    store = Store.open(str(commands.store), writable=False)
    assert verify(store).damaged == []
    manifests = {
        part: [Artifact.at(store, LAYOUT.iteration(n, part)).manifest for n in (1, 2, 3)]
        for part in ("rollouts", "checkpoint")
    }
    first = manifests["checkpoint"][0].inputs["weights"]
    trained = [first["digest"], *(manifest.digest for manifest in manifests["checkpoint"])]
    assert [manifest.inputs["weights"]["digest"] for manifest in manifests["checkpoint"]] == trained[:3]
    assert [manifest.inputs["weights"]["digest"] for manifest in manifests["rollouts"]] == [
        trained[0], trained[0], trained[1],
    ]  # fmt: skip
    shares = [step["sampler_ess"] for manifest in manifests["checkpoint"] for step in manifest.facts["steps"]]
    assert all(0.0 < share <= 1.0 for share in shares)
