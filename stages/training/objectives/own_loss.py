"""A loss that a user writes: `finetune.loss.function = "mine.py:loss"` (see docs/own_loss.md).

Shapes: C tokens in the loss of a micro-batch, S completions, L tokens of the longest of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from artifacts.errors import NEW_RUN, BadInputError
from stages.grpo.loss import TokenLoss
from stages.grpo.ratios import importance_ratio
from stages.processes.memory import refused_allocation
from stages.processes.user_file import UserFunction, check_call, load_from
from stages.training.model.transfer import to_device
from stages.training.trainer_batch import FlatRows

OWN = "own/"
"""Beginning of the names of a user's metrics among the sums of a step."""
_OF = "/of"
_SIGNATURE = "def {name}(x): return loss, metrics"


@dataclass(frozen=True)
class LossInputs:
    """The argument of a user's loss: the whole completions of a micro-batch, with 0 where `mask` is 0.

    Attributes:
        new: [S, L] float32 log-probabilities under the weights being trained, differentiable.
        old: [S, L] log-probabilities in the denominator of the ratio (`loss.old_logprobs`), constant.
        sampler: [S, L] log-probabilities that the sampler reported.
        reference: [S, L] log-probabilities under the reference; None without one.
        advantages: [S, L].
        mask: [S, L] float32, 1 for tokens in the loss.
        lengths: [S] float32, tokens in the loss of each completion, at least 1.
    """

    new: Tensor
    old: Tensor
    sampler: Tensor
    reference: Tensor | None
    advantages: Tensor
    mask: Tensor
    lengths: Tensor


class OwnLoss:
    """The function of a user.

    Args:
        function: Its file and name.

    Raises:
        BadInputError: It cannot be loaded, or has changed since the run began.
    """

    def __init__(self, function: UserFunction) -> None:
        self._name, target = function.name, function.name.rpartition(":")[2]
        try:
            self._function: Any = load_from(function.found(), target, str(function.sha256))
            check_call(self._function, _SIGNATURE.format(name=target), ["x"], by_name=False)
        except BadInputError:
            raise
        except Exception as error:
            raise self._refused(f"cannot be loaded ({type(error).__name__}: {error})") from error

    def __call__(
        self, new: Tensor, old: Tensor, sampler: Tensor, reference: Tensor | None, advantages: Tensor, flat: FlatRows
    ) -> tuple[TokenLoss, dict[str, Tensor]]:
        """Returns the losses of tokens, and for each metric of the user its sum and the number of summed values.

        Args:
            new: [C] log-probabilities, as are `old`, `sampler` and `reference`.
            old: [C].
            sampler: [C].
            reference: [C]; None without one.
            advantages: [C].
            flat: The rows of the micro-batch; the tokens of a completion are adjacent in it.

        Raises:
            BadInputError: The function raises an error, or returns something other than loss and metrics.
        """
        _, counts = torch.unique_consecutive(flat.sequences, return_counts=True)
        number = torch.repeat_interleave(torch.arange(len(counts)), counts)
        column = torch.arange(len(number)) - (counts.cumsum(0) - counts)[number]
        shape = (len(counts), int(counts.max()) if len(counts) else 0)
        place = (to_device(number, new.device), to_device(column, new.device))

        def padded(values: Tensor) -> Tensor:
            return torch.zeros(shape, device=values.device).index_put(place, values.float())

        inputs = LossInputs(
            padded(new), padded(old), padded(sampler), None if reference is None else padded(reference),
            padded(advantages), padded(torch.ones_like(old)), to_device(counts.float(), new.device),
        )  # fmt: skip
        loss, metrics = self._called(inputs)
        ratio = importance_ratio(new - old).detach()
        unclipped = torch.zeros_like(ratio, dtype=torch.bool)
        return TokenLoss(loss[place], ratio, unclipped, unclipped), self._sums(metrics, inputs)

    def _called(self, inputs: LossInputs) -> tuple[Tensor, Mapping[str, Tensor]]:
        try:
            returned: Any = self._function(inputs)
        except Exception as error:
            if refused_allocation(f"{type(error).__name__}: {error}"):
                raise
            raise self._refused(f"raised {type(error).__name__}: {str(error)[:200]}") from error
        if not isinstance(returned, tuple) or len(returned) != 2 or not isinstance(returned[1], Mapping):  # pyright: ignore[reportUnknownArgumentType]
            raise self._refused(f"returned {type(returned).__name__}")
        loss, metrics = returned  # pyright: ignore[reportUnknownVariableType]
        if not isinstance(loss, Tensor) or loss.shape != inputs.new.shape:
            found = list(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__  # pyright: ignore[reportUnknownArgumentType]
            raise self._refused(f"returned a loss {found}, with x.new {list(inputs.new.shape)}")
        if inputs.new.requires_grad and not loss.requires_grad:
            raise self._refused("returned a loss that does not depend on x.new")
        return loss, metrics  # pyright: ignore[reportUnknownVariableType]

    def _sums(self, metrics: Mapping[str, Tensor], inputs: LossInputs) -> dict[str, Tensor]:
        sums: dict[str, Tensor] = {}
        for name, values in metrics.items():
            shapes = (inputs.new.shape, inputs.lengths.shape)
            if not isinstance(values, Tensor) or values.shape not in shapes or not str(name).isidentifier():  # pyright: ignore[reportUnnecessaryIsInstance]
                raise self._refused(f"returned the metric {str(name)[:40]!r} of another shape, or under no plain name")
            of_tokens = values.shape == inputs.new.shape
            counted = values.detach().float() * inputs.mask if of_tokens else values.detach().float()
            sums[f"{OWN}{name}"] = counted.sum()
            sums[f"{OWN}{name}{_OF}"] = (inputs.mask if of_tokens else torch.ones_like(inputs.lengths)).sum()
        return sums

    def _refused(self, found: str) -> BadInputError:
        return BadInputError(
            f"finetune.loss.function {self._name}",
            found,
            "a function of x that returns a loss of the shape of x.new, and a dict of metrics of that shape or [S]",
            f"correct it; {NEW_RUN}",
        )


def own_metrics(sums: Mapping[str, float]) -> dict[str, float | None]:
    """Returns the means of a user's metrics over a step by name, from the sums of `OwnLoss`."""
    names = [name.removesuffix(_OF) for name in sums if name.startswith(OWN) and name.count("/") > OWN.count("/")]
    return {name.removeprefix(OWN): sums[name] / max(1.0, sums[f"{name}{_OF}"]) for name in names}
