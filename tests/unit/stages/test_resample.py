"""Dynamic sampling, through an engine's protocol: which puzzles are sampled, kept and trained on; kills in between."""

import io
from dataclasses import replace

import polars as pl
import pytest

from artifacts.address import ArtifactAddress
from artifacts.errors import BadInputError, TransientError
from artifacts.identity import Identity
from artifacts.reading import Artifact
from artifacts.refs import Puzzles
from artifacts.schemas import PUZZLES, ROLLOUTS
from stages.curriculum.order import stride
from stages.environments.logic_puzzles.answers import write_answer
from stages.environments.puzzle import Puzzle
from stages.environments.tables import to_table
from stages.sampling.config import KEPT_GROUPS
from tests.support.speaker import CONFIG, WRONG, Opener, script, taken_order


@pytest.mark.parametrize(
    ("mixed", "groups", "kept", "rounds"),
    [
        ({0, 1, 2, 3}, 4, [0, 1, 2, 3], 1),  # enough at once
        ({1, 3, 4, 5}, 6, [1, 3, 4, 5], 2),  # two missing, two more sampled, both mixed
        ({1, 4, 6, 7, 8}, 8, [1, 4, 6, 7], 3),  # one of 0-3; three missing, 4-6 gives two; one missing, 7
        (set[int](), 12, [], 3),  # 4 + 4 + 4, then the rounds are over
    ],
)
def test_rounds_go_on_until_enough_groups_are_mixed(
    opened: Opener, puzzles: list[Puzzle], mixed: set[int], groups: int, kept: list[int], rounds: int
) -> None:
    place = opened("run", script(puzzles, mixed))
    rollouts = Artifact.open(place.ctx.store, place.sampled())
    table = rollouts.read_tables(ROLLOUTS)
    order = [puzzle.prompt_id for puzzle in taken_order(puzzles)]
    assert dict(table.select("group", "prompt_id").unique().iter_rows()) == dict(enumerate(order[:groups]))
    assert len(table) == 3 * groups, "uniform groups stay in the record"
    assert kept_groups(rollouts) == kept
    assert rollouts.manifest.facts["rounds"] == rounds
    assert (rollouts.manifest.facts["groups"], rollouts.manifest.facts["groups_kept"]) == (groups, len(kept))


def test_a_group_uniform_in_accuracy_is_not_trained_on_though_its_rewards_differ(
    opened: Opener, puzzles: list[Puzzle]
) -> None:
    answers = script(puzzles, {1, 2, 3, 4})
    answers[taken_order(puzzles)[0].prompt] = [WRONG, WRONG, WRONG + "..."]  # one was cut: reward 0, 0, -0.5
    place = opened("run", answers)
    grades, facts = place.trained(place.sampled())
    assert grades.filter(pl.col("group") == 0)["advantage"].abs().max() > 0  # pyright: ignore[reportOperatorIssue, reportOptionalOperand]
    assert (facts["groups"], facts["uniform_groups"]) == (4, 1)


def test_without_resampling_every_group_with_different_rewards_is_trained_on(
    opened: Opener, puzzles: list[Puzzle]
) -> None:
    plain = CONFIG.model_copy(update={"resample": None})
    order = [puzzle.prompt_id for puzzle in puzzles]
    answers = {puzzle.prompt: [write_answer(puzzle), WRONG, WRONG] for puzzle in puzzles}
    place = opened("run", answers)
    rollouts = place.sampled(plain)
    assert Artifact.open(place.ctx.store, rollouts).names(".json") == []
    grades, facts = place.trained(rollouts)
    expected = stride(to_table(puzzles), 4, 1, 0)["prompt_id"].to_list()
    assert set(grades["prompt_id"]) == set(expected) <= set(order)
    assert (facts["groups"], facts["uniform_groups"]) == (4, 0)


def test_a_prompt_that_fills_the_context_is_refused_by_name_before_anything_is_asked(
    opened: Opener, puzzles: list[Puzzle]
) -> None:
    """A run has counted all prompts before; this is for models with another context than the run's first."""
    drawn, place = taken_order(puzzles)[0], opened("run", {})
    longer = [replace(one, prompt=one.prompt + " why" * 4096) if one is drawn else one for one in puzzles]
    attempt = ArtifactAddress(place.ctx.store, "puzzles/long", Puzzles).attempt(Identity.of("made", 2, {}))
    attempt.write_table("train.parquet", to_table(longer), PUZZLES)
    place.puzzles = attempt.publish()
    found = rf"^puzzle {drawn.prompt_id}: a prompt of \d{{4,5}} tokens; expected fewer than 4096, the model's context"
    with pytest.raises(BadInputError, match=found):
        place.sampled(CONFIG.model_copy(update={"resample": None}))
    assert place.speaker.asked == []


@pytest.mark.parametrize("fails_after", [2, 4, 5, 6])
def test_a_stage_cut_short_goes_on_and_ends_with_the_same_puzzles(
    opened: Opener, puzzles: list[Puzzle], fails_after: int
) -> None:
    answers = script(puzzles, {1, 4, 6, 7})
    whole = opened("whole", answers)
    expected = Artifact.open(whole.ctx.store, whole.sampled())
    cut = opened("cut", answers)
    cut.speaker.fails_after = fails_after
    with pytest.raises(TransientError):
        cut.sampled()
    stored = {row for name in cut.ctx.store.list("rollouts") for row in prompt_ids(cut.ctx.store.read_bytes(name))}
    assert fails_after - 1 <= len(stored) <= fails_after, "two requests are in flight, one of them may be lost too"
    cut.speaker.fails_after = 10**9
    cut.speaker.asked.clear()
    resumed = Artifact.open(cut.ctx.store, cut.sampled())
    tables = [
        a.read_tables(ROLLOUTS).select("group", "prompt_id", "text").sort("group", "text") for a in (expected, resumed)
    ]
    assert tables[0].equals(tables[1])
    assert kept_groups(resumed) == kept_groups(expected) == [1, 4, 6, 7]
    asked_again = {puzzle.prompt_id for puzzle in puzzles if puzzle.prompt in cut.speaker.asked}
    assert not asked_again & stored
    assert resumed.manifest.facts["groups_reused"] == len(stored)
    assert len(cut.speaker.asked) == 8 - len(stored)
    assert [len(seeds) for seeds in cut.speaker.seeds.values()] == [1] * 8, "a request is repeated with its seed"


def test_groups_have_seeds_of_their_own_in_each_artifact(opened: Opener, puzzles: list[Puzzle]) -> None:
    place = opened("run", script(puzzles, {0, 1, 2, 3}))
    for key in ("iterations/1", "iterations/2"):
        place.sampled(key=key)
    seeds = place.speaker.seeds.values()
    assert [len(of_prompt) for of_prompt in seeds] == [2] * 4
    assert len(set[int | None]().union(*seeds)) == 8


def prompt_ids(data: bytes) -> set[str]:
    """Puzzle ids of a stored shard."""
    return set(pl.read_parquet(io.BytesIO(data))["prompt_id"])


def kept_groups(rollouts: Artifact) -> list[int]:
    """The groups to train on, of which one file tells."""
    (name,) = rollouts.names(".json")
    assert name.startswith(f"{KEPT_GROUPS}-")
    return rollouts.read_json(name)
