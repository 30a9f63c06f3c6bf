"""Packing of groups of completions into rows. A row has each prompt once, with its completions as branches.

First-fit decreasing divides a group that is larger than a row into blocks, each a prompt with some of its completions,
and then distributes the blocks over the rows of each mini-batch. `rows_multiple` divides rows after that.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Annotated, Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from artifacts.config import Config
from artifacts.errors import NEW_RUN, BadInputError
from artifacts.tensors import RIGHT, PackedBatch
from stages.grpo.groups import Branch, Group


class PackConfig(Config):
    """Packing of rollouts into rows, and of rows into optimizer steps."""

    row_tokens: Literal["auto"] | Annotated[int, Field(ge=16, le=10_000_000)] = Field(
        default="auto",
        description="Token budget of a row. auto: the longest prompt plus a group of completions of the largest "
        "length, decided before anything is sampled; less if the memory of the trainer allows less, or if a step would "
        "have fewer rows than trainer processes, but at least the longest prompt plus one completion of the largest "
        "length. The number is frozen with the recipe, so the run keeps it on every machine.",
    )
    overlong: Literal["refuse", "drop"] = Field(
        default="refuse",
        description="Completions that do not fit into a row after their prompt. `refuse`: a run does not begin if rows "
        "are shorter than the longest prompt with a completion of `max_tokens`. `drop`: such completions are left out "
        "and counted; their rewards still count in the advantages of their group.",
    )
    updates: int = Field(
        default=1,
        ge=1,
        le=1_000_000,
        description="Number of optimizer steps in one pass over the rollouts, at most one for each group that is "
        "trained on. If few groups have a signal, each step is small at an unchanged rate; `minibatch_size` keeps its "
        "size instead.",
    )
    minibatch_size: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000_000,
        description="Size of an optimizer step in units of `minibatch_unit`; the last step may be smaller. The number "
        "of steps then depends on the number of groups that are trained on. null = `updates` sets it.",
    )
    minibatch_unit: Literal["puzzles", "completions", "rows"] = Field(
        default="puzzles",
        description="Unit of `minibatch_size`: puzzles with all their completions (verl), completions, so that a group "
        "may be divided between steps (TRL, OpenRLHF), or packed rows (OpenPipe).",
    )
    uniform_groups: Literal["dropped", "kept"] = Field(
        default="dropped",
        description="Groups whose advantages are all 0 are left out, or kept. Kept groups add nothing to the policy "
        "loss, but count in its denominators, the entropy bonus and the KL term.",
    )
    completions: Literal["all", "right"] = Field(
        default="all",
        description="Completions that are trained on: all with an advantage, or only those with all answers right. "
        "With the loss `cross_entropy` the latter is rejection-sampled fine-tuning (arXiv 2308.01825). Then set "
        "`uniform_groups` to `kept`, or groups of right completions only are left out.",
    )
    mark_right: bool = Field(
        default=False,
        description="Mark the tokens of completions with all answers right, which `finetune.loss.positive_nll` needs.",
    )
    last_token_advantage: Literal["kept", "zero"] = Field(
        default="kept",
        description="Advantage of a completion's last token. `zero` sets it to 0, so that GRPO does not unlearn when "
        "to stop (OpenPipe); the token stays in the loss.",
    )
    rows_multiple: int = Field(
        default=1,
        ge=1,
        le=65_536,
        description="The longest rows of an optimizer step are divided in two until their number is a multiple of "
        "this. Set it to the number of trainer processes, or a multiple, if steps have few rows: a process without "
        "rows waits for the others. A divided group repeats its prompt; rows of one completion stay whole.",
    )
    seed: int = Field(default=0, ge=0, description="Seed of the shuffle that assigns puzzles to optimizer steps.")

    @property
    def row_size(self) -> int:
        """Token budget of a row as a number.

        Raises:
            BadInputError: It is `auto`, which only a run, `plan` and `doctor` decide.
        """
        if self.row_tokens == "auto":
            raise BadInputError("pack.row_tokens", "auto", "a number", "write the number; only new runs decide it")
        return self.row_tokens

    @model_validator(mode="after")
    def _steps_are_counted_once(self) -> Self:
        if self.minibatch_size is not None and self.updates != 1:
            raise ValueError(f"updates is {self.updates}, but the number of steps follows from minibatch_size")
        if self.minibatch_size is None and self.minibatch_unit != "puzzles":
            raise ValueError(f"minibatch_unit is {self.minibatch_unit!r}, but minibatch_size is not given")
        return self


@dataclass
class PackingFacts:
    """Counts of a packing, for the manifest.

    Attributes:
        rows: Rows of the batch.
        row_tokens: Tokens of a row, padding included.
        used_tokens: Tokens of all rows without padding.
        completion_tokens: Tokens in the loss.
        minibatches: Optimizer steps of one pass.
        groups: Groups in the batch.
        completions: Completions in the batch.
        overlong_completions: Completions that were left out because they do not fit into a row after their prompt.
        empty_completions: Completions without tokens, which are left out.
        split_groups: Groups that were divided into several blocks because they are larger than a row.
    """

    rows: int = 0
    row_tokens: int = 0
    used_tokens: int = 0
    completion_tokens: int = 0
    minibatches: int = 0
    groups: int = 0
    completions: int = 0
    overlong_completions: int = 0
    empty_completions: int = 0
    split_groups: int = 0


def pack_groups(groups: Sequence[Group], config: PackConfig) -> tuple[PackedBatch, PackingFacts]:
    """Packs groups into rows.

    Args:
        groups: Prompts with their completions. Empty completions are left out and counted.
        config: Settings of the packing.

    Returns:
        The batch, which may have no rows, and its counts.

    Raises:
        BadInputError: A completion does not fit into a row after its prompt, and `overlong` is `refuse`.
    """
    rows, minibatch, facts = _packed_rows(groups, config)
    batch = _lay_out(rows, minibatch, config)
    facts.rows, facts.row_tokens = batch.tokens.shape
    facts.minibatches = batch.minibatches
    facts.used_tokens = int((batch.segment_ids >= 0).sum())
    facts.completion_tokens = int(batch.completion_mask.sum())
    return batch, facts


def pack_numbered(groups: Sequence[Group], config: PackConfig) -> tuple[PackedBatch, npt.NDArray[np.int64]]:
    """Packs groups into rows as `pack_groups` does.

    Returns:
        The batch, and for each of its tokens the number of its completion: [R, T], -1 for prompts and padding.
    """
    rows, minibatch, _ = _packed_rows(groups, config)
    batch = _lay_out(rows, minibatch, config)
    of_segments = [n for row in rows for group in row for n in (-1, *(branch.number for branch in group.branches))]
    return batch, np.array([*of_segments, -1])[batch.segment_ids]  # the last one is that of padding


def by_completion(
    values: npt.NDArray[np.float64], numbers: npt.NDArray[np.int64], count: int
) -> list[npt.NDArray[np.float64]]:
    """Returns the values of each completion's tokens, in order.

    Args:
        values: [R, T], as wide as a batch.
        numbers: [R, T] number of the completion of each token; negative for tokens that are left out.
        count: Number of completions; one without tokens has no values.
    """
    values, numbers = values[numbers >= 0], numbers[numbers >= 0]
    order = np.argsort(numbers, kind="stable")
    starts = np.searchsorted(numbers[order], np.arange(count + 1))
    return [values[order[first:last]] for first, last in pairwise(starts)]


def _packed_rows(groups: Sequence[Group], config: PackConfig) -> tuple[list[list[Group]], list[int], PackingFacts]:
    """Returns the groups of each row, the optimizer step of each row, and the counts that do not depend on tensors."""
    facts = PackingFacts()
    fitting = [fitted for group in groups if (fitted := _fit(group, config, facts)).branches]
    facts.groups, facts.completions = len(fitting), sum(len(group.branches) for group in fitting)
    generator = random.Random(config.seed)
    generator.shuffle(fitting)
    rows: list[list[Group]] = []
    minibatch: list[int] = []
    for step, groups_of_step in enumerate(_steps(fitting, config)):
        blocks = [block for group in groups_of_step for block in _blocks(group, config.row_size, facts)]
        bins = _first_fit_decreasing([block.size_tokens for block in blocks], config.row_size)
        packed = [[blocks[index] for index in row] for row in bins]
        rows += packed
        minibatch += [step] * len(packed)
    if config.minibatch_size is not None and config.minibatch_unit == "rows":
        generator.shuffle(rows)  # packing has sorted the rows from the longest to the shortest groups
        minibatch = [row // config.minibatch_size for row in range(len(rows))]
    if config.rows_multiple == 1:
        return rows, minibatch, facts
    steps = [[row for _, row in members] for _, members in groupby(zip(minibatch, rows, strict=True), itemgetter(0))]
    divided = [_divided(step, config.rows_multiple) for step in steps]
    numbers = [number for number, step in enumerate(divided) for _ in step]
    return [row for step in divided for row in step], numbers, facts


def _steps(groups: Sequence[Group], config: PackConfig) -> list[list[Group]]:
    """Returns the groups of each optimizer step; all groups together if the unit is `rows`, which do not exist yet."""
    size = config.minibatch_size
    if size is None:
        updates = min(config.updates, len(groups))
        return [list(groups[update::updates]) for update in range(updates)]
    match config.minibatch_unit:
        case "rows":
            return [list(groups)]
        case "puzzles":
            return [list(groups[start : start + size]) for start in range(0, len(groups), size)]
        case "completions":
            branches = [(group, branch) for group in groups for branch in group.branches]
            return [_regrouped(branches[start : start + size]) for start in range(0, len(branches), size)]


def _regrouped(branches: Sequence[tuple[Group, Branch]]) -> list[Group]:
    """Returns groups that have only the given branches, in the same order.

    Args:
        branches: Branches with the groups that they come from; those of a group are adjacent.
    """
    by_group = [list(members) for _, members in groupby(branches, key=lambda member: id(member[0]))]
    return [replace(members[0][0], branches=[branch for _, branch in members]) for members in by_group]


def _fit(group: Group, config: PackConfig, facts: PackingFacts) -> Group:
    """Returns a group without its empty completions and those that do not fit into a row, and counts both.

    Raises:
        BadInputError: A completion does not fit, and `overlong` is `refuse`.
    """
    room = config.row_size - len(group.prompt)
    filled = [branch for branch in group.branches if len(branch.tokens)]
    fitting = [branch for branch in filled if len(branch.tokens) <= room]
    facts.empty_completions += len(group.branches) - len(filled)
    facts.overlong_completions += len(filled) - len(fitting)
    if config.overlong == "refuse" and len(fitting) < len(filled):
        longest = max(len(branch.tokens) for branch in filled)
        raise BadInputError(
            "pack.row_tokens",
            f"{config.row_size}, but a prompt has {len(group.prompt)} tokens and a completion of it {longest}",
            f"at least {len(group.prompt) + longest}",
            f'raise it, or leave such completions out with pack.overlong = "drop"; {NEW_RUN}',
        )
    return replace(group, branches=fitting)


def _blocks(group: Group, row_tokens: int, facts: PackingFacts) -> list[Group]:
    """Returns a group as one block, or as several if it is larger than a row; a block keeps the samples' order."""
    lengths = [len(branch.tokens) for branch in group.branches]
    blocks = _first_fit_decreasing(lengths, row_tokens - len(group.prompt))
    facts.split_groups += len(blocks) > 1
    return [replace(group, branches=[group.branches[index] for index in sorted(block)]) for block in blocks]


