"""Evaluations of a checkpoint outside its run follow the limits of the run's training."""

from typing import TypeVar

from artifacts.errors import BadInputError
from flows.config.settings import validate
from stages.evaluate import EvaluateConfig
from stages.sampling.config import SamplingConfig
from stages.sampling.limits import FOLLOWED
from stages.strategies.config import problem_of

S = TypeVar("S", bound=SamplingConfig)


def as_trained(sampling: S, trained: SamplingConfig | None) -> S:
    """Returns the settings of an evaluation with the limits of a run's iterations where it sets none.

    Args:
        sampling: Settings as a person gave them.
        trained: Settings by which the run's iterations sample; None for a model that belongs to no run.

    Raises:
        BadInputError: The settings contradict the limits of the run.
    """
    if trained is None:
        return sampling
    limits = trained.model_dump(mode="json", include=set(FOLLOWED))
    given = sampling.model_dump(mode="json", include=sampling.model_fields_set)
    return validate(type(sampling), {**limits, **given}, "sampling with the limits of the run's training")


def evaluated_as_trained(config: EvaluateConfig, trained: SamplingConfig | None) -> EvaluateConfig:
    """Returns the settings of an evaluation outside a run with the limits of the checkpoint's run (see `as_trained`).

    Raises:
        BadInputError: A strategy cannot be measured with the limits of the run.
    """
    followed = config.model_copy(update={"sampled": as_trained(config.sampled, trained)})
    samples, calls = followed.sampled.samples_per_prompt, followed.sampled.tool_calls
    if problem := problem_of(followed.strategies, samples, calls):
        raise BadInputError("evaluate", problem, "settings that are compatible with those of the run", "set them")
    return followed


def cut_below_training(sampling: SamplingConfig, trained: SamplingConfig, where: str) -> list[str]:
    """Returns a warning if answers are cut earlier than in training; otherwise no line.

    Args:
        where: Name of the settings.
    """
    if sampling.max_tokens >= trained.max_tokens:
        return []
    return [
        f"warning: {where}.max_tokens is {sampling.max_tokens}, but completions are trained with up to "
        f"{trained.max_tokens} tokens: longer answers are measured as cut"
    ]
