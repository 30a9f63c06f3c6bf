"""Two writers of one run, and one that dies anywhere: what is published stays whole and holds every completion once."""

from typing import Any

import polars as pl

from artifacts.reading import Artifact
from artifacts.refs import Ref
from artifacts.schemas import ROLLOUTS
from artifacts.store import Store
from artifacts.verification import verify
from stages.puzzles.answers import write_answer
from stages.puzzles.puzzle import Puzzle
from tests.unit.stages.speaker import WRONG, Opener, script


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


def test_who_loses_the_race_to_evaluate_leaves_the_published_files_alone(opened: Opener, puzzles: list[Puzzle]) -> None:
    """The other evaluates from start to end while this one waits for its last answer; theirs differ."""
    slow = opened("run", {puzzle.prompt: [WRONG] * 3 for puzzle in puzzles})
    quick = opened("run", {puzzle.prompt: [write_answer(puzzle)] * 3 for puzzle in puzzles})
    published: list[tuple[Ref[Any], dict[str, bytes]]] = []

    def other() -> None:
        ref = quick.evaluated()
        published.append((ref, all_files(quick.ctx.store, ref)))

    slow.speaker.meanwhile[4] = other
    mine = slow.evaluated()
    ((theirs, files),) = published
    store = slow.ctx.store
    assert mine == theirs and mine.reused
    assert all_files(store, mine) == files
    assert {"results.parquet", "report.json"} <= files.keys()
    assert (verify(store).damaged, unchecked_shards(store)) == ([], [])


def test_who_loses_the_race_to_resample_leaves_the_published_files_alone(opened: Opener, puzzles: list[Puzzle]) -> None:
    slow, quick = opened("run", script(puzzles, {0, 1, 2, 3})), opened("run", script(puzzles, {1, 4, 6, 7}))
    published: list[tuple[Ref[Any], dict[str, bytes]]] = []

    def other() -> None:
        ref = quick.sampled()
        published.append((ref, all_files(quick.ctx.store, ref)))

    slow.speaker.meanwhile[4] = other
    mine = slow.sampled()
    ((theirs, files),) = published
    assert mine == theirs and mine.reused
    assert all_files(slow.ctx.store, mine) == files
    assert (verify(slow.ctx.store).damaged, unchecked_shards(slow.ctx.store)) == ([], [])
    assert slow.trained(mine)[1]["groups"] == 4
