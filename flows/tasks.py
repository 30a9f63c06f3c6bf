"""The one place where stages become Prefect tasks."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from prefect import Task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.futures import PrefectFuture
from prefect.states import Completed
from prefect.task_runners import ThreadPoolTaskRunner

from artifacts.errors import TransientError
from flows.progress import shown_progress
from stages.context import StageContext

R = TypeVar("R")


def _is_transient(task: Task[..., Any], task_run: TaskRun, state: State[Any]) -> bool:
    return isinstance(state.result(raise_on_failure=False), TransientError)


def map_as_tasks(
    stage: Callable[..., R],
    inputs: Sequence[Any],
    *,
    run_name: str,
    ctx: StageContext,
    out: Callable[[Any], Any],
) -> Iterator[R]:
    """Runs a stage on each input, as mapped Prefect tasks side by side, and yields the results in order.

    Args:
        stage: Takes an input, a slot and the context.
        inputs: What is mapped over.
        run_name: Name of each task run; `{item}` stands for the input.
        ctx: The context.
        out: The slot of an input.

    Raises:
        Exception: Whatever the stage raised first, after the retries that the profile grants to transient errors.
    """

    def body(item: Any) -> Any:
        return _labelled(stage(item, out=out(item), ctx=ctx))

    for future in _task(stage, body, run_name, ctx, timeout_s=None).map(inputs):
        yield future.result()


def map_some_at_once(
    stage: Callable[[Any], R],
    inputs: Sequence[Any],
    *,
    run_name: str,
    ctx: StageContext,
    at_once: int,
    abandon: Callable[[], None],
) -> Iterator[R | Exception]:
    """Runs a stage on each input, as mapped Prefect tasks, and yields in order what each returned or failed with.

    Args:
        stage: Takes an input.
        run_name: Name of each task run; `{item}` stands for the input.
        ctx: Whose profile says how often a task is tried again after a transient failure.
        at_once: How many run side by side.
        abandon: Makes those fail that are running; called when this is interrupted, which else would wait for them.
    """

    def body(item: Any) -> Any:
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


def run_as_task(stage: Callable[..., R], *inputs: Any, run_name: str, ctx: StageContext, **keywords: Any) -> R:
    """Runs a stage in this thread, as a Prefect task of its name.

    The store alone decides what is done already; Prefect keeps no cache beside it. A stage that was found published
    ends in a `Completed` state named `Cached`.

    Raises:
        Exception: Whatever the stage raised, after the retries that the profile grants to transient errors.
    """

    def body(*inputs: Any) -> Any:
        with shown_progress(ctx):
            return _labelled(stage(*inputs, ctx=ctx, **keywords))

    state: State[Any] = _task(stage, body, run_name, ctx, timeout_s=ctx.profile.stage_timeout_s)(
        *inputs, return_state=True
    )
    return state.result()


def _labelled(result: Any) -> Any:
    return Completed(name="Cached", data=result) if getattr(result, "reused", False) else result


def _task(
    stage: Callable[..., Any], body: Callable[..., Any], run_name: str, ctx: StageContext, *, timeout_s: float | None
) -> Task[..., Any]:
    """The task; one that runs in another thread takes no timeout, because Prefect cannot interrupt it there."""
    profile = ctx.profile
    return Task(
        body,
        name=stage.__name__,
        task_run_name=run_name,
        description=(stage.__doc__ or "").splitlines()[0],
        retries=profile.retries,
        retry_delay_seconds=[profile.retry_delay_s * 2**attempt for attempt in range(profile.retries)],
        retry_condition_fn=_is_transient,
        timeout_seconds=timeout_s,
        cache_policy=NO_CACHE,
        persist_result=False,
    )
