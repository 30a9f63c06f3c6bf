"""Value models of runs: the one that a run starts with, and the call of the stage `value` in an iteration."""

from artifacts.errors import BadInputError
from artifacts.layout import RunLayout
from artifacts.reading import Artifact
from artifacts.refs import Checkpoint, Critic, Grades, Ref, Rollouts, TrainingState, Values
from flows.session import Session
from stages.pretrain import pretrain
from stages.training.critic import check_tokenizer
from stages.training.launch import Weights, state_beside
from stages.value import value


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
        name, _, number = config.source.partition("@")
        critic = Artifact.at(store, RunLayout(name).iteration(int(number), "critic"), Critic).ref
        check_tokenizer(store, critic, policy, f"value.source: {config.source}")
        return Weights(critic, state_beside(critic, store))
    if config.pretrain is None:
        return Weights(policy)
    layout = RunLayout(config.pretrain.run)
    numbers = range(config.pretrain.first, config.pretrain.last + 1)
    stored: dict[str, list[Ref]] = {"rollouts": [], "grades": []}
    for part, refs in stored.items():
        for number in numbers:
            try:
                refs.append(Artifact.at(store, layout.iteration(number, part)).ref)
            except BadInputError as error:
                raise BadInputError(
                    f"value.pretrain: {layout.run}@{number}", f"no {part} in {store.url}",
                    f"those of iterations {numbers[0]} to {numbers[-1]}", "name iterations that are finished",
                ) from error  # fmt: skip
    return run.run(
        pretrain,
        config,
        policy,
        stored["rollouts"],
        stored["grades"],
        out=run.address(run.layout.first_critic("critic"), Critic),
        state_out=run.address(run.layout.first_critic("critic_state"), TrainingState),
    )


def valued(
    run: Session, critic: Weights | None, rollouts: Ref[Rollouts], grades: Ref[Grades], n: int
) -> tuple[Ref[Values] | None, Weights | None]:
    """Returns the values of iteration `n` and the value model after it; nothing if the run has no value model."""
    if critic is None or run.recipe.value is None:
        return None, None
    result = run.run(
        value,
        run.recipe.value,
        critic,
        rollouts,
        grades,
        iteration=n,
        out=run.at(n, "values", Values),
        critic_out=run.at(n, "critic", Critic),
        state_out=run.at(n, "critic_state", TrainingState),
    )
    return result.values, result.critic
