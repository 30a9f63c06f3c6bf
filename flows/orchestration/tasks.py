"""Runs stages as Prefect tasks; nothing else creates tasks."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Concatenate, Protocol, TypeVar

from prefect import Task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.futures import PrefectFuture
from prefect.states import Completed
from prefect.task_runners import ThreadPoolTaskRunner
from prefect.tasks import exponential_backoff

from artifacts.address import ArtifactAddress
from artifacts.errors import TransientError
from artifacts.refs import K
from flows.orchestration.flow_runs import forget_old_results
from flows.orchestration.progress import shown_progress
from stages.context import StageContext

R = TypeVar("R")
ConfigT = TypeVar("ConfigT")
ConfigT_contra = TypeVar("ConfigT_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)


class MappedStage(Protocol[ConfigT_contra, K, R_co]):
    """A stage whose only input is its config."""

    __name__: str

    def __call__(self, ctx: StageContext, config: ConfigT_contra, /, *, out: ArtifactAddress[K]) -> R_co: ...


def _is_transient(task: Task[..., Any], task_run: TaskRun, state: State[Any]) -> bool:
    return isinstance(state.result(raise_on_failure=False), TransientError)


def map_as_tasks(
    stage: MappedStage[ConfigT, K, R],
    configs: Sequence[ConfigT],
    *,
    run_name: str,
    ctx: StageContext,
    out: Callable[[ConfigT], ArtifactAddress[K]],
) -> Sequence[PrefectFuture[R]]:
    """Starts a stage with each config, as mapped Prefect tasks in parallel, and returns their futures in order.

    Args:
        run_name: Name of each task run; `{config}` stands for the config.
        ctx: The stage's context; its profile sets the number of retries after transient errors.
        out: Returns the address for the artifact of a config.
    """

    def body(config: ConfigT) -> Any:
        with ctx.disks.explaining():
            return _labelled(stage(ctx, config, out=out(config)))

    return _task(stage, body, run_name, ctx, timeout_s=None).map(configs)


def map_some_at_once(
    stage: Callable[[Any], R],
    inputs: Sequence[Any],
    *,
    run_name: str,
    ctx: StageContext,
    at_once: int,
    abandon: Callable[[], None],
) -> Iterator[R | Exception]:
    """Runs a stage on each input, as mapped Prefect tasks, and yields the result or the error of each, in order.

    Args:
        stage: A stage that takes one input.
        run_name: Name of each task run; `{item}` stands for the input.
        ctx: A context; its profile sets the number of retries after transient errors.
        at_once: Maximum number of tasks that run in parallel.
        abandon: Makes running tasks fail. It is called if this generator is interrupted, which would otherwise wait for
            the tasks.
    """

    def body(item: Any) -> Any:
        with ctx.disks.explaining():
            return _labelled(stage(item))

    task = _task(stage, body, run_name, ctx, timeout_s=None)
    with ThreadPoolTaskRunner[Any](max_workers=at_once) as runner:
        futures: list[PrefectFuture[Any]] = list(runner.map(task, {"item": inputs}))
        try:
            for future in futures:
                yield future.result(raise_on_failure=False)
        except BaseException:
            abandon()
            raise


def as_task(
    run_name: str,
    ctx: StageContext,
    stage: Callable[Concatenate[StageContext, ...], Any],
    keywords: Mapping[str, Any],
    *,
    in_thread: bool = False,
    retried: bool = True,
) -> Task[..., Any]:
    """Returns a Prefect task that, called with `inputs`, runs `stage(ctx, *inputs, **keywords)` in the calling thread.

    The store alone decides whether a stage is done; Prefect caches nothing. The task run of a stage whose artifact was
    published before ends in a `Completed` state named `Cached`. Prefect shows `inputs` as the task run's parameters.
    The profile sets the number of retries after transient errors; then the final state holds the stage's own error.

    Args:
        in_thread: Whether the task will be submitted to run in another thread, where it has no time limit.
        retried: Whether the task is retried after transient errors.
    """

    forget_old_results()

    def body(*inputs: Any) -> Any:
        with shown_progress(ctx) as shown, ctx.disks.explaining():
            return _labelled(stage(shown, *inputs, **keywords))

    timeout_s = None if in_thread else ctx.profile.stage_timeout_s
    return _task(stage, body, run_name, ctx, timeout_s=timeout_s, retries=ctx.profile.retries if retried else 0)


def _labelled(result: Any) -> Any:
    return Completed(name="Cached", data=result) if getattr(result, "reused", False) else result


def _task(
    stage: Callable[..., Any],
    body: Callable[..., Any],
    run_name: str,
    ctx: StageContext,
    *,
    timeout_s: float | None,
    retries: int | None = None,
) -> Task[..., Any]:
    """Returns the task; `timeout_s` must be None for tasks in other threads, which Prefect cannot interrupt."""
    profile = ctx.profile
    return Task(
        body,
        name=stage.__name__,
        task_run_name=run_name,
        description=(stage.__doc__ or "").splitlines()[0],
        retries=profile.retries if retries is None else retries,
        retry_delay_seconds=exponential_backoff(profile.retry_delay_s),
        retry_condition_fn=_is_transient,
        timeout_seconds=timeout_s,
        cache_policy=NO_CACHE,
        persist_result=False,
    )
