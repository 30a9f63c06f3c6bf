"""The command `deerstalker train`, started as a user would start it, killed on the way, and started again."""

import json
import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from artifacts.manifest import Manifest
from artifacts.store.store import Store
from tests.support.installed import MARK, ONE_ENGINE, SLOWLY, TINY
from tests.support.processes import DEERSTALKER, Descendants
from tests.support.stored import manifests_of
from tests.support.waiting import changes, output_of, wait_until

LIMIT_S = 300.0
"""Seconds without progress after which a command counts as hung."""


class TrainCommand:
    """The command of one run. Nothing that a killed command has published may be made again.

    Args:
        folder: Holds the store, in `store`, and the command's log.
        run: Name of the run.
        settings: Changes of the recipe.
        profile_settings: Changes of the profile, which has one engine.
        recipe: Name or path of the recipe, by default the tiny one.
        **variables: Of the environment, such as the Prefect server to which the command reports; without one it starts
            its own.
    """

    def __init__(
        self,
        folder: Path,
        run: str,
        settings: Sequence[str] = (),
        profile_settings: Sequence[str] = (),
        recipe: str = str(TINY),
        **variables: str,
    ) -> None:
        self.folder, self.store, self.log = folder, folder / "store", folder / f"{run}.txt"
        self.seen: dict[str, str] = {}
        self._environment = {**os.environ, MARK: str(folder), **variables}
        self._descendants = Descendants(MARK, folder)
        where = ["--recipe", recipe, "--run", run, "--profile", str(ONE_ENGINE), "--store", str(self.store)]
        changed = [word for setting in settings for word in ("--set", setting)]
        changed += [word for setting in (SLOWLY, *profile_settings) for word in ("--set-profile", setting)]
        self._command = [DEERSTALKER, "train", *where, "--json", *changed]

    def start(self) -> subprocess.Popen[bytes]:
        """Starts the command."""
        with self.log.open("ab") as log:
            return subprocess.Popen(
                self._command, stdout=subprocess.PIPE, stderr=log, start_new_session=True, env=self._environment
            )

    def kill_when(self, reached: Callable[[], object]) -> None:
        """Starts the command, kills it as soon as `reached` returns true, and notes all that it has published.

        Raises:
            AssertionError: It ended or hung before, or made an artifact again.
        """
        process = self.start()

        def seen() -> object:
            assert process.poll() is None, self.said()
            return reached()

        wait_until(seen, LIMIT_S, self.said, 0.005, lambda: changes(self.folder))
        with process:
            process.kill()
        self._check_kept()

    def finish(self) -> dict[str, Any]:
        """Runs the command to its end and returns the document that it prints.

        Raises:
            AssertionError: It failed, or made an artifact again.
        """
        process = self.start()
        output, _ = output_of(process, LIMIT_S, self.folder)
        assert process.returncode == 0, self.said()
        self._check_kept()
        return json.loads(output)

    def refusal(self) -> str:
        """Runs the command, which must refuse its settings, and returns the last line that it prints.

        Raises:
            AssertionError: It did not end with the status of bad usage.
        """
        process = self.start()
        output_of(process, LIMIT_S, self.folder)
        assert process.returncode == 2, self.said()
        return self.said().splitlines()[-1]

    def said(self) -> str:
        """Returns the end of the log."""
        return self.log.read_text(errors="replace")[-3000:]

    def manifests(self) -> dict[str, Manifest]:
        """Returns the manifest of every artifact of the store, by key, without step checkpoints."""
        return manifests_of(Store.open(str(self.store), writable=False))

    def processes(self) -> dict[int, str]:
        """Returns the command lines of the live processes that descend from the command, by id."""
        return self._descendants.living()

    def _check_kept(self) -> None:
        """Notes the artifacts of the store; those noted before must be unchanged."""
        attempts = {key: item.attempt for key, item in self.manifests().items()}
        assert {key: attempts.get(key) for key in self.seen} == self.seen, "an artifact was made again"
        self.seen = attempts
