"""Puzzle sets: splits share nothing, and what an interrupted attempt has drawn is found again."""

import json
import multiprocessing
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from artifacts.address import ArtifactAddress
from artifacts.errors import BadInputError, TransientError
from artifacts.reading import Artifact
from artifacts.refs import Puzzles, Ref
from artifacts.schemas import PUZZLES
from artifacts.store.store import Store
from stages.context import StageContext
from stages.draw import address_of, draw
from stages.environments.generate import TIERS, PuzzleConfig, ZebraConfig
from stages.environments.puzzle import Puzzle
from stages.environments.tables import from_table
from stages.prepare import SPLITS, PrepareConfig, prepare
from tests.support.contexts import make_context

EASY = PrepareConfig(puzzle=TIERS["easy"], train=10, val=4, test=4, seed=5)


@pytest.fixture(scope="module")
def ctx(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StageContext]:
    """A place for all tests of this file, with one process that generates; each test has its own puzzles or keys."""
    folder = tmp_path_factory.mktemp("prepare")
    with make_context(Store.open(str(folder / "store")), folder / "scratch") as ctx:
        yield ctx


def made(config: PrepareConfig, ctx: StageContext, key: str = "set") -> Ref[Puzzles]:
    return prepare(ctx, config, out=ArtifactAddress(ctx.store, key, Puzzles))


def splits_of(ref: Ref[Puzzles], ctx: StageContext) -> dict[str, list[Puzzle]]:
    artifact = Artifact.open(ctx.store, ref)
    return {name: from_table(artifact.read_table(f"{name}.parquet", PUZZLES)) for name in SPLITS}


def test_splits_share_no_puzzle_and_held_out_ones_stay_when_train_grows(ctx: StageContext) -> None:
    small = splits_of(made(EASY, ctx), ctx)
    assert {name: len(rows) for name, rows in small.items()} == {"train": 10, "val": 4, "test": 4}
    assert len({puzzle.digest for rows in small.values() for puzzle in rows}) == 18
    more = splits_of(made(EASY.model_copy(update={"train": 16}), ctx, "more"), ctx)
    assert (more["val"], more["test"]) == (small["val"], small["test"])
    assert more["train"][:10] == small["train"]


def test_sets_of_two_seeds_share_no_puzzle(ctx: StageContext) -> None:
    one, other = (splits_of(made(EASY.model_copy(update={"seed": seed}), ctx, f"seed-{seed}"), ctx) for seed in (8, 9))
    digests, others = ({puzzle.digest for rows in splits.values() for puzzle in rows} for splits in (one, other))
    assert not digests & others


def test_an_interrupted_attempt_is_continued_and_ends_the_same(ctx: StageContext) -> None:
    config = EASY.model_copy(update={"seed": 6})
    first, second, *_ = config.first_stretches()
    drawn = [draw(ctx, stretch, out=address_of(stretch, ctx.store)) for stretch in (first, second)]
    manifests = {ref.key: ctx.store.read_bytes(f"{ref.key}/manifest.json") for ref in drawn}
    whole = made(config, ctx, "interrupted")
    assert {key: ctx.store.read_bytes(f"{key}/manifest.json") for key in manifests} == manifests
    elsewhere = Store.open("memory://undisturbed")
    undisturbed = StageContext(elsewhere, ctx.scratch, ctx.profile, ctx.progress, ctx.log)
    undisturbed.pool = ctx.pool
    assert made(config, undisturbed).digest == whole.digest


def test_a_generator_process_that_dies_at_work_is_a_transient_failure(ctx: StageContext) -> None:
    stretch = EASY.model_copy(update={"seed": 7}).first_stretches()[0]
    failed = threading.Event()

    def kill_them() -> None:
        while not failed.wait(0.001):
            for process in multiprocessing.active_children():
                process.kill()

    killer = threading.Thread(target=kill_them)
    killer.start()
    try:
        with pytest.raises(TransientError, match="a process died"):
            draw(ctx, stretch, out=address_of(stretch, ctx.store))
    finally:
        failed.set()
        killer.join()
    assert draw(ctx, stretch, out=address_of(stretch, ctx.store)).reused is False


def test_a_difficulty_with_too_few_puzzles_says_so(ctx: StageContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stages.prepare._MAX_DRAWS_PER_PUZZLE", 2)
    plain = {"connectives": False, "referents": False, "fixed_cast": True, "fixed_rooms": True}
    tiny = PuzzleConfig(weapons=(1, 1), questions="placements", **plain)
    with pytest.raises(BadInputError, match=r"distinct puzzles in 408 draws; expected 150"):
        made(PrepareConfig(puzzle=tiny, train=150, val=0, test=0), ctx, "few")
    monkeypatch.undo()
    monkeypatch.setattr("stages.prepare._DRAWS_THAT_TELL", 600)
    with pytest.raises(BadInputError, match=r"distinct puzzles in 1536 draws; expected 90000"):  # not 1,800,000
        made(PrepareConfig(puzzle=tiny, train=90_000, val=0, test=0), ctx, "far-too-few")


def test_another_family_goes_through_the_same_stage(ctx: StageContext, tmp_path: Path) -> None:
    config = PrepareConfig(puzzle=ZebraConfig(houses=(3, 3), attributes=(3, 3)), train=4, val=2, test=2)
    splits = splits_of(made(config, ctx, "zebra"), ctx)
    puzzles = [puzzle for rows in splits.values() for puzzle in rows]
    assert {puzzle.environment for puzzle in puzzles} == {"zebra"}
    published = [{"num_clues": p.num_clues, "prompt": p.prompt, "solution": p.solution} for p in puzzles]
    (tmp_path / "zebra.json").write_text(json.dumps(published))
    ref = made(PrepareConfig(file=str(tmp_path / "zebra.json")), ctx, "file")
    read = from_table(Artifact.open(ctx.store, ref).read_table("test.parquet", PUZZLES))
    assert [puzzle.digest for puzzle in read] == [puzzle.digest for puzzle in puzzles]
    assert {puzzle.environment for puzzle in read} == {"zebra"}
