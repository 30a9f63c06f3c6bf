"""The JSON documents of decisions and reports: one definition of each, used to write and to read it."""

from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, ValidationError

from artifacts.errors import IntegrityError
from artifacts.reading import Artifact
from artifacts.refs import Checkpoint, Decision, Ref, Report
from artifacts.store.store import Store
from stages.statistics.estimates import Interval

DECISION_FILE = "decision.json"
ref_as_json = PlainSerializer(Ref.as_json, return_type=dict[str, Any])
CheckpointRef = Annotated[Ref[Checkpoint], ref_as_json]
ReportRef = Annotated[Ref[Report], ref_as_json]


class Record(BaseModel):
    """A JSON document. A field that has its default value is left out of the JSON; unknown keys are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    @classmethod
    def of(cls, content: object, where: str) -> Self:
        """Returns the record that a JSON value holds.

        Args:
            content: The decoded JSON.
            where: Name of the document, for the error.

        Raises:
            IntegrityError: A field is missing or has another type.
        """
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            first = error.errors()[0]
            problem = f"{'.'.join(map(str, first['loc'])) or 'content'}: {first['msg']}"
            raise IntegrityError(where, problem, f"the fields of {cls.__name__}") from error

    def as_json(self) -> dict[str, Any]:
        """Returns the record as a JSON object."""
        return self.model_dump(mode="json", exclude_defaults=True)


class MeasuredCheckpoint(Record):
    """A checkpoint with its score on the validation split.

    Attributes:
        checkpoint: The checkpoint.
        report: Its evaluation.
        iteration: Number of the iteration that made it; 0 is the model before GRPO.
        score: Mean over puzzles of the metric that promotion compares.
        decided_in: Key of the decision that promoted it; None if no decision did.
    """

    checkpoint: CheckpointRef
    report: ReportRef
    iteration: int
    score: float
    decided_in: str | None = None


class CurvePoint(Record):
    """A candidate on the learning curve that the rule of rollback examines.

    Attributes:
        iteration: Number of the candidate's iteration.
        score: Its score.
        noise: Variance of the score around its level; None if it is not known.
    """

    iteration: int
    score: float
    noise: float | None


class PromotionDecision(Record):
    """The content of a decision.

    Attributes:
        promoted: Whether the candidate is promoted.
        rolled_back: Whether the learning curve has fallen, so that the run returns to the best checkpoint.
        reason: Both in words.
        gain: Paired difference of the candidate from the best so far; None for the first candidate.
        gain_over_standing: Paired difference from the checkpoint that was promoted before; None for the first
            candidate.
        degraded: Number of candidates in the fallen stretch; 0 if the curve has not fallen.
        standing: The checkpoint that is promoted after this decision.
        best: The checkpoint with the highest score so far.
        first: The run's first candidate.
        candidate: The checkpoint decided on.
        candidates: Number of candidates so far.
        curve: Candidates since the last rollback; None if no rule of rollback was given.
    """

    promoted: bool
    rolled_back: bool
    reason: str
    gain: Interval | None = None
    gain_over_standing: Interval | None = None
    degraded: int
    standing: MeasuredCheckpoint
    best: MeasuredCheckpoint
    first: MeasuredCheckpoint
    candidate: MeasuredCheckpoint
    candidates: int
    curve: list[CurvePoint] | None = None


def read_decision(decision: Ref[Decision], store: Store) -> PromotionDecision:
    """Returns the content of a decision.

    Raises:
        BadInputError: There is no such decision.
        IntegrityError: Its content is damaged or lacks a field.
    """
    content = Artifact.open(store, decision).read_json(DECISION_FILE)
    return PromotionDecision.of(content, f"{store.url}/{decision.key}/{DECISION_FILE}")


class Measurement(Record):
    """Figures of one mode of answering, sampled or greedy.

    Attributes:
        accuracy: Mean share of right answers, with its interval over puzzles.
        exact: Mean share of completions whose answers are all right, with its interval over puzzles.
        deductions: Mean number of statements a completion, by kind (`stages.environments.tables.DEDUCTION_COLUMNS`);
            None if the puzzles have no formal clues to check statements against.
        completions: Number of completions.
        completion_tokens_mean: Mean length, tokens.
        truncated_fraction: Share of completions that reached the token limit.
        early_stopped_fraction: Share of completions that `early_stop` ended.
        unread: Counts of answers that could not be read or compared, by reason (`missing`, `timeout`, ...).
    """

    accuracy: Interval
    exact: Interval
    deductions: dict[str, float | None]
    completions: int
    completion_tokens_mean: float
    truncated_fraction: float
    early_stopped_fraction: float = 0.0
    unread: dict[str, int] = Field(default_factory=dict[str, int])


class Measurements(Record):
    """Figures by mode of answering.

    Attributes:
        sampled: Figures of the sampled answers; None if there are none.
        greedy: Figures of the most likely answers; None if there are none.
    """

    sampled: Measurement | None = None
    greedy: Measurement | None = None


class Faithfulness(Record):
    """Agreement of a strategy's notes with the clues of their puzzles.

    Attributes:
        restated: Mean share of the clues that the notes state.
        invented: Share of the statements that the clues do not entail; None if the notes make no statement.
    """

    restated: Interval
    invented: Interval | None = None


class AnswerFigures(Record):
    """Figures of one answer to each puzzle.

    Attributes:
        accuracy: Mean share of right answers, with its interval over puzzles.
        exact: Mean share of puzzles whose answers are all right, with its interval over puzzles.
        tokens: Mean number of tokens that the answer to a puzzle costs, with its interval over puzzles.
    """

    accuracy: Interval
    exact: Interval
    tokens: Interval


class StrategyFigures(AnswerFigures):
    """Figures of a strategy at test time.

    Attributes:
        points: Figures of its intermediate answers, by name: after a round, or with a budget of tokens.
        faithfulness: Agreement of its notes with the clues; None without notes, or if nothing can be proved.
    """

    points: dict[str, AnswerFigures] = Field(default_factory=dict[str, AnswerFigures])
    faithfulness: Faithfulness | None = None


class ReliabilityFigures(Record):
    """Figures of k samples of each puzzle, with intervals over puzzles.

    Attributes:
        pass_at: Chance that one of k samples has all answers right (unbiased).
        best: Expected highest accuracy of k samples (unbiased).
        majority: Accuracy of the most frequent whole answer of k samples.
        majority_exact: Share of puzzles for which this answer is all right.
        majority_letters: Accuracy of the most frequent answer to each question.
    """

    pass_at: Interval
    best: Interval
    majority: Interval
    majority_exact: Interval
    majority_letters: Interval


class ReportFigures(Record):
    """The figures of an evaluation.

    Attributes:
        puzzles: Number of puzzles.
        split: Their split of the puzzle set.
        grader: Rule by which answers were read: `strict`, `published`, or the environment's own grader.
        sampled: Figures of the sampled answers; None if there are none.
        greedy: Figures of the most likely answers; None if there are none.
        tasks: Figures by environment; empty if the puzzles are of one environment.
        strategies: Figures of strategies at test time, by name; empty if there is one sample of each puzzle and the
            evaluation has no strategy of its own.
        reliability: Figures by the number of samples k, the powers of two and the number of all.
    """

    puzzles: int
    split: str
    grader: str
    sampled: Measurement | None = None
    greedy: Measurement | None = None
    tasks: dict[str, Measurements] = Field(default_factory=dict[str, Measurements])
    strategies: dict[str, StrategyFigures] = Field(default_factory=dict[str, StrategyFigures])
    reliability: dict[str, ReliabilityFigures] = Field(default_factory=dict[str, ReliabilityFigures])
