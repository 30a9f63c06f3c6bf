"""Publishes optimizer states in threads of their own, while later stages use the weights."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

from artifacts.errors import TransientError
from artifacts.refs import OptimizerState, Ref
from stages.context import StageContext
from stages.training.launch import Weights


class LastStageDone(Exception):  # noqa: N818 (no error)
    """The stage that `stop_after` names is done; nothing failed."""


class Future(Protocol):
    """The methods of a Prefect future that this module uses."""

    def result(self) -> Any: ...

    def wait(self) -> None: ...


@dataclass(frozen=True)
class _Saving:
    """An optimizer state that is being saved.

    Attributes:
        future: The task that saves it.
        submit: Begins to save the state of weights in another thread.
        again: Trains once more and returns the weights.
    """

    future: Future
    submit: Callable[[Weights], Future]
    again: Callable[[], Weights]


class SavedStates:
    """The optimizer states of a flow that are being saved."""

    def __init__(self, ctx: StageContext) -> None:
        self._ctx = ctx
        self._saving: dict[str, _Saving] = {}

    def save(self, trained: Weights, submit: Callable[[Weights], Future], again: Callable[[], Weights]) -> None:
        """Begins to publish the optimizer state of weights.

        Args:
            trained: The weights, whose state the trainer still writes.
            submit: Begins to save the state of weights in another thread.
            again: Trains once more and returns the weights, which are the same.
        """
        self._saving[trained.checkpoint.key] = _Saving(submit(trained), submit, again)

    def with_state(self, weights: Weights) -> Weights:
        """Returns weights with their optimizer state, after it is published.

        If it was lost, because the trainer died or the store did not answer, training is repeated as after a kill.

        Raises:
            Exception: The error with which the state was lost, after the retries that the profile allows.
        """
        if weights.saving is None:
            return weights
        return replace(weights, state=self._saved(weights.checkpoint.key), saving=None)

    def _saved(self, key: str) -> Ref[OptimizerState] | None:
        """Waits until the optimizer state of the checkpoint with this key is published, and returns it."""
        saving = self._saving.pop(key)
        for left in reversed(range(self._ctx.profile.retries + 1)):
            try:
                return saving.future.result()
            except TransientError as error:
                if not left:
                    raise
                self._ctx.log.warning("the optimizer state of %s was lost, so training is repeated: %s", key, error)
            trained = saving.again()
            if trained.saving is None:
                return trained.state
            self.save(trained, saving.submit, saving.again)
            saving = self._saving.pop(key)
        raise AssertionError  # the last error is raised

    def wait(self) -> None:
        """Waits until all optimizer states are published.

        Raises:
            Exception: See `with_state`.
        """
        while self._saving:
            self._saved(next(iter(self._saving)))

    @contextmanager
    def until_published(self) -> Generator[None]:
        """Waits at the end of the block until all optimizer states are published, even after an error.

        After a signal they are lost; the next command then repeats the training of the last iteration.
        """
        try:
            yield
            self.wait()
        except LastStageDone:
            self.wait()
            raise
        except BaseException as error:
            if not isinstance(error, Exception):
                self._ctx.abandon_training()
            for saving in self._saving.values():
                saving.future.wait()
            raise
