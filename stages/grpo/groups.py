"""Groups of completions: the input of packing."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Branch:
    """One completion.

    Attributes:
        tokens: Its token ids.
        logprobs: The sampler's log-probability of each token.
        advantage: The advantage of all its tokens, or one for each.
        by_tool: For each token whether a tool wrote it; such tokens are not in the loss. None: the model wrote all.
        right: Whether all its answers are right.
        number: Number of the completion in the table that it comes from.
    """

    tokens: Sequence[int]
    logprobs: Sequence[float]
    advantage: float | Sequence[float]
    by_tool: Sequence[bool] | None = None
    right: bool = False
    number: int = -1

    @property
    def advantages(self) -> Sequence[float]:
        """The advantage of each token; 0 for those of a tool."""
        values = self.advantage if isinstance(self.advantage, Sequence) else [self.advantage] * len(self.tokens)
        if self.by_tool is None:
            return values
        return [0.0 if tool else value for value, tool in zip(values, self.by_tool, strict=True)]

    @property
    def own(self) -> list[int]:
        """1 for each token that the model wrote, 0 for those of a tool."""
        return [1] * len(self.tokens) if self.by_tool is None else [int(not tool) for tool in self.by_tool]


@dataclass(frozen=True)
class Group:
    """One prompt with the completions sampled from it.

    Attributes:
        prompt: Its token ids.
        branches: The completions.
        number: Tells groups with equal prompts apart, which only episodes have.
    """

    prompt: Sequence[int]
    branches: Sequence[Branch]
    number: int = 0

    @property
    def size_tokens(self) -> int:
        """Number of tokens that the group takes in a row."""
        return len(self.prompt) + sum(len(branch.tokens) for branch in self.branches)
