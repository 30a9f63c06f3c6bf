"""The context of a stage: the store, the profile, and the child processes of engine and trainer."""

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Any, Literal, Self

from pydantic import Field

from artifacts.activity import doing
from artifacts.address import Attempt
from artifacts.config import Config
from artifacts.layout import RUNS
from artifacts.local.full_disk import DiskWatch
from artifacts.refs import Checkpoint, Ref
from artifacts.store.progress import ProgressReport, watched
from artifacts.store.store import Store
from stages.models.stored import local_artifact
from stages.processes.process_pool import Pool
from stages.sampling import engine_key
from stages.sampling.config import EngineHardware
from stages.sampling.engine import Engine
from stages.sampling.replicas import placement
from stages.training.worker_group.group import WorkerGroup
from stages.training.worker_group.hardware import TrainHardware

_LARGE_BYTES = 64 << 20
"""Files above this size are removed from old local copies; config and tokenizer files stay for running engines."""


class Profile(Config):
    """Settings of the machine. They are never part of an identity, so a change keeps all published artifacts valid."""

    engine: EngineHardware = Field(default_factory=EngineHardware)
    trainer: TrainHardware = Field(default_factory=TrainHardware)
    workers: int | None = Field(
        default=None,
        ge=1,
        le=4096,
        description="Number of processes that generate puzzles; null: one for each available core.",
    )
    retries: int = Field(default=2, ge=0, le=100, description="Number of retries of a stage after transient failures.")
    retry_delay_s: float = Field(
        default=5.0, ge=0, le=1e6, description="Seconds before the first retry; each further delay is twice as long."
    )
    stage_timeout_s: float = Field(
        default=24 * 3600.0,
        gt=0,
        le=1e8,
        description="Seconds after which a stage fails; a wait for a GPU slot does not count. Stages in "
        "threads have no limit: puzzles, backfill, sampling ahead, saved states.",
    )
    gpu_slot: str | None = Field(
        default=None,
        description="Name of the global concurrency limit of Prefect that engine and trainer wait for; null: none.",
    )
    gpu_slot_spans: Literal["run", "stage"] = Field(
        default="run",
        description="Time for which a slot is held: to the end of the run, with engine and trainer kept warm, or to "
        "the end of a stage, when both are stopped so that other runs can take the slot.",
    )
    tracker: Literal["none", "wandb", "tensorboard"] = Field(
        default="none",
        description="Tracker that receives figures besides Prefect; the extra of this name installs its package.",
    )
    tracker_folder: str | None = Field(
        default=None, description="Local folder of the tracker's files; null: `trackers` in a directory store."
    )
    allow_constant_reward: bool = Field(
        default=False,
        description="Continue even if all advantages of the first iteration are 0, or none of its answers could be "
        "read (32 completions or more). Without it the run stops there, because such a run usually learns nothing.",
    )
    keep_state_every: int | None = Field(
        default=None,
        ge=0,
        le=1_000_000,
        description="During a run, remove the optimizer states of its earlier iterations (policy and critic), "
        "except those whose number is a multiple of this (0: none) and those that a rollback may return to. "
        "Weights are kept. null: keep all.",
    )
    store_link: str | None = Field(
        default=None,
        pattern=r"^https?://.*\{key\}",
        description="Web address of an object of the store, with `{key}` for its key; Prefect's pages link to it.",
    )


@dataclass
class _Children:
    """Child processes that all contexts of a flow share."""

    engine: Engine | None = None
    worker_group: WorkerGroup | None = None
    lock: Lock = field(default_factory=Lock)


