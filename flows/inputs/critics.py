"""Critics of runs: the one that a run starts with, and the call of the stage `value` in an iteration."""

from typing import Any

from artifacts.reading import Artifact, is_published
from artifacts.refs import Checkpoint, Critic, Grades, OptimizerState, Ref, Rollouts, Values
from flows.lookup.critics import stored_critic, stored_parts
from flows.lookup.preparation import Pretraining
from flows.session.session import Session
from stages.models.tokenizers.digest import check_same_tokenizer
from stages.optional.pretrain import pretrain
from stages.optional.value import value
from stages.training.critic import PretrainConfig, ValueConfig
from stages.training.launch import Weights
from stages.training.saved_state import state_beside
from stages.training.trainable import TrainableConfig


def first_critic(session: Session, policy: Ref[Checkpoint]) -> Weights | None:
    """Returns the critic before iteration 1, pretrained if the recipe requires it; None without a critic.

    Args:
        session: The run.
        policy: The model that GRPO starts from.

    Raises:
        BadInputError: The store lacks the iteration that the recipe names, or its model has another tokenizer.
    """
    config, store = session.recipe.value, session.ctx.store
    if config is None:
        return None
    if config.source != "policy":
        critic = stored_critic(config.source, store)
        check_same_tokenizer(store, critic, policy, f"value.source: {config.source}")
        return Weights(critic, _first_state(session, config, critic))
    if config.pretrain is None:
        return Weights(policy)
    critic = session.run(
        pretrain,
        config,
        policy,
        _pretraining_inputs(session, config.pretrain, "rollouts"),
        _pretraining_inputs(session, config.pretrain, "grades"),
        out=session.address(session.layout.first_critic("critic"), Critic),
        state_out=session.address(session.layout.first_critic("critic_state"), OptimizerState),
    )
    steps, chosen = Artifact.open(store, critic.checkpoint).manifest.facts["steps"], config.pretrain
    session.live.line(f"critic: {Pretraining(chosen.run, chosen.first, chosen.last, len(steps)).line()}")
    return critic


def _first_state(session: Session, config: ValueConfig, critic: Ref[Any]) -> Ref[OptimizerState] | None:
    """Returns the optimizer state of another run's critic; None if it cannot be used.

    Once iteration 1 has its values, their manifest names the state, so the run continues even if it has been pruned.
    """
    store, valued = session.ctx.store, session.layout.iteration(1, "values")
    if is_published(store, valued):
        begun_with = Artifact.at(store, valued).manifest.inputs.get("critic_state")
        return None if begun_with is None else Ref(**begun_with)
    state = state_beside(critic, store)
    if state is None:
        return None
    trained = TrainableConfig.model_validate(Artifact.open(store, critic).manifest.identity.config["trainable"])
    if Artifact.open(store, state).manifest.pruned:
        reason = "its optimizer state was pruned"
    elif not config.trainable.merging().takes_state_of(trained.merging()):
        reason = "its optimizer state is that of other parameters"
    else:
        return state
    session.ctx.log.warning("value.source: %s: the critic begins with a new optimizer: %s", config.source, reason)
    return None


def _pretraining_inputs(session: Session, config: PretrainConfig, part: str) -> list[Ref[Any]]:
    """Returns the rollouts or grades on which the critic of a run is pretrained.

    Once it is pretrained, its manifest names them, so the run continues even if the other run has been removed.
    """
    store, made = session.ctx.store, session.layout.first_critic("critic")
    if not is_published(store, made):
        return stored_parts(config, part, store)
    inputs = Artifact.at(store, made).manifest.inputs
    return [Ref(**inputs[role]) for role in sorted(inputs) if role.startswith(f"{part}_")]


def valued(
    session: Session, critic: Weights | None, rollouts: Ref[Rollouts], grades: Ref[Grades], n: int
) -> tuple[Ref[Values] | None, Weights | None]:
    """Returns the values of iteration `n` and the critic after it; None for both without a critic."""
    if critic is None or session.recipe.value is None:
        return None, None
    result = session.run(
        value,
        session.recipe.value,
        session.states.with_state(critic),
        rollouts,
        grades,
        iteration=n,
        out=session.at(n, "values", Values),
        critic_out=session.at(n, "critic", Critic),
        state_out=session.at(n, "critic_state", OptimizerState),
    )
    return result.values, result.critic
