"""What a stage is handed besides config and refs: the store, the circumstances, and the two child processes."""

import logging
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field

from artifacts.reading import Artifact
from artifacts.refs import Ref
from artifacts.slot import Attempt
from artifacts.store import Store
from stages.processes import end_with_parent
from stages.sampling.config import EngineHardware
from stages.sampling.engine import Engine
from stages.training.gang import Gang
from stages.training.job import TrainHardware
from stages.transfers import ProgressReport, watched


class Profile(BaseModel):
    """Circumstance: what the machine offers. Never part of an identity, so that changing it loses nothing."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    engine: EngineHardware = Field(default_factory=EngineHardware)
    trainer: TrainHardware = Field(default_factory=TrainHardware)
    workers: int = Field(default=2, ge=1, description="Processes that generate puzzles.")
    retries: int = Field(default=2, ge=0, description="How often a stage is tried again after a transient failure.")
    retry_delay_s: float = Field(default=5.0, ge=0, description="Wait before the first retry; it doubles each time.")
    stage_timeout_s: float = Field(default=24 * 3600.0, gt=0, description="A stage that takes longer fails.")


class StageContext:
    """The hands of a stage. Engine and gang start when first used and live until `close`.

    Attributes:
        store: Where artifacts are read and published.
        scratch: Local folder for working files; empty of anything that must survive.
        downloads: Local copies of artifacts, by content digest.
        profile: The circumstances.
        progress: Told `(label, done, total, figures)` by the long stages.
        log: Where stages log.
    """

    def __init__(
        self,
        store: Store,
        scratch: Path,
        profile: Profile,
        progress: ProgressReport,
        log: logging.Logger | logging.LoggerAdapter[logging.Logger],
    ) -> None:
        self.store, self.scratch, self.profile, self.progress, self.log = store, scratch, profile, progress, log
        self.downloads = scratch / "downloads"
        self.downloads.mkdir(parents=True, exist_ok=True)

    @cached_property
    def engine(self) -> Engine:
        """The sampling engine; a child process from the first `ensure` on."""
        return Engine(self.profile.engine, self.scratch / "engine")

    @cached_property
    def gang(self) -> Gang:
        """The trainer processes; children from the first job on."""
        return Gang(self.profile.trainer, self.profile.trainer.shared_dir or self.scratch / "gang")

    @cached_property
    def pool(self) -> ProcessPoolExecutor:
        """Processes for work in pure Python; they end with this one, however it ends."""
        # Not forked from this process, which has threads; the server that forks them ends when this process does.
        context = multiprocessing.get_context("forkserver")
        return ProcessPoolExecutor(self.profile.workers, mp_context=context, initializer=end_with_parent)

    def drop_pool(self) -> None:
        """Ends the pool; the next use of it starts another."""
        if pool := self.__dict__.pop("pool", None):
            pool.shutdown(wait=False, cancel_futures=True)

    def local_folder(self, ref: Ref[Any]) -> Path:
        """A local folder with an artifact's files, each verified (see `artifacts.reading.Artifact.local_folder`)."""
        watch = watched(f"fetching {ref.kind}", self.progress)
        return Artifact.open(self.store, ref).local_folder(self.downloads, watch)

    def folder(self, attempt: Attempt[Any]) -> AbstractContextManager[Path]:
        """An empty local folder whose files become an attempt's (see `artifacts.slot.Attempt.folder`)."""
        return attempt.folder(self.scratch, watched(f"storing {attempt.slot.kind.__name__}", self.progress))

    def close(self) -> None:
        """Ends the child processes that were started."""
        self.drop_pool()
        for name in ("engine", "gang"):
            if name in self.__dict__:
                self.__dict__.pop(name).stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
