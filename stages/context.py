"""What a stage is handed besides config and refs: the store, the circumstances, and the two child processes."""

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from pydantic import Field

from artifacts.config import Config
from artifacts.reading import Artifact
from artifacts.refs import Ref
from artifacts.slot import Attempt
from artifacts.store import Store
from stages.processes import Pool
from stages.sampling import access, placement
from stages.sampling.config import EngineHardware
from stages.sampling.engine import Engine
from stages.training.gang import Gang
from stages.training.job import TrainHardware
from stages.transfers import ProgressReport, watched


class Profile(Config):
    """Circumstance: what the machine offers. Never part of an identity, so that changing it loses nothing."""

    engine: EngineHardware = Field(default_factory=EngineHardware)
    trainer: TrainHardware = Field(default_factory=TrainHardware)
    workers: int | None = Field(
        default=None,
        ge=1,
        le=4096,
        description="Processes that generate puzzles; null = one for each core that may be used.",
    )
    retries: int = Field(
        default=2, ge=0, le=100, description="How often a stage is tried again after a transient failure."
    )
    retry_delay_s: float = Field(
        default=5.0, ge=0, le=1e6, description="Wait before the first retry; it doubles each time."
    )
    stage_timeout_s: float = Field(
        default=24 * 3600.0,
        gt=0,
        le=1e8,
        description="A stage that takes longer fails; a wait for a GPU slot is not counted.",
    )
    gpu_slot: str | None = Field(
        default=None, description="Prefect's global concurrency limit that engine and trainer wait for; null = none."
    )
    gpu_slot_spans: Literal["run", "stage"] = Field(
        default="run",
        description="How long a slot is held: to the end of the run, with engine and trainer kept warm, or stage by "
        "stage, with both ended behind each so that other runs get their turn.",
    )
    tracker: Literal["none", "wandb", "tensorboard"] = Field(
        default="none", description="Where figures go besides Prefect; the package comes with the extra of this name."
    )
    tracker_folder: str | None = Field(
        default=None, description="Local folder of the tracker's files; by default `trackers` in a directory store."
    )
    store_link: str | None = Field(
        default=None,
        pattern=r"^https?://.*\{key\}",
        description="Web address of an object of the store, `{key}` standing for its key; Prefect's pages link to it.",
    )


class StageContext:
    """The hands of a stage. Engine and gang start when first used and live until `close`.

    Attributes:
        store: Where artifacts are read and published.
        scratch: Local folder for working files; empty of anything that must survive.
        downloads: Local copies of artifacts, by content digest.
        profile: The circumstances.
        progress: Told `(label, done, total, figures)` by the long stages.
        log: Where stages log.
        use_gpu: Called before the engine or the trainer is used; may wait for a turn.
        pool: Processes for work in pure Python; they end with this one, however it ends.

    Raises:
        BadInputError: The profile asks for more engines than the machine has room for, or the key of engines that run
            elsewhere is missing.
    """

    def __init__(
        self,
        store: Store,
        scratch: Path,
        profile: Profile,
        progress: ProgressReport,
        log: logging.Logger | logging.LoggerAdapter[logging.Logger],
        use_gpu: Callable[[], None] = lambda: None,
    ) -> None:
        placement.check(profile.engine)
        access.check(profile.engine)
        self._use_gpu = use_gpu
        self._engine: Engine | None = None
        self._gang: Gang | None = None
        self.store, self.scratch, self.profile, self.progress, self.log = store, scratch, profile, progress, log
        self.downloads = scratch / "downloads"
        self.downloads.mkdir(parents=True, exist_ok=True)
        self.pool = Pool(profile.workers)

    @property
    def engine(self) -> Engine:
        """The sampling engine; a child process from the first `ensure` on."""
        self._use_gpu()
        return self._any_engine()

    def _any_engine(self) -> Engine:
        if self._engine is None:
            self._engine = Engine(self.profile.engine, self.scratch / "engine")
        return self._engine

    @property
    def gang(self) -> Gang:
        """The trainer processes; children from the first job on."""
        self._use_gpu()
        if self._gang is None:
            self._gang = Gang(self.profile.trainer, self.profile.trainer.shared_dir or self.scratch / "gang")
        return self._gang

    def local_folder(self, ref: Ref[Any]) -> Path:
        """A local folder with an artifact's files, each verified (see `artifacts.reading.Artifact.local_folder`)."""
        watch = watched(f"fetching {ref.kind}", self.progress)
        return Artifact.open(self.store, ref).local_folder(self.downloads, watch)

    def folder(self, attempt: Attempt[Any]) -> AbstractContextManager[Path]:
        """An empty local folder whose files become an attempt's (see `artifacts.slot.Attempt.folder`)."""
        return attempt.folder(self.scratch, watched(f"storing {attempt.slot.kind.__name__}", self.progress))

    def abandon(self) -> None:
        """Makes a stage that samples in another thread fail at once; to be followed by `close`."""
        self._any_engine().retire()  # without waiting for a GPU: it may be what the other thread waits for

    def close(self, *, at_once: bool = False) -> None:
        """Ends the child processes that were started; the next use of one starts it anew.

        Args:
            at_once: Kill them: somebody waits for the end of this process.
        """
        if at_once:
            self.pool.kill()
        else:
            self.pool.close()
        engine, gang, self._engine, self._gang = self._engine, self._gang, None, None
        if engine:
            engine.stop(at_once=at_once)
        if gang:
            gang.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(at_once=kind is not None and not issubclass(kind, Exception))
