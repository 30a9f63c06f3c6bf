"""Trackers beside Prefect's interface: W&B or TensorBoard, by the profile's `tracker`. None is needed, none decides."""

import importlib
import importlib.util
import json
import os
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Protocol

from artifacts.errors import SEE_DOCTOR, BadInputError
from artifacts.store import Store
from flows.keys import slug
from flows.surroundings import DEFAULT_STORE
from stages.context import Profile

PROJECT = "deerstalker"
"""The W&B project, unless WANDB_PROJECT names another."""


class Tracker(Protocol):
    """Takes the figures of a run, iteration by iteration; a continued run tells them again from its first one."""

    def log(self, iteration: int, figures: Mapping[str, float]) -> None:
        """Takes the figures of one iteration."""
        ...

    def conclude(self, figures: Mapping[str, float]) -> None:
        """Takes the figures of the whole run."""
        ...

    def close(self) -> None:
        """Hands over what is still waiting."""
        ...


class _Nothing:
    def log(self, iteration: int, figures: Mapping[str, float]) -> None:
        pass

    def conclude(self, figures: Mapping[str, float]) -> None:
        pass

    def close(self) -> None:
        pass


NO_TRACKER: Tracker = _Nothing()


@contextmanager
def open_tracker(profile: Profile, store: Store, run: str, recipe: Mapping[str, Any]) -> Generator[Tracker]:
    """Opens the tracker that the profile names, before anything costs time, and closes it at the end.

    Args:
        profile: Names the tracker and its folder.
        store: A directory store keeps the tracker's files in its folder `trackers`, unless the profile names another.
        run: Name of the run.
        recipe: What is recorded as the run's settings.

    Raises:
        BadInputError: Its package is not installed, or W&B has neither a key nor offline mode.
    """
    tracker = NO_TRACKER if profile.tracker == "none" else _open(profile.tracker, _folder(profile, store), run, recipe)
    try:
        yield tracker
    finally:
        tracker.close()


def _folder(profile: Profile, store: Store) -> Path:
    beside = profile.tracker_folder or store.local_path("trackers") or Path(DEFAULT_STORE) / "trackers"
    return Path(beside).expanduser().resolve()


def _open(name: Literal["wandb", "tensorboard"], folder: Path, run: str, recipe: Mapping[str, Any]) -> Tracker:
    if importlib.util.find_spec(name) is None:
        raise BadInputError(
            f"tracker {name!r}", "its package is not installed", f"deerstalker[{name}]",
            f"run `uv sync --extra {name}`, or set the profile's tracker to none; {SEE_DOCTOR}",
        )  # fmt: skip
    return _TensorBoard(folder, run, recipe) if name == "tensorboard" else _WeightsAndBiases(folder, run, recipe)


class _TensorBoard:
    """Event files in `FOLDER/RUN`, written without TensorFlow or torch."""

    def __init__(self, folder: Path, run: str, recipe: Mapping[str, Any]) -> None:
        from tensorboard.plugins.text.summary_v2 import text_pb
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event: Any = importlib.import_module("tensorboard.compat.proto.event_pb2")
        self._summary: Any = importlib.import_module("tensorboard.compat.proto.summary_pb2")
        (folder / run).mkdir(parents=True, exist_ok=True)
        self._writer = EventFileWriter(str(folder / run))
        # A continued run tells its iterations again: readers drop what earlier files hold from this step on.
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
    """One W&B run a run, under an id of its own, so that a continued run goes on there; WANDB_* variables hold."""

    def __init__(self, folder: Path, run: str, recipe: Mapping[str, Any]) -> None:
        import wandb

        settings = wandb.Settings(silent=True, console="off")
        mode = os.environ.get("WANDB_MODE") or wandb.setup(settings).settings.mode
        away = mode in {"offline", "disabled"}
        if not away and not wandb.login(prompt=False):
            raise BadInputError(
                "tracker 'wandb'", "no API key", "a key, or offline mode",
                "set WANDB_API_KEY, or WANDB_MODE=offline and later `wandb sync`",
            )  # fmt: skip
        folder.mkdir(parents=True, exist_ok=True)
        try:
            self._run = wandb.init(
                project=os.environ.get("WANDB_PROJECT") or PROJECT,
                id=slug(run),
                name=run,
                dir=folder,
                config=dict(recipe),
                mode="disabled" if mode == "disabled" else "offline" if away else "online",
                resume=None if away else "allow",
                settings=settings,
            )
        except wandb.Error as error:
            found = " ".join(str(error).split())
            raise BadInputError(
                "tracker 'wandb'", found, "a W&B run", "mend it, or set the profile's tracker to none"
            ) from error

    def log(self, iteration: int, figures: Mapping[str, float]) -> None:
        self._run.log(dict(figures), step=iteration)

    def conclude(self, figures: Mapping[str, float]) -> None:
        self._run.summary.update(dict(figures))

    def close(self) -> None:
        self._run.finish()
