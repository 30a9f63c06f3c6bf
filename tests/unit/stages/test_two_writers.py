"""Two writers of one run, and one that dies anywhere: what is published stays whole and holds every completion once."""

import hashlib
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import polars as pl
import pytest

from artifacts.errors import TransientError
from artifacts.reading import Artifact
from artifacts.refs import Ref
from artifacts.schemas import RESULTS, ROLLOUTS
from artifacts.store.store import Store
from artifacts.verification import verify
from stages.environments.logic_puzzles.answers import write_answer
from stages.environments.puzzle import Puzzle
from stages.sampling.client import GroupSamples, Prompt, SampledCompletion
from stages.sampling.config import SamplingConfig
from stages.sampling.engine import Engine
from stages.sampling.turns import Tool
from tests.support.speaker import CONFIG, WRONG, Opener, Place, script, taken_order

PLAIN = CONFIG.model_copy(update={"resample": None})


def rollouts_of(store: Store, ref: Ref[Any]) -> pl.DataFrame:
    return Artifact.open(store, ref).read_tables(ROLLOUTS)


def twice(table: pl.DataFrame, *key: str) -> int:
    """How many rows repeat the key of another."""
    return len(table) - table.select(key).n_unique()


def all_files(store: Store, ref: Ref[Any]) -> dict[str, bytes]:
    """Every file that the manifest names, checked against it."""
    artifact = Artifact.open(store, ref)
    return {name: artifact.read_bytes(name) for name in artifact.names()}


def unchecked_shards(store: Store) -> list[str]:
    """Files in folders that writers share of which nothing says what they should hold."""
    return [key for key in verify(store).unchecked if "/progress-" in key]


def died(opened: Opener, puzzles: list[Puzzle], shards: Callable[[pl.DataFrame], list[pl.DataFrame]]) -> Place:
    """A place where `sample` was cut short, and has left these shards of the whole rollouts."""
    answers = script(puzzles, {0, 1, 2, 3})
    whole, place = opened("whole", answers), opened("run", answers)
    table, store = rollouts_of(whole.ctx.store, whole.sampled(PLAIN)), place.ctx.store
    place.speaker.fails_after = 2  # of two requests in flight, so that one group is stored
    with pytest.raises(TransientError):
        place.sampled(PLAIN)
    (folder,) = {key.rpartition("/")[0] for key in store.list("rollouts")}
    store.delete(folder)
    for rows in shards(table):
        buffer = io.BytesIO()
        rows.write_parquet(buffer, compression="zstd")
        digest = hashlib.sha256(buffer.getvalue()).hexdigest()[:16]
        store.write_bytes(f"{folder}/rollouts-{digest}.parquet", buffer.getvalue())
    place.speaker.fails_after = 10**9
    place.speaker.asked.clear()
    return place


def lost_race(slow: Place, quick: Place, make: Callable[[Place], Ref[Any]]) -> tuple[Ref[Any], dict[str, bytes]]:
    """Has `quick` make an artifact from start to end while `slow` waits for its last answer.

    Returns:
        What `slow` got and its files, seen to be those that `quick` has published.
    """
    published: list[tuple[Ref[Any], dict[str, bytes]]] = []

    def other() -> None:
        ref = make(quick)
        published.append((ref, all_files(quick.ctx.store, ref)))

    slow.speaker.meanwhile[4] = other
    mine = make(slow)
    ((theirs, files),) = published
    store = slow.ctx.store
    assert mine == theirs and mine.reused
    assert all_files(store, mine) == files
    assert (verify(store).damaged, unchecked_shards(store)) == ([], [])
    return mine, files


def test_who_loses_the_race_to_evaluate_leaves_the_published_files_alone(opened: Opener, puzzles: list[Puzzle]) -> None:
    slow = opened("run", {puzzle.prompt: [WRONG] * 3 for puzzle in puzzles})
    quick = opened("run", {puzzle.prompt: [write_answer(puzzle)] * 3 for puzzle in puzzles})
    _, files = lost_race(slow, quick, Place.evaluated)
    assert {"results.parquet", "report.json"} <= files.keys()


