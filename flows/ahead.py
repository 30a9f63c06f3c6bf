"""Samples iteration i + 1 from the weights before iteration i's update, while iteration i is trained.

With `iterate_ahead = 0` in the recipe, nothing is sampled ahead. The main path is the same in both cases: the sampler
publishes the rollouts early, and the iteration finds them.

The sampling weights of an iteration follow from published artifacts alone, so every attempt on any machine requests the
same rollouts. After a rollback in iteration i, iteration i + 1 is sampled again, from the weights that the run returned
to. So rollouts are at most one iteration behind.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from artifacts.errors import DeerstalkerError, IdentityMismatchError, TransientError
from artifacts.reading import Artifact, is_published
from artifacts.refs import Checkpoint, Decision, Puzzles, Ref, Rollouts
from artifacts.store.store import Store
from flows.checks.overlap import Role
from flows.session.session import Session
from stages.promote import weights_after
from stages.sample import sample
from stages.training.launch import Weights

if TYPE_CHECKING:
    from flows.iteration import Position

_POLL_S = 0.5


@contextmanager
def sampling_ahead(
    session: Session, puzzles: Ref[Puzzles], start: Position, n: int, last: int, role: Role = "both"
) -> Generator[Session]:
    """Samples iteration `n` + 1 while the block runs iteration `n`, and yields the run for the block.

    Nothing is sampled if iteration `n` is the last one or has its decision, if the run stops in it, or if another flow
    run samples. After a rollback, the block replaces rollouts that were sampled from the abandoned weights.

    Args:
        last: The last iteration that the flow runs; nothing is sampled ahead of it.
        role: `trainer` waits for the rollouts that another flow run samples.

    Raises:
        DeerstalkerError: The sampler has not published within `stage_timeout_s`.
    """
    if rolled_back := n > 1 and start.sampling_checkpoint is None:
        session = session.replacing(n, "sample")
    if role == "trainer" and not rolled_back:
        _wait_for(session, session.layout.iteration(n, "rollouts"), "the sampler")
    if role != "both" or n == last or session.stops_in(n) or session.has(n, "decision"):
        yield session
        return
    # Iteration n is sampled first, because engines have one set of weights at a time.
    if start.sampling_checkpoint is None or not session.has(n, "rollouts"):
        _sample(session, puzzles, start, start.policy, n)
    with session.alongside(
        sample,
        session.recipe.sample,
        start.weights.checkpoint,
        puzzles,
        start.pass_rates,
        iteration=n + 1,
        out=session.at(n + 1, "rollouts", Rollouts),
    ):
        yield session


def sampling_checkpoint_after(session: Session, start: Position, after: Position, n: int) -> Ref[Checkpoint] | None:
    """Returns the checkpoint from which the iteration after `n` is sampled; None if iteration `n` rolled back.

    Args:
        start: The position before iteration `n`.
        after: The position after it.
    """
    goes_on = after.weights.checkpoint.key == session.layout.iteration(n, "checkpoint")
    return start.weights.checkpoint if goes_on else None


def wait_for_start(session: Session) -> None:
    """Waits until the trainer's flow run has published everything before iteration 1.

    Raises:
        DeerstalkerError: The trainer has not published it within `stage_timeout_s`.
    """
    _wait_for(session, session.layout.iteration(0, "decision"), "the trainer")
    if session.recipe.rate is not None:
        _wait_for(session, session.layout.pass_rates, "the trainer")


def sample_all(session: Session, puzzles: Ref[Puzzles], start: Position, last: int) -> None:
    """Samples the iterations up to `last`, each as soon as its weights are published, while another flow run trains.

    It ends after the iteration in which the run stops. The trainer itself samples the iteration after a rollback.

    Raises:
        DeerstalkerError: The trainer has not published within `stage_timeout_s`.
    """
    policy = start.weights.checkpoint
    for n in range(1, last + 1):
        if n > 2:
            _wait_for(session, session.layout.iteration(n - 2, "decision"), "the trainer")
            policy = _policy_after(session, n - 2)
        if not (session.has(n, "rollouts") or _rolled_back(session, n - 1)):
            try:
                _sample(session, puzzles, start, policy, n)
            except IdentityMismatchError:
                if not _rolled_back(session, n - 1):  # otherwise the trainer has replaced the rollouts
                    raise
            session.ctx.remove_old_copies()
        if session.stops_in(n):  # the trainer runs the stage that `stop_after` names, unless it is `sample`
            return


def _sample(session: Session, puzzles: Ref[Puzzles], start: Position, policy: Ref[Checkpoint], n: int) -> None:
    out = session.at(n, "rollouts", Rollouts)
    session.run(sample, session.recipe.sample, policy, puzzles, start.pass_rates, iteration=n, out=out)


def _policy_after(session: Session, n: int) -> Ref[Checkpoint]:
    """Returns the checkpoint after iteration `n`, rollback included."""
    decision = Artifact.at(session.ctx.store, session.layout.iteration(n, "decision"), Decision).ref
    trained = Artifact.at(session.ctx.store, session.layout.iteration(n, "checkpoint"), Checkpoint).ref
    return weights_after(decision, Weights(trained), session.ctx).checkpoint


def _rolled_back(session: Session, n: int) -> bool:
    """Returns whether iteration `n` has ended with a return to an earlier checkpoint."""
    return (
        n > 0
        and session.has(n, "decision")
        and _policy_after(session, n).key != session.layout.iteration(n, "checkpoint")
    )


def _is_there(store: Store, key: str) -> bool:
    """Returns whether an artifact is published; not yet while the store does not answer."""
    with suppress(TransientError):
        return is_published(store, key)
    return False


def _wait_for(session: Session, key: str, whom: str) -> None:
    """Waits until another flow run has published an artifact of this run."""
    limit_s = session.ctx.profile.stage_timeout_s
    n, part = session.layout.iteration_of(key), key.rpartition("/")[2]
    where = "before iteration 1" if n is None else f"iteration {n}"
    begun = time.monotonic()
    while not _is_there(session.ctx.store, key):
        if (waited_s := time.monotonic() - begun) > limit_s:
            raise DeerstalkerError(
                where, f"no {part} after {waited_s:.0f} s of waiting for {whom}", "",
                f"look at the flow run of {whom}, and start it again if it has ended; stage_timeout_s sets the limit",
            )  # fmt: skip
        if waited_s < _POLL_S:
            slot = session.ctx.profile.gpu_slot
            both = f" (both flow runs need a slot of the limit {slot!r})" if slot else ""
            session.live.line(f"waiting for {whom}: {where}, {part}{both}")
        time.sleep(_POLL_S)
