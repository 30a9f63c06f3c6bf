"""The steps of a completion: the statements that it asserts and its lettered answers, each with a verdict."""

from dataclasses import dataclass

from artifacts.schemas import StepVerdict
from stages.environments.grading import answer_ends
from stages.environments.puzzle import Asserted, Graded, Grader


@dataclass(frozen=True)
class Step:
    """A statement or a lettered answer.

    Attributes:
        verdict: `right` or `wrong` for an answer. A statement that repeats an earlier one is `repeated`, true or not.
        end: Number of characters of the completion up to the end of the step.
    """

    verdict: StepVerdict
    end: int


def steps_of(text: str, asserted: list[Asserted], graded: Graded, grader: Grader) -> list[Step]:
    """Returns the steps of a completion in the order of their ends.

    Args:
        text: The completion.
        asserted: Its statements.
        graded: Its answers; a letter without an answer is no step.
        grader: Rule by which the answers were read.
    """
    statements = [Step("repeated" if item.repeated else item.verdict, item.end) for item in asserted]
    answers = [
        Step("right" if graded.answers[letter].correct else "wrong", end)
        for letter, end in answer_ends(text, graded.answers.keys(), grader).items()
    ]
    return sorted([*statements, *answers], key=lambda step: step.end)
