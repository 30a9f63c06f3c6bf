"""Calls stages inside a flow, and holds the recipe, the addresses and the views of a run in progress."""

import json
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, Self, TypeVar, cast

from artifacts.address import ArtifactAddress
from artifacts.documents.checksums import sums_of
from artifacts.documents.run_files import read_recipe
from artifacts.errors import IdentityMismatchError, TransientError
from artifacts.identity import continued, differences, with_added
from artifacts.layout import RunLayout
from artifacts.manifest import MANIFEST_NAME
from artifacts.refresh import Refresh, Refreshes
from artifacts.refs import Checkpoint, K, Puzzles, Ref, TrainingState
from artifacts.store.store import MissingKeyError, Store
from flows.config.recipe import Recipe
from flows.orchestration.gpu_permit import GpuPermit
from flows.orchestration.tasks import MappedStage, as_task, map_as_tasks
from flows.removal import OldStates
from flows.views import ProgressView, RunPages
from stages.context import StageContext
from stages.environments.config import SourceConfig
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
SettleRows = Callable[["Session", Ref[Checkpoint], Ref[Puzzles], Sequence[int]], None]
"""Gives the recipe of a run its rows, from the model, the puzzles and the tokens of their train prompts."""
Role = Literal["both", "sampler", "trainer"]
"""Part of a run with `iterate_ahead` that a flow run does."""


_CODE_SETTINGS = (
    "puzzles.puzzle.sha256:", "puzzles.puzzle.version:",
    "finetune.loss.function.sha256:", "grade.reward.function.sha256:",
)  # fmt: skip
"""Settings that differ between versions of a user's code, as `differences` writes them."""


_NEVER = datetime.min.replace(tzinfo=UTC)
"""A time before all artifacts."""


class LastStageDone(Exception):  # noqa: N818 (no error)
    """The stage that `stop_after` names is done; nothing failed."""


