"""Refuses recipes that cannot learn: whatever the model answers, every advantage is 0 or no weight changes."""

from artifacts.errors import BadInputError
from flows.config.recipe import Recipe
from stages.grading.judge import JudgedReward
from stages.grpo.advantages import AdvantageConfig
from stages.grpo.process import StepRewards

_STEPS = tuple(name for name in StepRewards.model_fields if name != "until_first_false")


def check_learns(recipe: Recipe) -> None:
    """Refuses a recipe whose iterations cannot change the policy; one without iterations passes.

    Raises:
        BadInputError: All completions of a group are the same, or there is only one, though a group's mean is the
            baseline; no term of the reward has a weight; or the weights are frozen in every iteration.
    """
    if not recipe.iterations:
        return
    frozen = min(part.finetune.frozen_iterations for part in recipe.parts)
    if frozen >= recipe.iterations and recipe.value is None:
        raise BadInputError(
            "finetune.frozen_iterations",
            f"{frozen}, so that the weights change in none of {recipe.iterations} iterations",
            f"at most {recipe.iterations - 1}",
            "lower it; only a critic learns in a frozen iteration",
        )
    for part in recipe.parts:
        if part.teach is None and part.learns_from_advantages:
            _check_group(part)
            _check_reward(part)


def _check_group(recipe: Recipe) -> None:
    """Refuses groups whose advantages are 0 because their completions cannot differ."""
    sampling, advantage = recipe.sample.sampling, recipe.grade.advantage
    if sampling.max_tokens == 1 and recipe.pack.last_token_advantage == "zero":
        raise BadInputError(
            "pack.last_token_advantage",
            "zero, but with sample.sampling.max_tokens = 1 every token is the last",
            "kept",
            "or raise max_tokens",
        )
    completions = recipe.sample.puzzles_per_iteration * sampling.samples_per_prompt
    if advantage.baseline == "batch_mean" and completions == 1 and recipe.value is None:
        raise BadInputError(
            "sample.sampling.samples_per_prompt",
            "1, and 1 puzzle in an iteration, so that the batch's mean is its only reward and the advantage is 0",
            "at least 2 completions in an iteration",
            "raise sample.puzzles_per_iteration or samples_per_prompt",
        )
    if not _compares_in_groups(advantage) or recipe.value is not None:
        return
    baseline = f"grade.advantage.baseline = {advantage.baseline!r}"
    if sampling.samples_per_prompt == 1:
        raise BadInputError(
            "sample.sampling.samples_per_prompt",
            f"1, so that every advantage is 0 with {baseline}",
            "at least 2",
            "or compare with the batch (grade.advantage.baseline = 'batch_mean', scale = 'batch_std'), or add a critic",
        )
    for name, value, at_least in (("temperature", sampling.temperature, "above 0"), ("top_k", sampling.top_k, "not 1")):
        if value == (0 if name == "temperature" else 1):
            raise BadInputError(
                f"sample.sampling.{name}",
                f"{value}, so that all completions of a prompt are the same and every advantage is 0 with {baseline}",
                at_least,
                "a temperature of 1 is usual",
            )


def _compares_in_groups(advantage: AdvantageConfig) -> bool:
    """Returns whether advantages are 0 if the completions of each group are equal.

    Under process supervision, the steps of one completion are compared with each other, unless `same_step` compares
    each with the steps of the same number in other completions.
    """
    match advantage.baseline:
        case "none" | "batch_mean":
            return False
        case "group_mean" | "leave_one_out":
            return advantage.level == "outcome" or advantage.step_baseline == "same_step"


def _check_reward(recipe: Recipe) -> None:
    """Refuses a reward that depends only on whether a completion was cut."""
    reward, by_process = recipe.grade.reward, recipe.grade.advantage.level == "process"
    steps = {getattr(reward.step_rewards, name) for name in _STEPS} - {None}
    if _has_terms(reward) or (by_process and (len(steps) > 1)):
        return
    raise BadInputError(
        "grade.reward",
        "no term with a weight, so that all answers have the same reward",
        "a weight above 0",
        "set grade.reward.accuracy_weight, for instance",
    )


def _has_terms(reward: JudgedReward) -> bool:
    weights = (
        reward.accuracy_weight, reward.exact_weight, reward.deductions_weight, reward.format_weight,
        reward.repetition_weight, reward.language_weight, reward.shortness_penalty,
        reward.length_cosine.weight if reward.length_cosine else 0.0,
        reward.patterns.reward if reward.patterns else 0.0,
        reward.judge.weight if reward.judge else 0.0,
    )  # fmt: skip
    outcomes = reward.outcomes
    differ = outcomes is not None and len({outcomes.right, outcomes.wrong, outcomes.no_answer}) > 1
    return any(weights) or differ or reward.function is not None
