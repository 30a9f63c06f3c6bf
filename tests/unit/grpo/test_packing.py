"""Packing: every token exactly once in the right place, for any groups; sizes by hand."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from artifacts.errors import BadInputError, IntegrityError
from artifacts.tensors import PackedBatch
from stages.grpo.groups import Branch, Group
from stages.grpo.packing import PackConfig, by_completion, pack_groups, pack_numbered
from stages.training.trainer_batch import COLUMNS

TOKENS = st.integers(1, 500)


@st.composite
def groups(draw: st.DrawFn) -> list[Group]:
    def branch() -> Branch:
        tokens = draw(st.lists(TOKENS, max_size=12))
        return Branch(tokens, [-float(token) / 100 for token in tokens], draw(st.floats(-2, 2)))

    return [
        Group(draw(st.lists(TOKENS, min_size=1, max_size=10)), [branch() for _ in range(draw(st.integers(0, 6)))])
        for _ in range(draw(st.integers(0, 8)))
    ]


def sequences_of(batch: PackedBatch) -> Counter[tuple[tuple[int, ...], tuple[int, ...], float]]:
    """Each completion of a batch with its prompt and advantage, read back from the tensors."""
    branches: Counter[tuple[tuple[int, ...], tuple[int, ...], float]] = Counter()
    for row in range(len(batch.tokens)):
        segments, parents = batch.segment_ids[row], batch.parent_ids[row]
        for segment in np.unique(segments[(segments >= 0) & (segments != parents)]):
            here = segments == segment
            prompt = segments == parents[here][0]
            assert batch.sampler_logprobs[row][here] == pytest.approx(-batch.tokens[row][here] / 100)
            (advantage,) = set(batch.advantages[row][here].tolist())
            branches[tuple(batch.tokens[row][prompt]), tuple(batch.tokens[row][here]), round(advantage, 5)] += 1
    return branches


@given(groups(), st.integers(22, 80), st.integers(1, 4), st.integers(0, 5))
def test_every_completion_is_packed_once_behind_its_prompt(
    given_groups: list[Group], row_tokens: int, updates: int, seed: int
) -> None:
    batch, facts = pack_groups(given_groups, PackConfig(row_tokens=row_tokens, updates=updates, seed=seed))
    batch.check("test")
    expected = Counter(
        (tuple(group.prompt), tuple(branch.tokens), round(float(np.float32(branch.advantage)), 5))
        for group in given_groups
        for branch in group.branches
        if branch.tokens
    )
    assert sequences_of(batch) == expected
    assert batch.tokens.shape[1] <= row_tokens
    assert facts.completions == expected.total()
    assert facts.empty_completions == sum(not branch.tokens for group in given_groups for branch in group.branches)
    assert batch.minibatches == min(updates, facts.groups)


def test_a_row_is_filled_before_the_next_begins() -> None:
    # Blocks of 6, 5, 4 and 3 tokens into rows of 10: first-fit decreasing gives [6, 4] and [5, 3].
    sizes = [3, 5, 6, 4]
    batch, facts = pack_groups(
        [Group([1], [Branch([2] * (size - 1), [-1.0] * (size - 1), 1.0)]) for size in sizes], PackConfig(row_tokens=16)
    )
    assert facts.rows == 2  # 18 tokens do not fit 16
    batch, _ = pack_groups(
        [Group([1] * 11, [Branch([2] * size, [-1.0] * size, 1.0)]) for size in (5, 5)], PackConfig(row_tokens=32)
    )
    assert (batch.segment_ids >= 0).sum(axis=1).tolist() == [32]


def test_a_group_larger_than_a_row_repeats_its_prompt() -> None:
    branches = [Branch([7] * 6, [-0.07] * 6, 1.0) for _ in range(4)]
    batch, facts = pack_groups([Group([1, 2, 3, 4], branches)], PackConfig(row_tokens=16))
    assert (facts.rows, facts.split_groups, facts.used_tokens) == (2, 1, 2 * (4 + 12))
    assert batch.position_ids[0, :10].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert batch.position_ids[0, 10] == 4  # the second branch continues the prompt, not the first branch


def test_a_completion_that_does_not_fit_is_refused_or_left_out_and_never_cut() -> None:
    """A completion of 7 and one of 6 tokens behind a prompt of 10, in rows of 16; and a prompt that fills a row."""
    given = [Group([1] * 10, [Branch([size] * size, [-1.0] * size, 1.0) for size in (7, 6)])]
    with pytest.raises(BadInputError, match=r"16, but .* 10 tokens .* it 7; .* at least 17; .* with another name$"):
        pack_groups(given, PackConfig(row_tokens=16))
    given.append(Group([1] * 16, [Branch([2], [-1.0], 1.0)]))
    batch, facts = pack_groups(given, PackConfig(row_tokens=16, overlong="drop"))
    assert (facts.groups, facts.completions, facts.overlong_completions) == (1, 1, 2)
    assert batch.tokens.tolist() == [[1] * 10 + [6] * 6]


def test_a_batch_survives_its_file_and_a_broken_one_is_named() -> None:
    batch, _ = pack_groups([Group([1, 2], [Branch([3, 4], [-0.1, -0.2], 1.0)])], PackConfig(row_tokens=2048))
    read = PackedBatch.from_bytes(batch.to_bytes(), "file")
    assert read.tokens.tolist() == batch.tokens.tolist()
    for name, value, message in (
        ("advantages", np.nan, "NaN"),
        ("sampler_logprobs", 0.5, "positive logprob"),
        ("position_ids", 9, "positions that do not count up"),
    ):
        broken = PackedBatch.from_bytes(batch.to_bytes(), "file")
        getattr(broken, name)[0, 3] = value
        with pytest.raises(IntegrityError, match=message):
            broken.check("file")


@pytest.mark.parametrize(
    ("name", "place", "value", "message"),
    [
        ("segment_ids", (0, 4), 1, "a segment in two pieces"),
        ("parent_ids", (0, 1), 3, "without its prompt; expected the prompt earlier"),  # a later segment
        ("parent_ids", (0, 4), 1, "row 0: a completion without its prompt"),  # a completion, not a prompt
        ("parent_ids", (0, 3), 1, "one prompt for all its tokens"),
        ("parent_ids", (1, 1), 0, "row 1: a completion without its prompt"),  # the prompt is in another row
        ("position_ids", (1, 0), 1, "row 1: a segment at a wrong position"),
        ("position_ids", (0, 4), 5, "row 0: a segment at a wrong position"),
        ("minibatch", (1,), 2, "without gaps"),
    ],
)
def test_segments_that_do_not_fit_together_are_refused(
    name: str, place: tuple[int, ...], value: int, message: str
) -> None:
    """Row 0 holds a prompt of 1 token, completions of 1, 2 and 1; row 1 a prompt of 1 and a completion of 1."""
    segments = np.array([[0, 1, 2, 2, 3], [4, 5, -1, -1, -1]], dtype=np.int32)
    parents = np.array([[0, 0, 0, 0, 0], [4, 4, -1, -1, -1]], dtype=np.int32)
    positions = np.array([[0, 1, 1, 2, 1], [0, 1, 0, 0, 0]], dtype=np.int32)
    zeros = np.zeros(segments.shape, dtype=np.float32)
    batch = PackedBatch(
        tokens=(segments >= 0).astype(np.int32),
        position_ids=positions,
        segment_ids=segments,
        parent_ids=parents,
        completion_mask=(segments != parents).astype(np.uint8),
        sampler_logprobs=zeros,
        advantages=zeros,
        minibatch=np.array([0, 1], dtype=np.int32),
    )
    batch.check("file")
    getattr(batch, name)[place] = value
    with pytest.raises(IntegrityError, match=message):
        batch.check("file")


def test_a_damaged_file_is_named() -> None:
    batch, _ = pack_groups([Group([1, 2], [Branch([3, 4], [-0.1, -0.2], 1.0)])], PackConfig(row_tokens=2048))
    with pytest.raises(IntegrityError, match="file: unreadable"):
        PackedBatch.from_bytes(batch.to_bytes()[:-3], "file")


def dealt(sizes: list[list[int]], **config: object) -> list[list[list[int]]]:
    """Tokens of each completion, by row of each optimizer step; prompts have 4 tokens."""
    given = [Group([9] * 4, [Branch([2] * size, [-1.0] * size, 1.0) for size in lengths]) for lengths in sizes]
    batch, facts = pack_groups(given, PackConfig.model_validate({"row_tokens": 16, **config}))
    batch.check("test")
    assert facts.minibatches == batch.minibatches
    steps: list[list[list[int]]] = [[] for _ in range(batch.minibatches)]
    for step, segments, parents in zip(batch.minibatch, batch.segment_ids, batch.parent_ids, strict=True):
        counts = Counter(segments[segments != parents].tolist())
        steps[step].append([counts[segment] for segment in sorted(counts)])
    return steps


@pytest.mark.parametrize(
    "lengths", [[50, 50, 40, 40], [40, 50, 40, 50], [50, 40, 40, 50], [40, 40, 50, 50], [20, 20, 40, 50, 50]]
)
def test_a_group_larger_than_a_row_leaves_no_gaps(lengths: list[int]) -> None:
    """180 tokens behind prompts of 10 fill two rows of 100; blocks in sample order, 60, 100 and 50, need three."""
    given = Group([9] * 10, [Branch([2] * size, [-1.0] * size, 1.0) for size in lengths])
    batch, facts = pack_groups([given], PackConfig(row_tokens=100))
    assert (facts.rows, facts.used_tokens, facts.split_groups) == (2, 200, 1)
    again, _ = pack_groups([given], PackConfig(row_tokens=100))
    assert again.to_bytes() == batch.to_bytes()


@given(st.lists(st.integers(1, 12), min_size=1, max_size=20))
def test_no_two_rows_of_a_group_would_fit_one(lengths: list[int]) -> None:
    """Whole or in parts, a group keeps its samples' order; 12 tokens have room behind the prompt."""
    (rows,) = dealt([lengths])
    assert all(sum(a) + sum(b) > 12 for index, a in enumerate(rows) for b in rows[:index])
    assert sorted(size for row in rows for size in row) == sorted(lengths)
    assert len(rows) > 1 or rows == [lengths], "a group that fits stays as it is"