class Stages:
    """Calls stages inside a flow.

    Attributes:
        ctx: The context that every stage gets.
        live: The display of the flow's progress.
        permit: The permit to use a GPU, if the profile names a limit.
        last_task_run: Name of the task run after which `LastStageDone` is raised; None runs to the end.
    """

    last_task_run: str | None = None

    def __init__(self, ctx: StageContext, live: ProgressView, permit: GpuPermit) -> None:
        self.ctx, self.live, self.permit = ctx, live, permit
        self._saving: dict[str, _Saving] = {}

    def address(self, key: str, kind: type[K], label: str = "") -> ArtifactAddress[K]:
        """Returns an address in the store; the name of the task run that publishes there ends in the label."""
        return ArtifactAddress(self.ctx.store, key, kind, label=label)

    def run(self, stage: Callable[Concatenate[StageContext, P], R], *inputs: P.args, **keywords: P.kwargs) -> R:
        """Runs a stage as a Prefect task, and returns its result.

        The task is retried after transient failures. It ends in `Cached` if the artifact was published before.

        Args:
            stage: A function of `stages`; its keyword `out` is the address of its artifact.
            *inputs: Its config and its input refs. Prefect shows them as the task run's parameters.
            **keywords: Its addresses and numbers.

        Raises:
            LastStageDone: It is the stage that `last_task_run` names.
            Exception: The stage's own error, after the retries that the profile allows for transient errors.
        """
        label = cast(ArtifactAddress[Any], keywords["out"]).label
        name = _task_run_name(stage.__name__, label)
        result = self._run(name, stage, inputs, keywords)
        if (trained := _trained(result)) and trained.saving is not None:
            self._save(trained, label, lambda: _trained(self._run(name, stage, inputs, keywords)) or trained)
        if name == self.last_task_run:
            raise LastStageDone
        return result

    def _run(self, name: str, stage: Callable[..., R], inputs: tuple[object, ...], keywords: Mapping[str, object]) -> R:
        task = as_task(name, self.ctx, stage, keywords)
        self.live.stage_started(name)
        started = time.perf_counter()
        try:
            result: R = task(*inputs, return_state=True).result()
        finally:
            self.permit.stage_ended()
        self.live.stage_finished(name, time.perf_counter() - started, result.reused)
        return result

    def _save(self, trained: Weights, label: str, again: Callable[[], Weights]) -> None:
        """Publishes the training state of weights in another thread, while later stages use the weights.

        Args:
            trained: The weights, whose state the trainer still writes.
            label: Suffix of the name of the task run.
            again: Trains once more and returns the weights, which are the same.
        """
        saving = trained.saving
        assert saving is not None
        name = _task_run_name(f"save_{saving.key.rpartition('/')[2]}", label)
        keywords = {"saving": saving}
        task = as_task(name, self.ctx, save_state, keywords, in_thread=True, retried=False)
        started, future = time.perf_counter(), task.submit(trained.checkpoint)

        def show(_: object) -> None:
            if not future.state.is_failed():
                self.live.stage_finished(name, time.perf_counter() - started, reused=False)

        future.add_done_callback(show)
        self._saving[trained.checkpoint.key] = _Saving(future, label, again)

    def with_state(self, weights: Weights) -> Weights:
        """Returns weights with their training state, after it is published.

        If it was lost, because the trainer died or the store did not answer, training is repeated as after a kill.

        Raises:
            Exception: The error with which the state was lost, after the retries that the profile allows.
        """
        if weights.saving is None:
            return weights
        return replace(weights, state=self._saved(weights.checkpoint.key), saving=None)

    def _saved(self, key: str) -> Ref[TrainingState] | None:
        """Waits until the training state of the checkpoint with this key is published, and returns it."""
        saving = self._saving.pop(key)
        for left in reversed(range(self.ctx.profile.retries + 1)):
            try:
                return saving.future.result()
            except TransientError as error:
                if not left:
                    raise
                self.ctx.log.warning("the training state of %s was lost, so training is repeated: %s", key, error)
            trained = saving.again()
            if trained.saving is None:
                return trained.state
            self._save(trained, saving.label, saving.again)
            saving = self._saving.pop(key)
        raise AssertionError  # the last error is raised

    def wait_for_states(self) -> None:
        """Waits until all training states are published.

        Raises:
            Exception: See `with_state`.
        """
        while self._saving:
            self._saved(next(iter(self._saving)))

    @contextmanager
    def saving_states(self) -> Generator[None]:
        """Waits at the end of the block until all training states are published, also after an error.

        After a signal they are lost; the next command then repeats the training of the last iteration.
        """
        try:
            yield
            self.wait_for_states()
        except LastStageDone:
            self.wait_for_states()
            raise
        except Exception:
            for saving in self._saving.values():
                saving.future.wait()
            raise
        except BaseException:
            self.ctx.abandon_training()
            for saving in self._saving.values():
                saving.future.wait()
            raise

    @contextmanager
    def alongside(
        self, stage: Callable[Concatenate[StageContext, P], R], *inputs: P.args, **keywords: P.kwargs
    ) -> Generator[None]:
        """Runs a stage as a Prefect task in another thread while the block runs, and waits for its end.

        If the block fails, the stage and the engines are ended at once, and the flow must end.
        The arguments are those of `run`.

        Raises:
            Exception: The error of the block, or else the stage's own.
        """
        name = _task_run_name(stage.__name__, cast(ArtifactAddress[Any], keywords["out"]).label)
        started = time.perf_counter()
        future = as_task(name, self.ctx, stage, keywords, in_thread=True).submit(*inputs)
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
    ) -> list[R]:
        """Runs a stage with each config as mapped Prefect tasks in parallel; returns the results in the configs' order.

        Args:
            label: Added to the stage's name in each task run's name; `{config}` stands for the config.
            out: Returns the address for the artifact of a config.
        """
        name = stage.__name__
        self.live.stage_started(name)
        started = time.perf_counter()
        results: list[R] = []
        for result in map_as_tasks(stage, configs, run_name=f"{name}-{label}", ctx=self.ctx, out=out):
            results.append(result)
            self.live.progress(name, len(results), len(configs), {})
        self.live.stage_finished(name, time.perf_counter() - started, all(result.reused for result in results))
        return results