def _first_fit_decreasing(sizes: Sequence[int], room: int) -> list[list[int]]:
    """Distributes items over bins: the largest item first, each into the first bin with enough room.

    Items of equal size keep their order, so that the same sizes always give the same bins.

    Args:
        sizes: Size of each item.
        room: Size of a bin.

    Returns:
        The indices of the items in each bin.
    """
    bins: list[list[int]] = []
    free: list[int] = []
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        bin_index = next((i for i, free_room in enumerate(free) if sizes[index] <= free_room), len(bins))
        if bin_index == len(bins):
            bins.append([])
            free.append(room)
        bins[bin_index].append(index)
        free[bin_index] -= sizes[index]
    return bins


def _divided(rows: Sequence[list[Group]], multiple: int) -> list[list[Group]]:
    """Returns the rows of a step, the longest ones in halves, so that their number is a multiple of `multiple`.

    If it is not a multiple, every row has a single completion.
    """
    divided = list(rows)
    while len(divided) % multiple:
        tokens = [
            sum(group.size_tokens for group in row) if sum(len(group.branches) for group in row) > 1 else 0
            for row in divided
        ]
        longest = tokens.index(max(tokens))
        if tokens[longest] == 0:
            break
        divided[longest : longest + 1] = _halves(divided[longest])
    return divided


