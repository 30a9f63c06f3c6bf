"""A packed batch as the trainer reads it: flat rows without padding, in micro-batches, divided among processes.

Shapes: R rows, T tokens of a padded row, N tokens of a micro-batch, C tokens in the loss.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from artifacts import tensors
from artifacts.errors import BadInputError, IntegrityError

COLUMNS = tuple(name for name in tensors.PackedBatch.dtypes() if name != "minibatch")
"""The tensors that have a value for each token."""


@dataclass(frozen=True)
class FlatRows:
    """Some rows of a batch without their padding, concatenated.

    Attributes:
        tokens: [N] int64.
        positions: [N] int64.
        segment_ids: [N] int64.
        parent_ids: [N] int64.
        predictors: [2, C] int64: flat index of the predicting token and of the predicted token.
        sequences: [C] int64, segment of each predicted token.
        sampler_logprobs: [C] float32.
        advantages: [C] float32.
        addresses: [C] int64, row * T + column in the batch; values that are kept between steps have this index.
    """

    tokens: Tensor
    positions: Tensor
    segment_ids: Tensor
    parent_ids: Tensor
    predictors: Tensor
    sequences: Tensor
    sampler_logprobs: Tensor
    advantages: Tensor
    addresses: Tensor


class TrainerBatch:
    """A packed batch in memory, checked.

    Args:
        path: Safetensors file in the packed layout.
        vocab_size: Upper bound of token ids, exclusive.

    Raises:
        BadInputError: The file is not a packed batch that can be trained on.
    """

    def __init__(self, path: Path, vocab_size: int) -> None:
        try:
            packed = tensors.PackedBatch.from_bytes(path.read_bytes(), str(path))
        except OSError as error:
            raise BadInputError(str(path), f"unreadable ({error})", "a packed batch") from error
        except IntegrityError as error:  # a retry would not repair it
            raise BadInputError(error.where, error.found, error.expected, error.remedy) from error
        self._columns = {name: torch.from_numpy(getattr(packed, name)) for name in tensors.PackedBatch.dtypes()}
        right = packed.right if packed.right is not None else np.zeros_like(packed.completion_mask)
        self._columns[tensors.RIGHT] = torch.from_numpy(right)
        if packed.groups is not None:
            self._columns[tensors.GROUPS] = torch.from_numpy(packed.groups)
        self.real = self._columns["segment_ids"] >= 0
        """[R, T] bool, False in padding."""
        self.row_tokens: list[int] = self.real.sum(1).tolist()
        tokens = self._columns["tokens"][self.real]
        if tokens.numel() == 0:
            raise BadInputError(str(path), "no tokens", "at least one row")
        if int(tokens.min()) < 0 or int(tokens.max()) >= vocab_size:
            raise BadInputError(
                f"{path}: tokens", f"ids {int(tokens.min())} to {int(tokens.max())}", f"0 to {vocab_size - 1}",
                "was the batch packed with another model's tokenizer?",
            )  # fmt: skip
        steps = self._columns["minibatch"]
        self.steps: list[list[int]] = [
            torch.nonzero(steps == step).view(-1).tolist() for step in range(packed.minibatches)
        ]
        """Rows of each mini-batch."""

    @property
    def shape(self) -> tuple[int, int]:
        """The number of rows R and the padded length T."""
        rows, tokens = self.real.shape
        return rows, tokens

    def loss_sequences(self, rows: list[int]) -> tuple[Tensor, Tensor]:
        """Returns addresses and segments of the tokens in the loss of some rows: two [C] int64, in address order."""
        chosen = torch.zeros_like(self.real)
        chosen[rows] = self._columns["completion_mask"][rows] > 0
        addresses = torch.nonzero(chosen.view(-1)).view(-1)
        return addresses, self._columns["segment_ids"].view(-1)[addresses].long()

    def values(self, name: str, addresses: Tensor) -> Tensor:
        """Returns the values of a column, such as `right`, at some addresses: [C]."""
        return self._columns[name].view(-1)[addresses]

    def groups(self, addresses: Tensor) -> Tensor:
        """Returns the number of each completion token's group: [C] int64.

        If the batch has no numbers of groups, completions with equal prompt tokens belong to one group, because a group
        that is split over rows repeats its prompt as another segment.
        """
        if tensors.GROUPS in self._columns:
            return self.values(tensors.GROUPS, addresses).long()
        segments, parents = self._columns["segment_ids"].view(-1), self._columns["parent_ids"].view(-1)
        prompt = self.real.view(-1) & (segments == parents)
        prompt_ids, lengths = segments[prompt].unique_consecutive(return_counts=True)
        prompts = self._columns["tokens"].view(-1)[prompt].split(lengths.tolist())
        contents = [tokens.numpy().tobytes() for tokens in prompts]
        group_of = {content: number for number, content in enumerate(dict.fromkeys(contents))}
        order = torch.argsort(prompt_ids)
        groups = torch.tensor([group_of[content] for content in contents])[order]
        return groups[torch.searchsorted(prompt_ids[order], parents[addresses])]

    @cached_property
    def mean_length(self) -> float:
        """The mean number of tokens in the loss per completion that has any, over the whole batch; 0 if none has."""
        _, sequences = self.loss_sequences(list(range(self.shape[0])))
        return sequences.numel() / max(1, sequences.unique().numel())

    def flat(self, rows: list[int]) -> FlatRows:
        """Returns some rows of the batch without their padding."""
        real = self.real[rows]
        column = {name: self._columns[name][rows][real] for name in COLUMNS}
        segments, parents = column["segment_ids"].long(), column["parent_ids"].long()
        index = torch.arange(segments.numel())
        starts = torch.ones_like(segments, dtype=torch.bool)
        starts[1:] = segments[1:] != segments[:-1]
        names = segments[starts]
        ends = torch.cat([index[starts][1:], index.new_tensor([segments.numel()])]) - 1
        order = torch.argsort(names)
        target = torch.nonzero(column["completion_mask"] > 0).view(-1)
        prompt_end = ends[order][torch.searchsorted(names[order], parents)]
        predictor = torch.where(starts[target], prompt_end[target], target - 1)
        width = self.real.shape[1]
        addresses = (torch.tensor(rows)[:, None] * width + torch.arange(width))[real]
        return FlatRows(
            tokens=column["tokens"].long(),
            positions=column["position_ids"].long(),
            segment_ids=segments,
            parent_ids=parents,
            predictors=torch.stack([predictor, target]),
            sequences=segments[target],
            sampler_logprobs=column["sampler_logprobs"][target],
            advantages=column["advantages"][target],
            addresses=addresses[target],
        )


def micro_batches(
    rows: list[int], row_tokens: list[int], shares: int, micro_batch_tokens: int
) -> list[list[list[int]]]:
    """Divides rows into shares, and each share into micro-batches.

    The rows are assigned from the largest to the smallest, each to the share with the fewest tokens. All shares get the
    same number of micro-batches, because processes gather sharded weights together; the last ones may be empty.

    Args:
        rows: Rows of a mini-batch.
        row_tokens: Tokens of every row of the batch.
        shares: Number of shares, see `RowShare`.
        micro_batch_tokens: Tokens of a micro-batch; a longer row gets one of its own.

    Returns:
        For each share its micro-batches, each a list of rows.
    """
    loads = [0] * shares
    micro_batches_of: list[list[list[int]]] = [[] for _ in range(shares)]
    filled = [0] * shares
    for row in sorted(rows, key=lambda item: (-row_tokens[item], item)):
        share = loads.index(min(loads))
        if not micro_batches_of[share] or filled[share] + row_tokens[row] > micro_batch_tokens:
            micro_batches_of[share].append([])
            filled[share] = 0
        micro_batches_of[share][-1].append(row)
        loads[share] += row_tokens[row]
        filled[share] += row_tokens[row]
    count = max(len(batches) for batches in micro_batches_of)
    return [batches + [[] for _ in range(count - len(batches))] for batches in micro_batches_of]
