"""The packed batch: the tensors on which the finetune stage trains, and their invariants.

A row is a sequence of segments: a prompt, the completions sampled from it, perhaps another prompt with its
completions. A completion attends to its prompt and to itself. Shapes: R rows, T tokens a row, padded on the right.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import get_args, get_type_hints

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load, save

from artifacts.errors import IntegrityError

BATCH_FILE = "batch.safetensors"
RIGHT, GROUPS = "right", "groups"
"""Names of tensors that only some batches have."""
_OPTIONAL = {RIGHT: np.dtype(np.uint8), GROUPS: np.dtype(np.int32)}
_REMEDY = "pack the batch again"


@dataclass(frozen=True)
class PackedBatch:
    """Tensors of a packed batch. A value at index t describes token t itself.

    Attributes:
        tokens: int32 [R, T], 0 in padding.
        position_ids: int32 [R, T], position in prompt and completion together; a prompt begins at 0.
        segment_ids: int32 [R, T], unique in the batch, contiguous in a row, -1 in padding.
        parent_ids: int32 [R, T], segment id of a completion's prompt; a prompt's own id; -1 in padding.
        completion_mask: uint8 [R, T], 1 for completion tokens in the loss; 0 for those that a tool wrote.
        sampler_logprobs: float32 [R, T], 0 outside completions and for tokens of a tool.
        advantages: float32 [R, T], 0 outside completions and for tokens of a tool.
        minibatch: int32 [R], the optimizer step of a row, from 0 without gaps.
        right: uint8 [R, T], 1 for the tokens in the loss of completions that are fully correct; None if the batch
            does not mark them.
        groups: int32 [R, T], the number of the group of a segment, 0 in padding; None if groups have different prompts,
            which tell them apart. Episodes that begin with the same prompt are groups of their own.
    """

    tokens: npt.NDArray[np.int32]
    position_ids: npt.NDArray[np.int32]
    segment_ids: npt.NDArray[np.int32]
    parent_ids: npt.NDArray[np.int32]
    completion_mask: npt.NDArray[np.uint8]
    sampler_logprobs: npt.NDArray[np.float32]
    advantages: npt.NDArray[np.float32]
    minibatch: npt.NDArray[np.int32]
    right: npt.NDArray[np.uint8] | None = None
    groups: npt.NDArray[np.int32] | None = None

    @classmethod
    def dtypes(cls) -> dict[str, np.dtype[np.generic]]:
        """Returns the declared element type of each tensor that every batch has, by name."""
        hints = get_type_hints(cls)  # of a field: ndarray[shape, dtype[scalar]]
        scalars: dict[str, type[np.generic]] = {
            field.name: get_args(get_args(hints[field.name])[1])[0]
            for field in fields(cls)
            if field.name not in _OPTIONAL
        }
        return {name: np.dtype(scalar) for name, scalar in scalars.items()}

    @property
    def minibatches(self) -> int:
        """The number of optimizer steps in one pass."""
        return int(self.minibatch.max()) + 1 if self.minibatch.size else 0

    def to_bytes(self) -> bytes:
        """Returns the batch as a safetensors file."""
        names = [*self.dtypes(), *(name for name in _OPTIONAL if getattr(self, name) is not None)]
        return save({name: np.ascontiguousarray(getattr(self, name)) for name in names})

    @classmethod
    def from_bytes(cls, data: bytes, where: str) -> "PackedBatch":
        """Reads a batch from the content of a safetensors file and checks it.

        Raises:
            IntegrityError: The file is damaged, a tensor is missing or of another type, or an invariant does not hold.
        """
        try:
            tensors: Mapping[str, np.ndarray] = load(data)
        except (SafetensorError, KeyError) as error:  # KeyError: an element type that NumPy does not have
            raise IntegrityError(where, f"unreadable ({error})", "a packed batch", _REMEDY) from error
        dtypes, expected_dtypes = {name: tensor.dtype for name, tensor in tensors.items()}, cls.dtypes()
        expected_dtypes |= {name: dtype for name, dtype in _OPTIONAL.items() if name in dtypes}
        if dtypes != expected_dtypes:
            raise IntegrityError(where, f"tensors {_listed(dtypes)}", _listed(expected_dtypes), _REMEDY)
        batch = cls(**tensors)
        batch.check(where)
        return batch

    def check(self, where: str) -> None:
        """Checks every invariant of a packed batch.

        Args:
            where: Address of the batch, for error messages.

        Raises:
            IntegrityError: An invariant does not hold; the message names it and the first row that breaks it.
        """
        shape = self.tokens.shape
        _require(len(shape) == 2 and self.minibatch.shape == shape[:1], where, f"shape {shape}", "[R, T] and [R]")
        for name in self.dtypes().keys() - {"minibatch"}:
            tensor: np.ndarray = getattr(self, name)
            _require(tensor.shape == shape, where, f"{name} of shape {tensor.shape}", str(shape))
        if self.right is not None:
            _require(self.right.shape == shape, where, f"{RIGHT} of shape {self.right.shape}", str(shape))
            marked = (self.right > self.completion_mask) | (self.right > 1)
            _refuse_rows(marked, where, "a right token outside the loss", "0 or 1, and 0 outside the loss")
        if self.groups is not None:
            _require(self.groups.shape == shape, where, f"{GROUPS} of shape {self.groups.shape}", str(shape))
        self._check_tokens(where)
        self._check_segments(where)
        steps = np.unique(self.minibatch)
        gapless = np.array_equal(steps, np.arange(len(steps)))
        _require(gapless, where, f"minibatch ids {steps.tolist()}", "0, 1, ... without gaps")

    def _check_tokens(self, where: str) -> None:
        """Checks the invariants of single tokens."""
        padding = self.segment_ids < 0
        completion = ~padding & (self.segment_ids != self.parent_ids)
        counted = self.completion_mask == 1
        finite = np.isfinite(self.sampler_logprobs) & np.isfinite(self.advantages)
        _refuse_rows(~padding[:, 1:] & padding[:, :-1], where, "a token after padding", "padding on the right only")
        _refuse_rows(padding & ((self.tokens != 0) | counted), where, "content in padding", "zeros")
        _refuse_rows(counted & ~completion, where, "a prompt token in the loss", "completion tokens only")
        _refuse_rows(~finite, where, "a NaN or an infinity", "finite numbers")
        _refuse_rows(self.sampler_logprobs > 1e-3, where, "a positive logprob", "at most 0")

    def _check_segments(self, where: str) -> None:
        """Checks that each segment is contiguous, and that each completion continues a prompt earlier in its row."""
        same = self.segment_ids[:, 1:] == self.segment_ids[:, :-1]
        inside = same & (self.segment_ids[:, 1:] >= 0)
        steps = self.position_ids[:, 1:] - self.position_ids[:, :-1]
        _refuse_rows(
            inside & (steps != 1), where, "positions that do not count up", "consecutive positions in a segment"
        )
        other_parent = self.parent_ids[:, 1:] != self.parent_ids[:, :-1]
        _refuse_rows(inside & other_parent, where, "a completion without its prompt", "one prompt for all its tokens")
        edge = np.ones_like(self.segment_ids[:, :1], dtype=np.bool_)
        starts = np.concatenate([edge, ~same], axis=1) & (self.segment_ids >= 0)
        ends = np.concatenate([~same, edge], axis=1) & (self.segment_ids >= 0)
        ids = self.segment_ids[starts]  # [S], S segments in the order of rows and columns
        order = np.argsort(ids)
        _require(len(np.unique(ids)) == len(ids), where, "a segment in two pieces", "contiguous segments")
        if not len(ids):
            return
        parents, positions, rows = self.parent_ids[starts], self.position_ids[starts], np.nonzero(starts)[0]
        prompt = order[np.searchsorted(ids, parents, sorter=order).clip(max=len(ids) - 1)]  # [S], index of the prompt
        absent = (ids[prompt] != parents) | (parents[prompt] != parents)
        orphan = absent | (rows[prompt] != rows) | (prompt > np.arange(len(ids)))
        _refuse_segments(orphan, rows, where, "a completion without its prompt", "the prompt earlier in the same row")
        first = np.where(ids == parents, 0, self.position_ids[ends][prompt] + 1)
        _refuse_segments(
            positions != first,
            rows,
            where,
            "a segment at a wrong position",
            "a prompt at 0, a completion after its prompt",
        )


def _listed(dtypes: Mapping[str, np.dtype[np.generic]]) -> str:
    return ", ".join(f"{dtype} {name}" for name, dtype in sorted(dtypes.items()))


def _refuse_rows(broken: npt.NDArray[np.bool_], where: str, problem: str, expected: str) -> None:
    """Raises an error that names the first row with a broken token; `broken` is [R, T]."""
    if broken.any():
        row = int(np.flatnonzero(broken.any(axis=1))[0])
        raise IntegrityError(where, f"row {row}: {problem}", expected, _REMEDY)


def _refuse_segments(
    broken: npt.NDArray[np.bool_], rows: npt.NDArray[np.intp], where: str, problem: str, expected: str
) -> None:
    """Raises an error that names the row of the first broken segment; `broken` and `rows` are [S]."""
    if broken.any():
        raise IntegrityError(where, f"row {int(rows[broken][0])}: {problem}", expected, _REMEDY)


def _require(holds: bool, where: str, problem: str, expected: str) -> None:
    if not holds:
        raise IntegrityError(where, problem, expected, _REMEDY)