@dataclass(frozen=True)
class _Saving:
    """A training state that is being saved in another thread.

    Attributes:
        future: The task that saves it.
        label: Suffix of the name of the task run.
        again: Trains once more and returns the weights.
    """

    future: "_Future"
    label: str
    again: Callable[[], Weights]


class _Future(Protocol):
    """The part of a Prefect future that is used here."""

    def result(self) -> Any: ...

    def wait(self) -> None: ...


def _trained(result: object) -> Weights | None:
    """Returns the weights in the result of a stage that trains; None for other results."""
    if isinstance(result, Valued):
        return result.critic
    return result if isinstance(result, Weights) else None


def _task_run_name(stage: str, label: str) -> str:
    return f"{stage}-{label}" if label else stage


def _iteration_label(number: int) -> str:
    return f"{number:04d}"


class Session(Stages):
    """A run in progress.

    Attributes:
        recipe: Its recipe, resolved and frozen in the store.
        layout: Keys of its artifacts.
        refresh: Requests to make its artifacts again.
        shown: Its stored views.
        reached: The last iteration that has published all its artifacts; -1 if none has.

    Args:
        stop_after: `stage@iteration` after which `LastStageDone` is raised; None runs to the end.
        before_writing: Called before any of the run's own artifacts is stored (see `freeze_recipe`).
        settle_rows: Called before that (see `flows.inputs.rows`).
    """

    def __init__(
        self,
        recipe: Recipe,
        layout: RunLayout,
        stages: Stages,
        refresh: Refreshes,
        shown: RunPages,
        *,
        stop_after: str | None = None,
        before_writing: Callable[[], None] = lambda: None,
        settle_rows: SettleRows = lambda run, weights, puzzles, prompts: None,
    ) -> None:
        super().__init__(stages.ctx, stages.live, stages.permit)
        self._saving = stages._saving  # `opened_stages` waits for them
        self.recipe, self.layout, self.refresh = recipe, layout, refresh
        self._staged = bool(recipe.stages)
        self._before_writing = before_writing
        self.settle_rows = settle_rows
        if stop_after is not None:
            name, _, number = stop_after.partition("@")
            self.last_task_run = _task_run_name(name, _iteration_label(int(number)))
        self.reached = -1
        self.shown = shown
        self._replaced: dict[int, str] = {}
        keep_every = self.ctx.profile.keep_state_every
        self._old_states = None if keep_every is None else OldStates(self.ctx.store, layout, keep_every)

    def with_recipe(self, recipe: Recipe) -> Self:
        """Returns the same run in progress with another recipe, such as that of a stage."""
        staged = copy(self)
        staged.recipe = recipe
        return staged

    def replacing(self, number: int, stage: str) -> Self:
        """Returns the same run; a stage of iteration `number` replaces an artifact that was made from other inputs."""
        replacing = copy(self)
        replacing._replaced = {**self._replaced, number: stage}
        return replacing

    def stops_in(self, number: int) -> bool:
        """Returns whether the run stops after a stage of iteration `number`."""
        return self.last_task_run is not None and self.last_task_run.endswith(f"-{_iteration_label(number)}")

    def iteration_finished(self, n: int) -> None:
        """Shows iteration `n`, which has published all its artifacts, in every view; removes old states and copies."""
        self.reached = n
        if self._old_states is not None:
            self._old_states.iteration_finished(n)
        self.ctx.remove_old_copies()
        executed = self.live.executed
        self.live.iteration_finished(n)
        if warning := self.shown.iteration_finished(n, executed=executed):
            self.live.line(warning)

    def write_report(self) -> str:
        """Writes the report, shows the finished run in Prefect and the tracker, and returns the key of the page."""
        self.wait_for_states()
        if self._old_states is not None and self.reached > 0:
            self._old_states.iteration_finished(self.reached)
        started = time.perf_counter()
        self.live.stage_started("report")
        page = self.shown.finished()
        self.live.stage_finished("report", time.perf_counter() - started, reused=False)
        return page

    def address(self, key: str, kind: type[K], label: str = "") -> ArtifactAddress[K]:
        """Returns an address in the store; refreshes apply only to artifacts of this run, not to shared ones."""
        if not key.startswith(f"{self.layout.root}/"):
            return super().address(key, kind, label)
        return ArtifactAddress(self.ctx.store, key, kind, self.refresh.at(None), self._before_writing, label)

    def has(self, number: int, part: str) -> bool:
        """Returns whether a part of iteration `number` is published, perhaps from other inputs."""
        return self.ctx.store.exists(f"{self.layout.iteration(number, part)}/{MANIFEST_NAME}")

    def at(self, number: int, part: str, kind: type[K]) -> ArtifactAddress[K]:
        """Returns the address of a part of iteration `number`."""
        key = self.layout.iteration(number, part)
        refresh = self.refresh.at(number)
        if refresh and self._staged:
            refresh = replace(refresh, any_config=True)
        if number in self._replaced:
            refresh = replace(refresh or Refresh({}, _NEVER), replaced=(self._replaced[number],))
        return ArtifactAddress(self.ctx.store, key, kind, refresh, self._before_writing, _iteration_label(number))


