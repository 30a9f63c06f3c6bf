"""Calls stages inside a flow, as Prefect tasks."""

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from functools import partial
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast

from artifacts.address import ArtifactAddress
from artifacts.errors import DeerstalkerError
from artifacts.refs import K
from flows.orchestration.gpu_permit import GpuPermit
from flows.orchestration.tasks import MappedStage, as_task, map_as_tasks
from flows.session.saving import Future, LastStageDone, SavedStates
from flows.session.views import ProgressView
from stages.context import StageContext
from stages.optional.value import Valued
from stages.training.launch import Weights
from stages.training.saved_state import save_state


class Reusable(Protocol):
    """The result of a stage: an artifact that was found in the store or made."""

    @property
    def reused(self) -> bool: ...


P = ParamSpec("P")
R = TypeVar("R", bound=Reusable)
ConfigT = TypeVar("ConfigT")


class Stages:
    """Calls stages inside a flow.

    Attributes:
        ctx: The context that every stage gets.
        live: The display of the flow's progress.
        permit: The permit to use a GPU, if the profile names a limit.
        states: The optimizer states that are being saved.
        last_task_run: Name of the task run after which `LastStageDone` is raised; None runs to the end.
    """

    last_task_run: str | None = None

    def __init__(self, ctx: StageContext, live: ProgressView, permit: GpuPermit) -> None:
        self.ctx, self.live, self.permit = ctx, live, permit
        self.states = SavedStates(ctx)

    def address(self, key: str, kind: type[K], label: str = "") -> ArtifactAddress[K]:
        """Returns an address in the store; the name of the task run that publishes there ends in the label."""
        return ArtifactAddress(self.ctx.store, key, kind, label=label)

    def run(self, stage: Callable[Concatenate[StageContext, P], R], *inputs: P.args, **keywords: P.kwargs) -> R:
        """Runs a stage as a Prefect task, and returns its result.

        The task is retried after transient failures. It ends in `Cached` if the artifact was published before. There is
        no task run if the address `must_exist` and the artifact exists: a task run costs ten times as much as a lookup.

        Args:
            stage: A function of `stages`; its keyword `out` is the address of its artifact.
            *inputs: Its config and its input refs. Prefect shows them as the task run's parameters.
            **keywords: Its addresses and numbers.

        Raises:
            LastStageDone: It is the stage that `last_task_run` names.
            Exception: The stage's own error, after the retries that the profile allows for transient errors.
        """
        label = cast(ArtifactAddress[Any], keywords["out"]).label
        name = task_run_name(stage.__name__, label)
        result = self._run(name, stage, inputs, keywords)
        if (trained := _trained(result)) and trained.saving is not None:
            submit = partial(self._save_state, label)
            self.states.save(trained, submit, lambda: _trained(self._run(name, stage, inputs, keywords)) or trained)
        if name == self.last_task_run:
            raise LastStageDone
        return result

    def _run(self, name: str, stage: Callable[..., R], inputs: tuple[object, ...], keywords: Mapping[str, Any]) -> R:
        with suppress(DeerstalkerError):  # in the task below, errors are shown as those of the stage
            if keywords["out"].must_exist:
                return stage(self.ctx, *inputs, **keywords)
        keywords = _that_may_be_made(keywords)
        task = as_task(name, self.ctx, stage, keywords)
        self.live.stage_started(name)
        started = time.perf_counter()
        try:
            result: R = task(*inputs, return_state=True).result()
        finally:
            self.permit.stage_ended()
        self.live.stage_finished(name, time.perf_counter() - started, result.reused)
        return result

    def _save_state(self, label: str, trained: Weights) -> Future:
        """Publishes the optimizer state of weights in another thread, while later stages use the weights."""
        saving = trained.saving
        assert saving is not None
        name = task_run_name(f"save_{saving.key.rpartition('/')[2]}", label)
        task = as_task(name, self.ctx, save_state, {"saving": saving}, in_thread=True, retried=False)
        started, future = time.perf_counter(), task.submit(trained.checkpoint)

        def show(_: object) -> None:
            if not future.state.is_failed():
                self.live.stage_finished(name, time.perf_counter() - started, reused=False)

        future.add_done_callback(show)
        return future

    @contextmanager
    def alongside(
        self, stage: Callable[Concatenate[StageContext, P], R], *inputs: P.args, **keywords: P.kwargs
    ) -> Generator[None]:
        """Runs a stage as a Prefect task in another thread while the block runs, and waits for its end.

        If the block fails, the stage and the engines are ended at once, and the flow must end. The arguments are those
        of `run`.

        Raises:
            Exception: The error of the block, or else the stage's own.
        """
        name = task_run_name(stage.__name__, cast(ArtifactAddress[Any], keywords["out"]).label)
        started = time.perf_counter()
        future = as_task(name, self.ctx, stage, _that_may_be_made(keywords), in_thread=True).submit(*inputs)
        ended_at: list[float] = []
        future.add_done_callback(lambda _: ended_at.append(time.perf_counter()))
        try:
            yield
            result: R = future.result()
        except BaseException:
            self.ctx.abandon()
            self.permit.abandon()
            future.wait()
            raise
        self.live.stage_finished(name, next(iter(ended_at), time.perf_counter()) - started, result.reused)

    def map(
        self,
        stage: MappedStage[ConfigT, K, R],
        configs: Sequence[ConfigT],
        *,
        label: str,
        out: Callable[[ConfigT], ArtifactAddress[K]],
        meanwhile: Callable[[], None] = lambda: None,
    ) -> list[R]:
        """Runs a stage with each config as mapped Prefect tasks in parallel; returns the results in the configs' order.

        Args:
            label: Added to the stage's name in each task run's name; `{config}` stands for the config.
            out: Returns the address for the artifact of a config.
            meanwhile: Called once while the tasks run.

        Raises:
            Exception: The error of `meanwhile`, or else of the first task, in order, that failed.
        """
        name = stage.__name__
        self.live.stage_started(name)
        started, ended_at = time.perf_counter(), list[float]()
        futures = map_as_tasks(stage, configs, run_name=f"{name}-{label}", ctx=self.ctx, out=out)
        for future in futures:
            future.add_done_callback(lambda _: ended_at.append(time.perf_counter()))
        meanwhile()
        results: list[R] = []
        for future in futures:
            results.append(future.result())
            self.live.progress(name, len(results), len(configs), {})
        seconds = max(ended_at, default=time.perf_counter()) - started
        self.live.stage_finished(name, seconds, all(result.reused for result in results))
        return results


def _trained(result: object) -> Weights | None:
    """Returns the weights in the result of a stage that trains; None for other results."""
    if isinstance(result, Valued):
        return result.critic
    return result if isinstance(result, Weights) else None


def _that_may_be_made(keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the keywords of a stage with addresses where it may make its artifacts."""
    made = dict(keywords)
    for name, value in keywords.items():
        if isinstance(value, ArtifactAddress):
            made[name] = copy(cast(ArtifactAddress[Any], value))
            made[name].must_exist = False
    return made


def task_run_name(stage: str, label: str) -> str:
    """Returns the name of a stage's task run."""
    return f"{stage}-{label}" if label else stage
