"""Value models of runs: the one that a run starts with, and the call of the stage `value` in an iteration."""

from typing import Any

from artifacts.errors import BadInputError
from artifacts.layout import RunLayout
from artifacts.manifest import MANIFEST_NAME
from artifacts.reading import Artifact
from artifacts.refs import Checkpoint, Critic, Grades, Ref, Rollouts, TrainingState, Values
from artifacts.store.store import Store
from flows.lookup.preparation import Pretraining
from flows.session import Session
from stages.optional.pretrain import pretrain
from stages.optional.value import value
from stages.training.critic import PretrainConfig, ValueConfig, check_tokenizer
from stages.training.launch import Weights
from stages.training.saved_state import state_beside


def check_stored(config: ValueConfig, store: Store) -> None:
    """Checks that a store has the value model or the rollouts that a value model starts from; before a run begins.

    Raises:
        BadInputError: The store lacks an iteration that the recipe names.
    """
    if config.source != "policy":
        _stored_critic(config.source, store)
    if config.pretrain is not None:
        for part in ("rollouts", "grades"):
            _stored(config.pretrain, part, store)


def first_critic(run: Session, policy: Ref[Checkpoint]) -> Weights | None:
    """Returns the value model before iteration 1, pretrained if the recipe says so; None without a value model.

    Args:
        run: The run.
        policy: The model that GRPO starts from.

    Raises:
        BadInputError: The store lacks the iteration that the recipe names, or its model has another tokenizer.
    """
    config, store = run.recipe.value, run.ctx.store
    if config is None:
        return None
    if config.source != "policy":
        critic = _stored_critic(config.source, store)
        check_tokenizer(store, critic, policy, f"value.source: {config.source}")
        return Weights(critic, state_beside(critic, store))
    if config.pretrain is None:
        return Weights(policy)
    critic = run.run(
        pretrain,
        config,
        policy,
        _pretraining_inputs(run, config.pretrain, "rollouts"),
        _pretraining_inputs(run, config.pretrain, "grades"),
        out=run.address(run.layout.first_critic("critic"), Critic),
        state_out=run.address(run.layout.first_critic("critic_state"), TrainingState),
    )
    steps, chosen = Artifact.open(store, critic.checkpoint).manifest.facts["steps"], config.pretrain
    run.live.line(f"value model: {Pretraining(chosen.run, chosen.first, chosen.last, len(steps)).line()}")
    return critic


def _stored_critic(name: str, store: Store) -> Ref[Any]:
    """Returns the value model with a name RUN@ITERATION."""
    run, _, number = name.partition("@")
    try:
        return Artifact.at(store, RunLayout(run).iteration(int(number), "critic"), Critic).ref
    except BadInputError as error:
        raise BadInputError(
            f"value.source: {name}", f"no value model in {store.url}", "that of a finished iteration",
            "name a run whose recipe has a section [value]",
        ) from error  # fmt: skip


def _pretraining_inputs(run: Session, config: PretrainConfig, part: str) -> list[Ref[Any]]:
    """Returns the rollouts or grades on which the value model of a run is pretrained.

    Once it is pretrained, its manifest names them, so the run continues even if the other run has been removed.
    """
    store, made = run.ctx.store, run.layout.first_critic("critic")
    if not store.exists(f"{made}/{MANIFEST_NAME}"):
        return _stored(config, part, store)
    inputs = Artifact.at(store, made).manifest.inputs
    return [Ref(**inputs[role]) for role in sorted(inputs) if role.startswith(f"{part}_")]


def _stored(config: PretrainConfig, part: str, store: Store) -> list[Ref[Any]]:
    """Returns the rollouts or grades of the iterations that a recipe names."""
    layout, refs = RunLayout(config.run), list[Ref[Any]]()
    for number in range(config.first, config.last + 1):
        try:
            refs.append(Artifact.at(store, layout.iteration(number, part)).ref)
        except BadInputError as error:
            raise BadInputError(
                f"value.pretrain: {layout.run}@{number}", f"no {part} in {store.url}",
                f"those of iterations {config.first} to {config.last}",
                f"let {layout.run} finish them, or name iterations that are finished",
            ) from error  # fmt: skip
    return refs


def valued(
    run: Session, critic: Weights | None, rollouts: Ref[Rollouts], grades: Ref[Grades], n: int
) -> tuple[Ref[Values] | None, Weights | None]:
    """Returns the values of iteration `n` and the value model after it; None for both without a value model."""
    if critic is None or run.recipe.value is None:
        return None, None
    result = run.run(
        value,
        run.recipe.value,
        run.with_state(critic),
        rollouts,
        grades,
        iteration=n,
        out=run.at(n, "values", Values),
        critic_out=run.at(n, "critic", Critic),
        state_out=run.at(n, "critic_state", TrainingState),
    )
    return result.values, result.critic
