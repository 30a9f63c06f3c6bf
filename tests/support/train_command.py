"""The command `deerstalker train`, started as a user would start it, killed on the way, and started again."""

import json
import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from artifacts.layout import MANIFEST_NAME
from artifacts.manifest import Manifest
from tests.support.installed import ONE_ENGINE, SLOWLY, TINY
from tests.support.processes import DEERSTALKER
from tests.support.waiting import changes, output_of, wait_until

LIMIT_S = 300.0
"""Seconds without progress after which a command counts as hung."""


class TrainCommand:
    """The command of one run of the tiny recipe. Nothing that a killed command has published may be made again.

    Args:
        folder: Holds the store, in `store`, and the command's log.
        run: Name of the run.
        prefect_api_url: Address of the Prefect server to which the command reports.
        settings: Changes of the recipe.
        profile_settings: Changes of the profile, which has one engine.
    """

    def __init__(
        self,
        folder: Path,
        run: str,
        prefect_api_url: str,
        settings: Sequence[str] = (),
        profile_settings: Sequence[str] = (),
    ) -> None:
        self.folder, self.store, self.log = folder, folder / "store", folder / f"{run}.txt"
        self.seen: dict[str, str] = {}
        self._environment = {**os.environ, "PREFECT_API_URL": prefect_api_url}
        where = ["--recipe", str(TINY), "--run", run, "--profile", str(ONE_ENGINE), "--store", str(self.store)]
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
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
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
        """Returns the manifest of every artifact of the store, by key."""
        paths = {str(path.parent.relative_to(self.store)): path for path in self.store.rglob(MANIFEST_NAME)}
        return {key: Manifest.from_bytes(path.read_bytes(), key) for key, path in paths.items()}

    def _check_kept(self) -> None:
        """Notes the artifacts of the store; those noted before must be unchanged. Step checkpoints come and go."""
        attempts = {key: item.attempt for key, item in self.manifests().items() if "/progress-" not in key}
        assert {key: attempts.get(key) for key in self.seen} == self.seen, "an artifact was made again"
        self.seen = attempts