def _halves(row: list[Group]) -> list[list[Group]]:
    """Returns a row as two: its groups, or the completions of its only group, go to the shorter one, longest first."""
    sizes = [group.size_tokens for group in row]
    if len(row) == 1:
        sizes = [len(branch.tokens) for branch in row[0].branches]
    halves: list[list[int]] = [[], []]
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        min(halves, key=lambda half: sum(sizes[other] for other in half)).append(index)
    if len(row) == 1:
        return [[replace(row[0], branches=[row[0].branches[index] for index in sorted(half)])] for half in halves]
    return [[row[index] for index in sorted(half)] for half in halves]


@dataclass
class _Columns:
    """Lists of one row's values, one for each tensor of the batch."""

    tokens: list[int] = field(default_factory=list[int])
    position_ids: list[int] = field(default_factory=list[int])
    segment_ids: list[int] = field(default_factory=list[int])
    parent_ids: list[int] = field(default_factory=list[int])
    completion_mask: list[int] = field(default_factory=list[int])
    sampler_logprobs: list[float] = field(default_factory=list[float])
    advantages: list[float] = field(default_factory=list[float])
    right: list[int] = field(default_factory=list[int])

    def add(self, branch: Branch, start: int, segment: int, parent: int) -> None:
        """Appends a segment. A prompt is its own parent and is not in the loss, nor are the tokens of a tool.

        Args:
            branch: Tokens, log-probabilities, advantage and authors of the segment.
            start: Position of its first token.
            segment: Id of the segment.
            parent: Id of its prompt's segment.
        """
        count = len(branch.tokens)
        in_loss = [0] * count if segment == parent else branch.own
        self.tokens += branch.tokens
        self.position_ids += range(start, start + count)
        self.segment_ids += [segment] * count
        self.parent_ids += [parent] * count
        self.completion_mask += in_loss
        self.sampler_logprobs += branch.logprobs
        self.advantages += branch.advantages
        self.right += [own * branch.right for own in in_loss]