def freeze_recipe(store: Store, layout: RunLayout, recipe: Recipe) -> None:
    """Stores the resolved recipe under the run's name; a stored recipe never changes.

    It is called just before the first artifact of the run is stored. So an attempt that fails earlier leaves the name
    free. If two attempts start with different recipes, the one that stores first keeps the name.

    Raises:
        IdentityMismatchError: The name is taken by a run of another recipe.
    """
    text = (json.dumps(recipe.model_dump(mode="json"), indent=2, ensure_ascii=False) + "\n").encode()
    if store.create_bytes(layout.recipe, text):
        store.create_bytes(layout.sums, sums_of({layout.recipe.rpartition("/")[2]: text}))
    else:
        check_recipe(store, layout, recipe)


def recipe_to_continue(store: Store, layout: RunLayout, recipe: Recipe) -> Recipe:
    """Returns the recipe with which to start or continue a run.

    If an earlier version of the program froze the run's recipe, settings that were added since then get the value that
    describes the old behaviour, unless the user chose another (see `artifacts.identity.continued`).
    `pack.row_tokens = "auto"` becomes the number with which the run began.

    Raises:
        IntegrityError: The file under the run's name is not a recipe.
    """
    frozen = _frozen(store, layout)
    return recipe if frozen is None else continued(recipe, frozen).with_rows_of(frozen)


def _frozen(store: Store, layout: RunLayout) -> dict[str, Any] | None:
    try:
        return read_recipe(store, layout)
    except MissingKeyError:
        return None


def check_recipe(store: Store, layout: RunLayout, recipe: Recipe) -> None:
    """Checks that no other recipe is frozen under the run's name; `pack.row_tokens = "auto"` is any number.

    Raises:
        IdentityMismatchError: The name is taken by a run of another recipe.
    """
    frozen = _frozen(store, layout)
    if frozen is None:
        return
    recipe = recipe.with_rows_of(frozen)
    stored, current = with_added(Recipe, frozen), recipe.model_dump(mode="json")
    if isinstance(recipe.puzzles.puzzle, SourceConfig):
        for name in recipe.puzzles.puzzle.LOCATIONS:
            stored["puzzles"]["puzzle"].pop(name, None)
            current["puzzles"]["puzzle"].pop(name, None)
    for part in (stored, current):  # a file may have moved
        for function in (part["finetune"]["loss"]["function"], part["grade"]["reward"]["function"]):
            if function is not None:
                function.pop("folder")
    if changes := differences(stored, current):
        if any(change.startswith(_CODE_SETTINGS) for change in changes):
            raise IdentityMismatchError(
                f"run {layout.run!r}",
                f"the code that it uses has changed: {'; '.join(changes[:6])}",
                "the code that the run began with",
                "restore it, or choose another --run name",
            )
        raise IdentityMismatchError(
            f"run {layout.run!r}",
            "started with another recipe: " + "; ".join(changes[:6]),
            "the recipe that it started with",
            "choose another --run name, or drop the changed settings",
        )
