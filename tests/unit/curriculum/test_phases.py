"""Phases of a recipe: overlays, ends, and the record of each iteration."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from artifacts.address import ArtifactAddress
from artifacts.errors import BadInputError
from artifacts.identity import Identity
from artifacts.layout import RunLayout
from artifacts.refs import Checkpoint, Decision, Grades, OptimizerState, Puzzles, Ref, Report, Transition
from artifacts.schemas import PUZZLES
from artifacts.store.store import Store
from flows.config.recipe import Recipe
from flows.config.recipes import load_recipe
from flows.curriculum import phase_after
from flows.inputs.credit import CreditModels
from flows.iteration import Position, first_position
from flows.opening import RunRequest, opened
from flows.session.session import SHOWN_AGAIN
from stages.context import StageContext
from stages.curriculum.order import Ascending, Pools
from stages.curriculum.plateau import Plateau, has_plateaued
from stages.curriculum.progress import read_progress
from stages.environments.generate import TIERS, generate
from stages.environments.tables import to_table
from stages.optional.advance import AdvanceConfig, advance
from stages.training.launch import Weights
from tests.support.contexts import make_context
from tests.support.sessions import made_session

LAYOUT = RunLayout("advance")
TWO = (
    'phases=[{name="short", iterations=3, sample={sampling={max_tokens=8}}}, '
    '{name="long", reference="phase_start", sample={order={by="pools"}}, '
    'finetune={reference="base", loss={entropy_coef=0.01}}}]'
)


def test_a_phase_is_the_recipe_with_other_settings() -> None:
    recipe = load_recipe("answers_only", [TWO, "sample.order={by='ascending', column='num_clues'}"])
    short, long = recipe.in_phase(0), recipe.in_phase(1)
    assert (short.sample.sampling.max_tokens, long.sample.sampling.max_tokens) == (8, 12)
    assert (short.sample.order, long.sample.order) == (Ascending(column="num_clues"), Pools())
    assert (short.finetune.loss.entropy_coef, long.finetune.loss.entropy_coef) == (0.0, 0.01)
    assert short.finetune.learning_rate == long.finetune.learning_rate == recipe.finetune.learning_rate
    assert (short.sample.seed, long.sample.seed) == (0, 1)
    assert recipe.rates_itself
    assert not short.rates_itself
    assert short.phases == []


def test_a_frozen_staged_recipe_resolves_to_itself() -> None:
    """The phases are stored with whole sections, so defaults that change later do not reach them."""
    recipe = load_recipe("answers_only", [TWO])
    assert Recipe.model_validate(json.loads(json.dumps(recipe.model_dump(mode="json")))) == recipe


@pytest.mark.parametrize(
    ("phases", "message"),
    [
        (
            '{name="a", iterations=3}, {name="b", sample={sampling={max_tokens=8}}}',
            r"phases\.1: sample\.sampling\.max_tokens of 'b' is 8, less than the 12 of 'a': .* may_shrink = true",
        ),
        ('{name="a", until={plateau_iterations=3}}, {name="b"}', r"phases\.0\.until\.metric: Field required"),
        ('{name="a", until={metric="loss"}}, {name="b"}', r"until\.metric: Input should be 'reward', "),
        (
            '{name="a", until={plateau_iterations=5}}, {name="b"}',
            r"phases\.0\.until\.metric: Field required .*, expected one of reward, train_accuracy, train_exact, ",
        ),
        ('{name="a"}, {name="b"}', r"phases\.0: 'a' has no end: set its iterations or until"),
        (
            '{name="a", iterations=3}, {name="b", reference="phase_start"}',
            r"phases\.1: reference of 'b' is 'phase_start', but finetune\.reference is 'none'",
        ),
        ('{name="a", sample={where=[{all=[]}]}}', r"all is empty: name a condition"),
        ('{name="a", iterations=3}', r"the last phase, 'a', ends with the run: drop its iterations"),
        ('{name="a", sample={order={by="ascending", column="exact:7b"}}}', r"rates of '7b', but \[rate\] names only"),
        ('{name="a", sample={where=[{all=[{column="clues", above=1}]}]}}', r"no such column 'clues'(?!.*Tuple)"),
        ('{name="a", evaluate={puzzles=8}}', r"phases\.0\.evaluate: Extra inputs are not permitted"),
        ('{name="a", sample={puzzles_per_iteration=9000}}', r"phases\.0: sample\.puzzles_per_iteration is 9000, more"),
        ('{name="a", sample=5}', r"phases\.0\.sample: Input should be a valid dictionary"),
        ("5", r"phases\.0: Input should be a valid dictionary"),
    ],
)
def test_wrong_phases_are_refused_in_one_line(phases: str, message: str) -> None:
    with pytest.raises(BadInputError, match=message) as raised:
        load_recipe("answers_only", [f"phases=[{phases}]"])
    assert "\n" not in str(raised.value)


def test_a_phase_may_shrink_if_it_says_so() -> None:
    phases = '{name="a", iterations=3}, {name="b", may_shrink=true, sample={sampling={max_tokens=8}}}'
    assert load_recipe("answers_only", [f"phases=[{phases}]"]).in_phase(1).sample.sampling.max_tokens == 8


def test_greedy_accuracy_cannot_end_a_phase_if_it_is_not_measured() -> None:
    phases = 'phases=[{name="a", until={metric="greedy_accuracy"}}, {name="b"}]'
    with pytest.raises(BadInputError, match=r"phases\.0: .*greedy_accuracy, but evaluate\.greedy is false"):
        load_recipe("answers_only", [phases, "evaluate.greedy=false"])


@pytest.mark.parametrize("section", ["sample", "distil.sample"])
@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("column='num_clues', above=1000", r"SECTION\.where: it takes 0 of 3 train puzzles; .*; set wider bounds or a"),
        ("column='difficulty:cellars', above=0", r"curriculum column 'difficulty:cellars': the puzzles do not have it"),
    ],
)
def test_a_filter_without_rates_is_checked_before_anything_is_made(
    request_of_mine: Callable[..., RunRequest], section: str, condition: str, message: str
) -> None:
    """So the name of the run stays free, and the recipe can be corrected under it."""
    with opened(request_of_mine(f"{section}.where=[{{all=[{{{condition}}}]}}]")) as run:
        attempt = ArtifactAddress(run.ctx.store, "puzzles/set", Puzzles).attempt(Identity.of("made", 1, {}))
        attempt.write_table("train.parquet", to_table([generate(TIERS["reduced"], seed) for seed in range(3)]), PUZZLES)
        with pytest.raises(BadInputError, match=message.replace("SECTION", section)):
            first_position(run, attempt.publish())
        assert run.ctx.store.list("models") == run.ctx.store.list(run.layout.root) == []


@pytest.mark.parametrize(
    ("values", "ended"),
    [
        ([0.1, 0.2, 0.3], False),  # nothing stands before the newest three
        ([0.3, 0.3, 0.2, 0.1], True),
        ([0.3, 0.2, 0.31, 0.1], True),  # higher, but not by more than 0.02
        ([0.3, 0.2, 0.33, 0.1], False),
        ([0.1, 0.5, 0.2, 0.2, 0.2], True),  # the highest is older than three iterations
        ([0.1, 0.2, 0.5, 0.2, 0.2], False),
    ],
)
def test_a_plateau_is_a_stretch_without_a_new_highest_value(values: list[float], ended: bool) -> None:
    assert has_plateaued(values, Plateau(metric="reward", plateau_iterations=3, min_delta=0.02)) == ended


@pytest.fixture
def ctx(tmp_path: Any) -> Any:
    store = Store.open("memory://advance")
    for key in store.list(""):
        store.delete(key)
    with make_context(store, tmp_path) as context:
        yield context


def measured(ctx: StageContext, n: int, reward: float) -> tuple[Ref[Grades], Ref[Report]]:
    """Grades and a report of an iteration with these figures."""
    made = Identity.of("made", 1, {"n": n})
    grades = ArtifactAddress(ctx.store, LAYOUT.iteration(n, "grades"), Grades).attempt(made)
    report = ArtifactAddress(ctx.store, LAYOUT.iteration(n, "report"), Report).attempt(made)
    return grades.publish({"reward/mean": reward}), report.publish({"sampled": {"accuracy": {"mean": reward / 2}}})


def test_each_iteration_records_its_phase_and_the_next_is_read_from_the_record(ctx: StageContext) -> None:
    """Two iterations at most, or a plateau of one: rewards 0.1, 0.3 end by number; 0.5, 0.4 by plateau."""
    rule = Plateau(metric="reward", plateau_iterations=1)
    phase, since = 0, 1
    before: Ref[Transition] | None = None
    told: list[tuple[int, int, bool, str]] = []
    for n, reward in enumerate((0.1, 0.3, 0.5, 0.4, 0.2), 1):
        config = AdvanceConfig(iterations=2 if phase == 0 else None, until=rule, phase=phase, since=since)
        out = ArtifactAddress(ctx.store, f"{n}/transition", Transition)
        grades, report = measured(ctx, n, reward)
        earlier = before
        before = advance(ctx, config, grades, report, earlier, iteration=n, out=out)
        assert advance(ctx, config, grades, report, earlier, iteration=n, out=out).reused
        progress = read_progress(before, ctx.store)
        told.append((progress.phase, progress.since, progress.ended, progress.reason))
        phase, since = progress.position_after(n)
    assert told == [
        (0, 1, False, "iteration 1 of 2 of the phase"),
        (0, 1, True, "2 iterations are done"),
        (1, 3, False, "iteration 1 of the phase"),
        (1, 3, True, "reward has not risen above 0.5 by more than 0 for 1 iterations"),
        (2, 5, False, "iteration 1 of the phase"),
    ]


@pytest.mark.parametrize(("optimizer", "states_since"), [("fresh", 2), ("kept", 1)])
def test_a_rollback_may_restore_states_since_the_last_fresh_optimizer(
    ctx: StageContext, tmp_path: Path, optimizer: str, states_since: int
) -> None:
    phases = "phases=[{name='a', iterations=1}, {name='b', iterations=1, optimizer='%s'}, {name='c'}]"
    session = made_session(ctx.store, tmp_path, LAYOUT, [phases % optimizer], published=3 + SHOWN_AGAIN)
    weights, state = Ref[Checkpoint]("Checkpoint", "w", "0" * 64), Ref[OptimizerState]("OptimizerState", "s", "1" * 64)
    position = Position(Weights(weights, state), Ref[Decision]("Decision", "d", "2" * 64), CreditModels())
    carried: list[Ref[OptimizerState] | None] = []
    for n, (phase, iterations) in enumerate([(0, 1), (1, 1), (2, None)], 1):
        config = AdvanceConfig(iterations=iterations, phase=phase, since=n)
        out = ArtifactAddress(ctx.store, LAYOUT.iteration(n, "transition"), Transition)
        advance(ctx, config, *measured(ctx, n, 0.5), position.transition, iteration=n, out=out)
        position = phase_after(session, position, replace(position, weights=Weights(weights, state)), n)
        carried.append(position.weights.state)
    assert (position.phase, position.since, position.states_since) == (2, 3, states_since)
    assert carried == [None if optimizer == "fresh" else state, state, state]


def test_held_out_accuracy_can_be_watched(ctx: StageContext) -> None:
    config = AdvanceConfig(until=Plateau(metric="sampled_accuracy"), phase=0, since=1)
    out = ArtifactAddress(ctx.store, "1/transition", Transition)
    progress = read_progress(advance(ctx, config, *measured(ctx, 1, 0.5), None, iteration=1, out=out), ctx.store)
    assert progress.values == [0.25]