@given(groups(), st.integers(22, 80), st.integers(1, 3), st.integers(2, 9))
def test_divided_rows_hold_the_same_completions(
    given_groups: list[Group], row_tokens: int, updates: int, multiple: int
) -> None:
    plain, _ = pack_groups(given_groups, PackConfig(row_tokens=row_tokens, updates=updates))
    config = PackConfig(row_tokens=row_tokens, updates=updates, rows_multiple=multiple)
    batch, facts = pack_groups(given_groups, config)
    batch.check("test")
    assert facts.rows == len(batch.tokens) and batch.tokens.shape[1] <= plain.tokens.shape[1]
    for step in range(plain.minibatches):
        whole, divided = (replace(part, **rows_of(part, step)) for part in (plain, batch))
        assert sequences_of(divided) == sequences_of(whole)
        pairs = zip(divided.segment_ids, divided.completion_mask, strict=True)
        completions = [len(set(ids[mask > 0])) for ids, mask in pairs]
        assert len(completions) % multiple == 0 or set(completions) == {1}


def rows_of(batch: PackedBatch, step: int) -> dict[str, np.ndarray]:
    """The tensors of a step's rows."""
    return {name: getattr(batch, name)[batch.minibatch == step] for name in batch.dtypes()}


def test_the_longest_rows_are_divided() -> None:
    assert dealt([[3, 3, 3, 3]], rows_multiple=2) == [[[3, 3], [3, 3]]]
    assert dealt([[5], [5, 4]], row_tokens=32, rows_multiple=2) == [[[5, 4], [5]]]
    assert dealt([[3, 3, 3, 3], [2, 2]], rows_multiple=3) == [[[3, 3], [3, 3], [2, 2]]]
    assert dealt([[5], [5]], rows_multiple=4) == [[[5], [5]]], "a row of one completion stays whole"
    by_rows = {"row_tokens": 18, "minibatch_size": 1, "minibatch_unit": "rows"}
    assert dealt([[5]] * 4, **by_rows) == [[[5, 5]], [[5, 5]]]
    assert dealt([[5]] * 4, **by_rows, rows_multiple=2) == [[[5], [5]], [[5], [5]]], "a step keeps its completions"


