"""Pass rates through an engine's protocol: of a checkpoint, cut short and resumed; and of an iteration, for nothing."""

import pytest

from artifacts.address import ArtifactAddress
from artifacts.errors import BadInputError, TransientError
from artifacts.reading import Artifact
from artifacts.refs import Grades, PassRates, Ref
from artifacts.schemas import PASS_RATES, PASS_RATES_FILE
from stages.curriculum.order import Condition, Pools, Selection
from stages.environments.logic_puzzles.answers import write_answer
from stages.environments.puzzle import Puzzle
from stages.grade import GradeConfig, grade
from stages.optional.rate import PassRateConfig, RatedModel, rate
from stages.optional.update_rates import update_rates
from stages.sample import SampleConfig
from stages.sampling.config import SamplingConfig
from tests.support.speaker import WRONG, Opener, Place

CONFIG = PassRateConfig(
    models=(RatedModel(name="start"),), sampling=SamplingConfig(samples_per_prompt=3, max_tokens=64)
)
PLAIN = SampleConfig(puzzles_per_iteration=4, sampling=SamplingConfig(samples_per_prompt=3, max_tokens=64))


def right_by_number(puzzles: list[Puzzle]) -> dict[str, list[str]]:
    """Answers of which 0, 1, 2, 3, 0, 1, ... of three are right."""
    return {
        puzzle.prompt: [write_answer(puzzle)] * (number % 4) + [WRONG] * (3 - number % 4)
        for number, puzzle in enumerate(puzzles)
    }


def rated(place: Place, split: str = "train") -> Ref[PassRates]:
    out = ArtifactAddress(place.ctx.store, "pass_rates", PassRates)
    return rate(place.ctx, CONFIG, {"start": place.weights}, place.puzzles, split=split, out=out)


def exact_by_puzzle(place: Place, pass_rates: Ref[PassRates]) -> dict[tuple[str, str], float]:
    table = Artifact.open(place.ctx.store, pass_rates).read_table(PASS_RATES_FILE, PASS_RATES)
    return {(name, puzzle): exact for name, puzzle, exact in table.select("name", "prompt_id", "exact").iter_rows()}


def test_the_rate_of_a_puzzle_is_the_share_of_right_answers_also_if_the_stage_is_cut_short(
    opened: Opener, puzzles: list[Puzzle]
) -> None:
    place = opened("run", right_by_number(puzzles))
    place.speaker.fails_after = 5
    with pytest.raises(TransientError):
        rated(place)
    place.speaker.fails_after = 10**9
    pass_rates = rated(place)
    expected = {("start", puzzle.prompt_id): number % 4 / 3 for number, puzzle in enumerate(puzzles)}
    assert exact_by_puzzle(place, pass_rates) == pytest.approx(expected)
    facts = Artifact.open(place.ctx.store, pass_rates).manifest.facts["rates"]["start"]
    rates = list(expected.values())
    assert facts["puzzles"] == len(puzzles)
    assert facts["exact"] == pytest.approx(
        {"mean": sum(rates) / len(rates), "at_0": rates.count(0) / len(rates), "at_1": rates.count(1) / len(rates)}
    )
    assert len(place.speaker.asked) <= len(puzzles) + 2, "only the groups in flight are sampled twice"
    assert rated(place).reused


def test_an_unknown_split_is_named(opened: Opener, puzzles: list[Puzzle]) -> None:
    place = opened("run", right_by_number(puzzles))
    with pytest.raises(BadInputError, match=r"split 'text': not in the puzzle set"):
        rated(place, "text")


def test_an_iteration_adds_its_rates_and_asks_for_nothing(opened: Opener, puzzles: list[Puzzle]) -> None:
    place = opened("run", right_by_number(puzzles))
    pass_rates, rollouts = rated(place), place.sampled(PLAIN)
    asked, store = len(place.speaker.asked), place.ctx.store
    grades = grade(place.ctx, GradeConfig(), rollouts, place.puzzles, out=ArtifactAddress(store, "grades", Grades))
    out = ArtifactAddress(store, "1/pass_rates", PassRates)
    folded = update_rates(place.ctx, rollouts, grades, pass_rates, iteration=1, out=out)
    assert len(place.speaker.asked) == asked
    before, after = exact_by_puzzle(place, pass_rates), exact_by_puzzle(place, folded)
    own = {puzzle: exact for (name, puzzle), exact in after.items() if name == "run"}
    assert len(own) == 4
    assert own == pytest.approx({puzzle: before["start", puzzle] for puzzle in own})
    assert {key: value for key, value in after.items() if key[0] == "start"} == before
    facts = Artifact.open(store, folded).manifest.facts["rates"]
    assert facts.keys() == {"run", "start"} and facts["run"]["puzzles"] == 4

    hard = (Selection(all=(Condition(column="exact:run", above=1.0),)),)  # the four that were rated are out
    unrated = len(puzzles) - 4
    more = PLAIN.model_copy(update={"where": hard, "puzzles_per_iteration": unrated + 1})
    with pytest.raises(BadInputError, match=f"it takes {unrated} of {len(puzzles)} train puzzles") as raised:
        place.sampled(more, folded, key="more")
    assert (
        'start a run with another name, with model = {source = "checkpoint", name = "models/scratch"}, without '
        "warm_start and distil, and with wider bounds or a lower puzzles_per_iteration"
    ) in str(raised.value)


def test_rollouts_say_how_many_puzzles_the_filter_left(opened: Opener, puzzles: list[Puzzle]) -> None:
    place = opened("run", right_by_number(puzzles))
    hard = (Selection(all=(Condition(column="exact:start", below=0.9),)),)
    pass_rates, filtered = rated(place), PLAIN.model_copy(update={"where": hard})
    facts = [
        Artifact.open(place.ctx.store, place.sampled(config, pass_rates, key=key)).manifest.facts
        for key, config in (("all", PLAIN), ("hard", filtered))
    ]
    assert "eligible_puzzles" not in facts[0]
    assert facts[1]["eligible_puzzles"] == sum(number % 4 < 3 for number in range(len(puzzles))) < len(puzzles)


def test_a_draw_by_rates_has_them_in_its_identity_and_any_other_draw_has_not(
    opened: Opener, puzzles: list[Puzzle]
) -> None:
    place = opened("run", right_by_number(puzzles))
    pass_rates = rated(place)
    pools = PLAIN.model_copy(update={"order": Pools(column="exact:start")})
    for config, inputs in ((PLAIN, {"weights", "puzzles"}), (pools, {"weights", "puzzles", "pass_rates"})):
        rollouts = place.sampled(config, pass_rates, key=config.order.by)
        assert Artifact.open(place.ctx.store, rollouts).manifest.inputs.keys() == inputs
