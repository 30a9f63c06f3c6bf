"""The vocabulary of artifacts: their kinds, and the small values that name one in a store."""

from dataclasses import asdict, dataclass, field
from typing import Any, Generic, TypeVar


class Kind:
    """A kind of artifact. Subclasses are markers for the type checker; their name stands in manifests."""


class Puzzles(Kind):
    """Puzzle sets, a table a split."""


class Draw(Kind):
    """A stretch of a puzzle generator's stream."""


class Rollouts(Kind):
    """Sampled completions with token ids and the sampler's logprobs."""


class Grades(Kind):
    """Rewards and advantages of rollouts, with the reason for each."""


class Batch(Kind):
    """Packed tensors of one finetune stage."""


class Checkpoint(Kind):
    """A model in Hugging Face layout."""


class TrainingState(Kind):
    """fp32 master weights, optimizer state and position (torch distributed checkpoint)."""


class StepCheckpoint(Kind):
    """Where an unfinished training job stood after an optimizer step; removed once the job is published."""


class Report(Kind):
    """Evaluation results, a row a completion and in total."""


class Decision(Kind):
    """A recorded promotion or refusal."""


K = TypeVar("K", bound=Kind)


@dataclass(frozen=True)
class Ref(Generic[K]):
    """Names one published artifact.

    Attributes:
        kind: Name of the artifact's kind.
        key: Where its manifest stands, relative to the root of the store, without `/manifest.json`.
        digest: SHA-256 (hex) of its content.
        reused: Whether it was found rather than made by the stage that returned it; not part of equality.
    """

    kind: str
    key: str
    digest: str
    reused: bool = field(default=False, compare=False)

    def as_json(self) -> dict[str, Any]:
        """The ref as it stands in JSON files."""
        plain = asdict(self)
        del plain["reused"]
        return plain