class StageContext:
    """The resources of a stage. Engine and trainer processes start on first use and run until `close`.

    Two stages may run in threads, each with a context of its own (`reporting_to`): one samples while the other trains.

    Attributes:
        store: Store of the artifacts.
        scratch: Local folder for working files, all of which may be lost.
        downloads: Folder of local copies of artifacts, by content digest.
        profile: Settings of the machine.
        progress: Function that long stages call with `(label, done, total, figures)`.
        log: Logger of the stages.
        pool: Processes for work in pure Python; they end with this process, however it ends.
        disks: Watches the disks to which stages and child processes write.
        sampling: Lock that a stage holds while it samples from the engine with its weights.
        starts_early: Whether engine and trainer may start before they are needed, because the flow will need both.
        trains_first: Whether the trainer works before the engine does.

    Args:
        use_gpu: Function that is called before each use of engine or trainer; it may wait for a GPU permit.
        gpu_free: Function that takes the permit if that needs no wait, and returns whether this context has it.

    Raises:
        BadInputError: The profile's engines do not fit the machine (see `placement.check`), or the key of engines that
            run elsewhere is missing.
    """

    def __init__(
        self,
        store: Store,
        scratch: Path,
        profile: Profile,
        progress: ProgressReport,
        log: logging.Logger | logging.LoggerAdapter[logging.Logger],
        use_gpu: Callable[[], object] = lambda: None,
        gpu_free: Callable[[], bool] = lambda: True,
    ) -> None:
        placement.check(profile.engine)
        engine_key.check(profile.engine)
        self._use_gpu, self._gpu_free = use_gpu, gpu_free
        self.starts_early = self.trains_first = False
        self._children = _Children()
        self.sampling = Lock()
        self.store, self.scratch, self.profile, self.progress, self.log = store, scratch, profile, progress, log
        self.downloads = scratch / "downloads"
        self.downloads.mkdir(parents=True, exist_ok=True)
        self._read, self._older = set[str](), set[str]()
        self.pool = Pool(profile.workers)
        self.disks = DiskWatch(
            folder
            for folder in (store.local_path(RUNS), scratch, profile.trainer.shared_dir, Path.home(), Path("/dev/shm"))
            if folder is not None
        )

    @property
    def engine(self) -> Engine:
        """The sampling engine; its child processes start at the first `ensure`. Ends the trainer if they take turns."""
        self._use_gpu()
        if self.profile.engine.takes_turns and self._children.worker_group is not None:
            self._children.worker_group.wait_until_written()
            self._children.worker_group.stop()
        return self._engine_without_gpu()

    def _engine_without_gpu(self) -> Engine:
        with self._children.lock:
            if self._children.engine is None:
                self._children.engine = Engine(self.profile.engine, self.scratch / "engine")
            return self._children.engine

    @property
    @doing("loading")
    def worker_group(self) -> WorkerGroup:
        """The trainer processes; they start at the first job. Puts the engine to sleep if they take turns."""
        self._use_gpu()
        children = self._children
        if self.profile.engine.takes_turns and children.engine is not None:
            children.engine.sleep()
        with children.lock:
            if children.worker_group is None:
                folder = self.profile.trainer.shared_dir or self.scratch / "worker_group"
                children.worker_group = WorkerGroup(self.profile.trainer, folder)
            return children.worker_group

    def start_engine_early(self, model_dir: Path, digest: str = "") -> None:
        """Starts the engine in the background if `starts_early` (see `Engine.prestart`).

        One that divides the free memory of its GPU at its start waits for a trainer that works first.
        """
        waits = self.trains_first and self.profile.engine.measures_memory
        if not waits and self._may_start_early():
            self._engine_without_gpu().prestart(model_dir, digest)

    def start_trainer_early(self) -> None:
        """Starts the trainer's processes in the background if `starts_early`.

        Those of several machines start with the first job, because another machine may not be there yet.
        """
        if self.profile.trainer.nodes == 1 and self._may_start_early():
            self.worker_group.start()

    def _may_start_early(self) -> bool:
        profile = self.profile
        kept = profile.gpu_slot is None or profile.gpu_slot_spans == "run"  # otherwise they end with the next stage
        return self.starts_early and kept and not profile.engine.takes_turns and self._gpu_free()

    def reporting_to(self, progress: ProgressReport) -> Self:
        """Returns a context with the same resources and child processes that reports progress to another function."""
        shown = copy(self)
        shown.progress = progress
        return shown

    def local_folder(self, ref: Ref[Any]) -> Path:
        """Returns a local folder with an artifact's verified files (see `stages.models.stored.local_artifact`)."""
        watch = watched(f"fetching {ref.kind}", self.progress)
        folders = local_artifact(self.store, ref, self.downloads, watch, self.profile.trainer.shared_dir)
        self._read.update(folder.name for folder in folders)
        return folders[0]

    def remove_old_copies(self) -> None:
        """Removes weights and states from the local copies that were there at the last call and were not read since.

        Otherwise each iteration of a run with a store on S3 would leave a whole checkpoint on the disk. No stage may
        run meanwhile. A copy that is read again is downloaded again.
        """
        present = {path.name for path in self.downloads.iterdir()}
        for name in self._older - self._read:
            for path in (self.downloads / name).rglob("*"):
                if path.is_file() and path.stat().st_size > _LARGE_BYTES:
                    path.unlink()
        self._older.clear()
        self._older.update(present)
        self._read.clear()

    def folder(self, attempt: Attempt[Any]) -> AbstractContextManager[Path]:
        """Returns a context manager that yields an empty folder for the attempt's files (see `Attempt.folder`).

        A local copy of a checkpoint stays, because the engines read it next.
        """
        kind = attempt.address.kind
        keep = self.downloads if issubclass(kind, Checkpoint) else None
        return attempt.folder(self.scratch, watched(f"storing {kind.__name__}", self.progress), keep=keep)

    def abandon(self) -> None:
        """Ends the engines, so that a stage that samples in another thread fails at once. Call `close` afterwards."""
        self._engine_without_gpu().retire()  # the other thread may be waiting in `use_gpu`

    def abandon_training(self) -> None:
        """Ends the trainer and its transfers at once, so that a state that is being saved in another thread is lost."""
        with self._children.lock:
            worker_group = self._children.worker_group
        if worker_group:
            worker_group.stop()
        self.store.abandon()

    def close(self, *, at_once: bool = False) -> None:
        """Ends the child processes. The next use of one starts it again.

        Args:
            at_once: Kill the pool and the engines instead of stopping them, and do not wait until the trainer has
                written its state, because this process must end soon.
        """
        if at_once:
            self.pool.kill()
        else:
            self.pool.close()
        with self._children.lock:
            engine, worker_group = self._children.engine, self._children.worker_group
            self._children.engine = self._children.worker_group = None
        if engine:
            engine.stop(at_once=at_once)
        if worker_group:
            if not at_once:
                worker_group.wait_until_written()
            worker_group.stop()

    def __enter__(self) -> Self:
        self.disks.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.disks.__exit__(kind, error, trace)
        self.close(at_once=kind is not None and not issubclass(kind, Exception))
