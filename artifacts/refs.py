"""Kinds of artifacts, and refs, each of which names one artifact in a store."""

from dataclasses import dataclass, field
from typing import Generic, TypeVar


class Kind:
    """A kind of artifact. Subclasses are markers for the type checker; manifests contain their names."""


class Puzzles(Kind):
    """Puzzle sets, one table for each split."""


class PromptLengths(Kind):
    """Numbers of tokens of a puzzle set's prompts under one tokenizer and chat template."""


class Draw(Kind):
    """Consecutive puzzles of a generator's stream. Puzzle sets are made of such stretches."""


class Rollouts(Kind):
    """Sampled completions with token ids and the sampler's logprobs."""


class Answers(Kind):
    """Answers of one model to the puzzles of a benchmark: texts, outcomes, usage and the replies' facts."""


class Grades(Kind):
    """Rewards and advantages of rollouts, with the answers that were read."""


class Texts(Kind):
    """Texts to train on, one row each: prompt, text, and where it is from."""


class Batch(Kind):
    """Packed tensors of one finetune stage."""


class Checkpoint(Kind):
    """A model in Hugging Face layout."""


class Critic(Checkpoint):
    """A critic in Hugging Face layout, which no engine can sample from."""


class Values(Kind):
    """Values of the states of rollouts under a critic, and the advantages of tokens that follow from them."""


class OptimizerState(Kind):
    """Master weights and optimizer state (torch distributed checkpoint)."""


class StepCheckpoint(Kind):
    """State of an unfinished training job after an optimizer step; removed when the job's result is published."""


class Report(Kind):
    """Evaluation results: one row for each completion, and totals."""


class PassRates(Kind):
    """Pass rates of puzzles by checkpoint: how hard a puzzle is for a checkpoint."""


class Transition(Kind):
    """The decision after an iteration of a run with phases: whether its phase ended, and why."""


class Decision(Kind):
    """The decision of an iteration: which checkpoint is promoted, and why."""


K = TypeVar("K", bound=Kind)


@dataclass(frozen=True)
class Ref(Generic[K]):
    """Names one published artifact.

    Attributes:
        kind: Name of the artifact's kind.
        key: Folder of its manifest, relative to the root of the store.
        digest: SHA-256 (hex) of its content.
        reused: Whether the stage that returned the ref found the artifact instead of making it; not part of equality.
    """

    kind: str
    key: str
    digest: str
    reused: bool = field(default=False, compare=False)

    def as_json(self) -> dict[str, str]:
        """Returns the ref as plain JSON, without `reused`."""
        return {"kind": self.kind, "key": self.key, "digest": self.digest}