def test_who_loses_the_race_to_resample_leaves_the_published_files_alone(opened: Opener, puzzles: list[Puzzle]) -> None:
    slow, quick = opened("run", script(puzzles, {0, 1, 2, 3})), opened("run", script(puzzles, {1, 4, 6, 7}))
    mine, _ = lost_race(slow, quick, Place.sampled)
    assert slow.trained(mine)[1]["groups"] == 4


@pytest.mark.parametrize("dies_at", [2, 3])
def test_an_evaluation_counts_a_completion_once_where_another_writer_died(
    opened: Opener, puzzles: list[Puzzle], dies_at: int
) -> None:
    place, other = (opened("run", {puzzle.prompt: [write_answer(puzzle)] * 3 for puzzle in puzzles}) for _ in range(2))
    other.speaker.fails_after = dies_at

    def die() -> None:
        with pytest.raises(TransientError):
            other.evaluated()

    place.speaker.meanwhile[1] = die
    results = Artifact.open(place.ctx.store, place.evaluated()).read_table("results.parquet", RESULTS)
    assert (len(results), twice(results, "prompt_id", "mode", "sample")) == (12, 0)


def test_resampling_counts_a_completion_once_where_another_writer_died(opened: Opener, puzzles: list[Puzzle]) -> None:
    answers = script(puzzles, {1, 4, 6, 7})
    place, other = opened("run", answers), opened("run", answers)
    other.speaker.fails_after = 5

    def die() -> None:
        with pytest.raises(TransientError):
            other.sampled()

    place.speaker.meanwhile[2] = die
    ref = place.sampled()
    assert twice(rollouts_of(place.ctx.store, ref), "group", "sample") == 0
    assert (len(rollouts_of(place.ctx.store, ref)), place.trained(ref)[1]["groups"]) == (24, 4)


def test_what_two_writers_left_is_adopted_once_and_nothing_is_lost(opened: Opener, puzzles: list[Puzzle]) -> None:
    """Both die; groups that only one of them stored are taken from a shard that also holds known ones."""
    place = died(
        opened, puzzles, lambda table: [table.filter(pl.col("group").is_in(two)) for two in ((0, 1), (1, 2), (2, 0))]
    )
    ref = place.sampled(PLAIN)
    rollouts = rollouts_of(place.ctx.store, ref)
    assert (len(rollouts), twice(rollouts, "group", "sample")) == (12, 0)
    assert place.speaker.asked == [taken_order(puzzles)[3].prompt]
    assert place.trained(ref)[1]["groups"] == 4
    assert verify(place.ctx.store).damaged == []


class Interrupted(list[SampledCompletion]):
    """A group during whose taking a signal arrives."""

    def __iter__(self) -> Iterator[SampledCompletion]:
        yield self[0]
        raise KeyboardInterrupt


def test_a_signal_while_a_group_is_taken_leaves_no_part_of_it(
    opened: Opener, puzzles: list[Puzzle], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = opened("run", script(puzzles, {0, 1, 2, 3}))
    draw = Engine.sample_groups

    def interrupted(
        engine: Engine,
        prompts: Sequence[Prompt],
        config: SamplingConfig,
        on_group: Callable[[GroupSamples], None],
        tool: Tool | None,
    ) -> None:
        taken: list[str] = []

        def hand_over(group: GroupSamples) -> None:
            taken.append(group.prompt_id)
            on_group(replace(group, completions=Interrupted(group.completions)) if len(taken) == 3 else group)

        draw(engine, prompts, config, hand_over, tool)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Engine, "sample_groups", interrupted)
        place.sampled(PLAIN)
    shards = [pl.read_parquet(io.BytesIO(place.ctx.store.read_bytes(key))) for key in place.ctx.store.list("rollouts")]
    assert pl.concat(shards).group_by("prompt_id").len()["len"].to_list() == [3, 3]


def test_a_part_of_a_group_that_was_stored_is_sampled_again_and_the_whole_groups_beside_it_are_not(
    opened: Opener, puzzles: list[Puzzle]
) -> None:
    short = (pl.col("group") != 1) | (pl.col("sample") < 2)
    place = died(opened, puzzles, lambda table: [table.filter(short, pl.col("group") < 3)])
    rollouts = rollouts_of(place.ctx.store, place.sampled(PLAIN))
    assert (len(rollouts), twice(rollouts, "group", "sample")) == (12, 0)
    order = taken_order(puzzles)
    assert set(place.speaker.asked) == {order[1].prompt, order[3].prompt}