def test_the_samples_of_a_part_keep_their_order() -> None:
    """Completions told apart by their tokens: 3, 6, 6, 3, 5 into room for 12 are the 2nd and 3rd, then the rest."""
    given = Group([9] * 4, [Branch([name] * size, [-1.0] * size, 1.0) for name, size in enumerate((3, 6, 6, 3, 5))])
    batch, _ = pack_groups([given], PackConfig(row_tokens=16))
    rows_and_masks = zip(batch.tokens, batch.completion_mask, strict=True)
    rows = [list(dict.fromkeys(tokens[mask > 0].tolist())) for tokens, mask in rows_and_masks]
    assert rows == [[1, 2], [0, 3, 4]]


def test_steps_of_so_many_puzzles() -> None:
    """Five puzzles by two: three steps, the last of one; each puzzle in one step only."""
    steps = dealt([[1], [2], [3], [4], [5]], minibatch_size=2)
    assert [sum(len(row) for row in rows) for rows in steps] == [2, 2, 1]
    assert sorted(size for rows in steps for row in rows for size in row) == [1, 2, 3, 4, 5]
    assert [sorted(row) for (row,) in dealt([[1], [2]], minibatch_size=7)] == [[1, 2]], "one step where there is less"


def test_steps_of_so_many_completions() -> None:
    """Groups of 3, 2 and 3 completions by four: 4 and 4, and a group that is cut has its prompt in both."""
    steps = dealt([[1, 1, 1], [2, 2], [3, 3, 3]], minibatch_size=4, minibatch_unit="completions")
    assert [sum(len(row) for row in rows) for rows in steps] == [4, 4]
    sizes = Counter(size for rows in steps for row in rows for size in row)
    assert sizes == {1: 3, 2: 2, 3: 3}
    steps = dealt([[1] * 5], minibatch_size=2, minibatch_unit="completions")
    assert [sum(len(row) for row in rows) for rows in steps] == [2, 2, 1]


