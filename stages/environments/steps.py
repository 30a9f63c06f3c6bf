"""The steps of a completion: the statements that it asserts and its lettered answers, each with a verdict."""

from collections.abc import Mapping
from dataclasses import dataclass

from artifacts.schemas import StepVerdict
from stages.environments.puzzle import Asserted, Graded


@dataclass(frozen=True)
class Step:
    """A statement or a lettered answer.

    Attributes:
        verdict: `right` or `wrong` for an answer. A statement that repeats an earlier one is `repeated`, true or not.
        end: Number of characters of the completion up to the end of the step.
    """

    verdict: StepVerdict
    end: int


def steps_of(asserted: list[Asserted], graded: Graded, answer_ends: Mapping[str, int]) -> list[Step]:
    """Returns the steps of a completion in the order of their ends.

    Args:
        asserted: Its statements.
        graded: Its answers.
        answer_ends: Number of characters up to the end of each answer, by letter; a letter without one is not a step.
    """
    statements = [Step("repeated" if item.repeated else item.verdict, item.end) for item in asserted]
    answers = [Step("right" if graded.answers[letter].correct else "wrong", end) for letter, end in answer_ends.items()]
    return sorted([*statements, *answers], key=lambda step: step.end)