def _lay_out(rows: Sequence[Sequence[Group]], minibatch: Sequence[int], config: PackConfig) -> PackedBatch:
    """Returns the tensors of the rows, padded to the longest row.

    Segment ids count the segments of the batch in the order of rows, of a row's groups, and of a group's prompt and
    branches.

    Args:
        rows: Groups of each row, as `_packed_rows` returns them.
        minibatch: Optimizer step of each row.
        config: Settings of the packing.
    """
    columns_of_rows: list[_Columns] = []
    numbers: dict[int, int] = {}
    segments = 0
    for row in rows:
        columns = _Columns()
        for group in row:
            prompt = segments
            numbers[prompt] = group.number
            columns.add(Branch(group.prompt, [0.0] * len(group.prompt), 0.0), 0, prompt, prompt)
            for branch in group.branches:
                segments += 1
                columns.add(branch, len(group.prompt), segments, prompt)
                if config.last_token_advantage == "zero":
                    columns.advantages[-1] = 0.0
            segments += 1
        columns_of_rows.append(columns)
    width = max((len(columns.tokens) for columns in columns_of_rows), default=0)

    def padded(name: str, dtype: np.dtype[np.generic]) -> np.ndarray:
        padding = -1 if name in ("segment_ids", "parent_ids") else 0
        tensor = np.full((len(columns_of_rows), width), padding, dtype=dtype)
        for index, columns in enumerate(columns_of_rows):
            values = getattr(columns, name)
            tensor[index, : len(values)] = values
        return tensor

    tensors = {name: padded(name, dtype) for name, dtype in PackedBatch.dtypes().items() if name != "minibatch"}
    right = padded(RIGHT, np.dtype(np.uint8)) if config.mark_right else None
    named = {(tuple(group.prompt), group.number) for row in rows for group in row}
    share_prompts = len({prompt for prompt, _ in named}) < len(named)
    groups = None
    if share_prompts:
        by_prompt = np.zeros(segments + 1, dtype=np.int32)  # the last one is that of padding, whose parent is -1
        by_prompt[list(numbers)] = list(numbers.values())
        groups = by_prompt[tensors["parent_ids"]]
    return PackedBatch(**tensors, minibatch=np.asarray(minibatch, dtype=np.int32), right=right, groups=groups)