def test_steps_of_so_many_rows() -> None:
    """Each group of 4 + 12 tokens fills a row: five rows by two, in an order that the seed decides."""
    sizes = [[12], [6, 6], [4, 8], [3, 9], [12]]
    steps = dealt(sizes, minibatch_size=2, minibatch_unit="rows")
    assert [len(rows) for rows in steps] == [2, 2, 1]
    assert sorted(row for rows in steps for row in rows) == sorted(sizes)
    orders = {str(dealt(sizes, minibatch_size=2, minibatch_unit="rows", seed=seed)) for seed in range(4)}
    assert len(orders) > 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"updates": 2, "minibatch_size": 4}, "follows from minibatch_size"),
        ({"minibatch_unit": "rows"}, "is not given"),
    ],
)
def test_steps_that_are_counted_twice_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        PackConfig.model_validate(settings)


def test_the_last_token_may_go_without_its_advantage() -> None:
    """Completions of 3 and 1 tokens with advantages 2 and -1 behind a prompt of 2; all four stay in the loss."""
    given = [Group([1, 2], [Branch([3, 4, 5], [-0.1] * 3, 2.0), Branch([6], [-0.1], -1.0)])]
    batch, _ = pack_groups(given, PackConfig(row_tokens=2048, last_token_advantage="zero"))
    batch.check("test")
    assert batch.advantages.tolist() == [[0.0, 0.0, 2.0, 2.0, 0.0, 0.0]]
    assert batch.completion_mask.tolist() == [[0, 0, 1, 1, 1, 1]]
    kept, _ = pack_groups(given, PackConfig(row_tokens=2048))
    assert kept.advantages.tolist() == [[0.0, 0.0, 2.0, 2.0, 2.0, -1.0]]


def test_the_tensors_are_listed_once() -> None:
    """Names and types follow from the fields, and the trainer's are the same."""
    assert {name: str(dtype) for name, dtype in PackedBatch.dtypes().items()} == {
        **dict.fromkeys(("tokens", "position_ids", "segment_ids", "parent_ids", "minibatch"), "int32"),
        **dict.fromkeys(("sampler_logprobs", "advantages"), "float32"),
        "completion_mask": "uint8",
    }
    assert (*COLUMNS, "minibatch") == tuple(PackedBatch.dtypes())
    batch, _ = pack_groups([Group([1, 2], [Branch([3, 4], [-0.1, -0.2], 1.0)])], PackConfig(row_tokens=2048))
    wide = replace(batch, tokens=batch.tokens.astype(np.int64))
    with pytest.raises(IntegrityError, match="int64 tokens"):
        PackedBatch.from_bytes(wide.to_bytes(), "file")


def test_each_value_returns_to_its_completion() -> None:
    """Groups are shuffled, divided and laid into rows; the value of a token tells which one it was."""
    lengths = [[3, 1, 4], [2, 0, 5], [1, 1, 1]]
    marks = {1: [True]}  # the second completion is a tool's word only
    packed: list[Group] = []
    expected: list[list[float]] = []
    for number, of_group in enumerate(lengths):
        branches: list[Branch] = []
        for length in of_group:
            completion = len(expected)
            tokens = [100 * completion + i for i in range(length)]
            by_tool = marks.get(completion)
            branches.append(Branch(tokens, [0.0] * length, 0.0, by_tool, number=completion))
            expected.append([] if by_tool else [float(token) for token in tokens])
        packed.append(Group([number] * (2 + number), branches))
    for row_tokens in (16, 64):
        batch, numbers = pack_numbered(packed, PackConfig(row_tokens=row_tokens, seed=row_tokens))
        own, values = batch.completion_mask > 0, batch.tokens.astype(np.float64)
        found = by_completion(values, np.where(own, numbers, -1), len(expected))
        assert [of_one.tolist() for of_one in found] == expected
