"""The packed batch: tensors that the finetune stage trains on, and what must hold of them.

A row is a sequence of segments: a prompt, then the completions sampled from it, then perhaps another prompt with
its completions. A completion attends to its prompt and to itself. Shapes: R rows, T tokens a row, padded on the right.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import get_args, get_type_hints

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load, save

from artifacts.errors import IntegrityError

BATCH_FILE = "batch.safetensors"


@dataclass(frozen=True)
class PackedBatch:
    """Tensors of a packed batch. A value at index t is about token t itself.

    Attributes:
        tokens: int32 [R, T], 0 in padding.
        position_ids: int32 [R, T], position within the token's own sequence; a completion continues its prompt.
        segment_ids: int32 [R, T], unique in the batch, contiguous in a row, -1 in padding.
        parent_ids: int32 [R, T], segment id of a completion's prompt; a prompt's own id; -1 in padding.
        completion_mask: uint8 [R, T], 1 where a completion token takes part in the loss.
        sampler_logprobs: float32 [R, T], 0 outside completions.
        advantages: float32 [R, T], 0 outside completions.
        weights: float32 [R, T], loss weight >= 0, 0 where completion_mask is 0.
        minibatch: int32 [R], the optimizer step, from 0, that a row belongs to.
    """

    tokens: npt.NDArray[np.int32]
    position_ids: npt.NDArray[np.int32]
    segment_ids: npt.NDArray[np.int32]
    parent_ids: npt.NDArray[np.int32]
    completion_mask: npt.NDArray[np.uint8]
    sampler_logprobs: npt.NDArray[np.float32]
    advantages: npt.NDArray[np.float32]
    weights: npt.NDArray[np.float32]
    minibatch: npt.NDArray[np.int32]

    @classmethod
    def dtypes(cls) -> dict[str, np.dtype[np.generic]]:
        """Names and element types of the tensors, as the fields state them; whoever lists them asks here."""
        hints = get_type_hints(cls)  # of a field: ndarray[shape, dtype[scalar]]
        scalars: dict[str, type[np.generic]] = {
            field.name: get_args(get_args(hints[field.name])[1])[0] for field in fields(cls)
        }
        return {name: np.dtype(scalar) for name, scalar in scalars.items()}

    @property
    def minibatches(self) -> int:
        """Number of optimizer steps in one pass."""
        return int(self.minibatch.max()) + 1 if self.minibatch.size else 0

    def to_bytes(self) -> bytes:
        """The batch as a safetensors file."""
        return save({name: np.ascontiguousarray(getattr(self, name)) for name in self.dtypes()})

    @classmethod
    def from_bytes(cls, data: bytes, where: str) -> "PackedBatch":
        """Reads a batch and checks it.

        Raises:
            IntegrityError: A tensor is missing or of another type, or an invariant does not hold.
        """
        tensors: Mapping[str, np.ndarray] = load(data)
        found, wanted = {name: tensor.dtype for name, tensor in tensors.items()}, cls.dtypes()
        if found != wanted:
            raise IntegrityError(where, f"tensors {_told(found)}", _told(wanted), "pack the batch again")
        batch = cls(**tensors)
        batch.check(where)
        return batch

    def check(self, where: str) -> None:
        """Checks every invariant of a packed batch.

        Raises:
            IntegrityError: One does not hold; names it and the first row that breaks it.
        """
        shape = self.tokens.shape
        padding = self.segment_ids < 0
        completion = ~padding & (self.segment_ids != self.parent_ids)
        counted = self.completion_mask == 1
        finite = np.isfinite(self.sampler_logprobs) & np.isfinite(self.advantages) & np.isfinite(self.weights)
        _require(len(shape) == 2 and self.minibatch.shape == shape[:1], where, f"shape {shape}", "[R, T] and [R]")
        for name in self.dtypes().keys() - {"minibatch"}:
            tensor: np.ndarray = getattr(self, name)
            _require(tensor.shape == shape, where, f"{name} of shape {tensor.shape}", str(shape))
        _rows(~padding[:, 1:] & padding[:, :-1], where, "a token behind padding", "padding on the right only")
        _rows(padding & ((self.tokens != 0) | counted), where, "content in padding", "zeros")
        _rows(counted & ~completion, where, "a prompt token in the loss", "completion tokens only")
        _rows(~finite, where, "a NaN or an infinity", "finite numbers")
        _rows(self.sampler_logprobs > 1e-3, where, "a positive logprob", "at most 0")
        _rows(
            (self.weights < 0) | ((self.weights != 0) & ~counted), where, "a stray loss weight", ">= 0, masked tokens 0"
        )
        self._check_segments(where, completion)
        steps = np.unique(self.minibatch)
        _require(
            np.array_equal(steps, np.arange(len(steps))),
            where,
            f"minibatch ids {steps.tolist()}",
            "0, 1, ... without gaps",
        )

    def _check_segments(self, where: str, completion: npt.NDArray[np.bool_]) -> None:
        same = self.segment_ids[:, 1:] == self.segment_ids[:, :-1]
        inside = same & (self.segment_ids[:, 1:] >= 0)
        steps = self.position_ids[:, 1:] - self.position_ids[:, :-1]
        _rows(inside & (steps != 1), where, "positions that do not count up", "consecutive positions in a segment")
        starts = np.concatenate([np.ones_like(same[:, :1]), ~same], axis=1) & (self.segment_ids >= 0)
        ids = self.segment_ids[starts]
        _require(len(np.unique(ids)) == len(ids), where, "a segment in two pieces", "contiguous segments")
        prompt_starts = starts & ~completion
        _rows(prompt_starts & (self.position_ids != 0), where, "a prompt that starts late", "position 0")
        for row in np.flatnonzero((starts & completion).any(axis=1)):
            last_position = {
                int(segment): int(position)
                for segment, position in zip(self.segment_ids[row], self.position_ids[row], strict=True)
            }
            for column in np.flatnonzero(starts[row] & completion[row]):
                parent = int(self.parent_ids[row, column])
                found = int(self.position_ids[row, column])
                _require(
                    parent in last_position and bool((self.segment_ids[row, :column] == parent).any()),
                    where,
                    f"row {row}: a completion without its prompt",
                    "the prompt earlier in the same row",
                )
                _require(
                    found == last_position[parent] + 1,
                    where,
                    f"row {row}: a completion at position {found}",
                    str(last_position[parent] + 1),
                )


def _told(dtypes: Mapping[str, np.dtype[np.generic]]) -> str:
    return ", ".join(f"{dtype} {name}" for name, dtype in sorted(dtypes.items()))


def _rows(broken: npt.NDArray[np.bool_], where: str, found: str, expected: str) -> None:
    if broken.any():
        row = int(np.flatnonzero(broken.any(axis=1))[0])
        raise IntegrityError(where, f"row {row}: {found}", expected, "pack the batch again")


def _require(holds: bool, where: str, found: str, expected: str) -> None:
    if not holds:
        raise IntegrityError(where, found, expected, "pack the batch again")
