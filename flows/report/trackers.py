"""Trackers: W&B or TensorBoard, chosen by the profile's `tracker`. They are optional views and decide nothing."""

import hashlib
import importlib
import importlib.util
import json
import os
import time
from collections.abc import Generator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from artifacts.errors import SEE_DOCTOR, BadInputError
from artifacts.local.input_files import with_home
from artifacts.store.location import DATA_FOLDER
from artifacts.store.store import Store
from flows.orchestration.artifact_keys import slug
from stages.context import Profile

PROJECT = "deerstalker"
"""The W&B project, unless WANDB_PROJECT is set."""


class Tracker(Protocol):
    """Receives the figures of a run, iteration by iteration. A continued run sends its earlier iterations again."""

    def log(self, iteration: int, figures: Mapping[str, float]) -> None:
        """Receives the figures of one iteration."""
        ...

    def conclude(self, figures: Mapping[str, float]) -> None:
        """Receives the figures of the whole run."""
        ...

    def close(self) -> None:
        """Writes figures that are still buffered, and closes the tracker."""
        ...


@contextmanager
def open_tracker(
    profile: Profile, store: Store, run: str, recipe: Mapping[str, Any], refreshes: int = 0
) -> Generator[Tracker | None]:
    """Opens the profile's tracker, if it names one, and closes it at the end.

    Call it before the work, so that its errors come early.

    Args:
        profile: Names the tracker, and optionally the folder of its files.
        store: If it is a directory, its folder `trackers` is the default for these files.
        run: Name of the run.
        recipe: The settings to record.
        refreshes: Number of requests to refresh stages of the run so far, after each of which figures may differ.

    Raises:
        BadInputError: Its package is not installed, or W&B refuses the run or has neither a key nor offline mode.
    """
    if profile.tracker == "none":
        yield None
        return
    if importlib.util.find_spec(profile.tracker) is None:
        raise BadInputError(
            f"tracker {profile.tracker!r}", "its package is not installed", f"deerstalker[{profile.tracker}]",
            f"run `uv sync --extra {profile.tracker}`, or set the profile's tracker to none; {SEE_DOCTOR}",
        )  # fmt: skip
    chosen = profile.tracker_folder or store.local_path("trackers") or Path(DATA_FOLDER) / "trackers"
    folder, kind = with_home(str(chosen)).resolve(), {"tensorboard": _TensorBoard, "wandb": _WeightsAndBiases}
    with closing(kind[profile.tracker](folder, _Tracked(run, store.url, refreshes), recipe)) as tracker:
        yield tracker


@dataclass(frozen=True)
class _Tracked:
    """The run whose figures are sent. Its name is unique in its store only."""

    name: str
    store_url: str
    refreshes: int

    @property
    def key(self) -> str:
        """A name that no run of another store has."""
        return f"{slug(self.name)}_{hashlib.sha256(self.store_url.encode()).hexdigest()[:8]}"


class _TensorBoard:
    """Event files in a folder of the run, written without TensorFlow or torch."""

    def __init__(self, folder: Path, run: _Tracked, recipe: Mapping[str, Any]) -> None:
        from tensorboard.plugins.text.summary_v2 import text_pb
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event: Any = importlib.import_module("tensorboard.compat.proto.event_pb2")
        self._summary: Any = importlib.import_module("tensorboard.compat.proto.summary_pb2")
        (folder / run.key).mkdir(parents=True, exist_ok=True)
        self._writer = EventFileWriter(str(folder / run.key))
        # A continued run sends its iterations again; this event makes readers drop them from earlier files.
        self._add(0, session_log=self._event.SessionLog(status=self._event.SessionLog.START))
        settings = "\n".join(f"    {line}" for line in json.dumps(recipe, indent=2, ensure_ascii=False).splitlines())
        self._add(0, summary=text_pb("recipe", settings))

    def log(self, iteration: int, figures: Mapping[str, float]) -> None:
        values = [self._summary.Summary.Value(tag=name, simple_value=value) for name, value in figures.items()]
        self._add(iteration, summary=self._summary.Summary(value=values))
        self._writer.flush()

    def conclude(self, figures: Mapping[str, float]) -> None:
        self.log(0, figures)

    def close(self) -> None:
        self._writer.close()

    def _add(self, step: int, **content: Any) -> None:
        self._writer.add_event(self._event.Event(wall_time=time.time(), step=step, **content))


class _WeightsAndBiases:
    """A W&B run whose id is made from run and store, so that a continued run continues it; WANDB_* variables apply.

    W&B keeps the first values of a step and drops later ones. So each request to refresh stages begins another W&B run
    in the group of the first, which receives all iterations with their new values.
    """

    def __init__(self, folder: Path, run: _Tracked, recipe: Mapping[str, Any]) -> None:
        import wandb

        settings = wandb.Settings(silent=True, console="off")
        mode = os.environ.get("WANDB_MODE") or wandb.setup(settings).settings.mode
        is_offline = mode in {"offline", "disabled"}
        if not is_offline and not wandb.login(prompt=False):
            raise BadInputError(
                "tracker 'wandb'", "no API key", "a key, or offline mode",
                "set WANDB_API_KEY, or WANDB_MODE=offline and later `wandb sync`",
            )  # fmt: skip
        folder.mkdir(parents=True, exist_ok=True)
        try:
            self._run = wandb.init(
                project=os.environ.get("WANDB_PROJECT") or PROJECT,
                id=run.key + (f"_refresh_{run.refreshes}" if run.refreshes else ""),
                name=run.name + (f", refresh {run.refreshes}" if run.refreshes else ""),
                group=os.environ.get("WANDB_RUN_GROUP") or run.name,
                dir=folder,
                config=dict(recipe),
                mode="disabled" if mode == "disabled" else "offline" if is_offline else "online",
                resume=None if is_offline else "allow",
                settings=settings,
            )
        except wandb.Error as error:
            message = " ".join(str(error).split())
            raise BadInputError(
                "tracker 'wandb'", message, "a W&B run", "correct this, or set the profile's tracker to none"
            ) from error

    def log(self, iteration: int, figures: Mapping[str, float]) -> None:
        self._run.log(dict(figures), step=iteration)

    def conclude(self, figures: Mapping[str, float]) -> None:
        self._run.summary.update(dict(figures))

    def close(self) -> None:
        self._run.finish()
