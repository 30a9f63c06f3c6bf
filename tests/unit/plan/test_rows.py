"""`pack.row_tokens = "auto"`: the number that a run begins with and keeps."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from artifacts.errors import BadInputError, IdentityMismatchError
from artifacts.identity import Identity
from artifacts.layout import RunLayout
from artifacts.refs import Report, Rollouts
from artifacts.store.store import Store
from flows.compare.candidates import candidates
from flows.config.model_size import model_size
from flows.config.recipe import Recipe
from flows.config.recipes import load_profile, load_recipe
from flows.opening import RunRequest, opened
from flows.plan.cluster import cluster
from flows.plan.page import profile_text
from flows.plan.plan import make_plan, memory_of
from flows.plan.rows import bounds, largest, planned_rows, with_rows
from flows.session import check_recipe, freeze_recipe, recipe_to_continue
from stages.grpo.groups import Branch, Group
from stages.grpo.packing import PackConfig, pack_groups
from stages.hardware.compute_type import CudaDevice
from tests.support.doctor import GIB, H100

AUTO = "pack.row_tokens=auto"
CPU, CUDA = load_profile("cpu"), load_profile("cuda")


def on_host(recipe: Recipe, gib: float) -> int:
    """Returns the size of a row on a machine without GPUs and with so much memory."""
    return with_rows(recipe, CPU, (), int(gib * GIB)).pack.row_size


def test_bounds_by_hand() -> None:
    # A completion of 300 and its prompt take 400, a group of 16 takes 6,400; both become multiples of 64.
    recipe = load_recipe("quickstart", ["sample.sampling.max_tokens=300", "sample.sampling.samples_per_prompt=16"])
    assert bounds(recipe, 1) == (448, 6400)
    # 8 processes share a step: 64 groups x 16 completions of 300 / 8 tokens are 38,400, in 2 steps 2,400 for each.
    recipe = load_recipe(
        "quickstart",
        ["sample.sampling.max_tokens=300", "sample.sampling.samples_per_prompt=16", "pack.updates=2",
         "sample.puzzles_per_iteration=64"],
    )  # fmt: skip
    assert bounds(recipe, 8) == (448, 2432)


@pytest.mark.parametrize("limit", [0, 448, 500, 640, 700, 6399, 6400, 9000])
def test_the_largest_that_fits(limit: int) -> None:
    expected = max((size for size in range(448, 6401, 64) if size <= limit), default=None)
    assert largest(448, 6400, lambda tokens: tokens <= limit) == expected


def test_rows_follow_the_memory_of_the_host() -> None:
    recipe = load_recipe("smollm2", [AUTO])
    least, most = bounds(recipe, 1)
    assert on_host(recipe, 64) == most == 1408, "a group, and nothing else, needs no more"
    assert on_host(load_recipe("smollm2"), 1) == 1536, "a number stays, whatever the memory"
    with pytest.raises(BadInputError, match=rf"auto, but the memory .* small for a row of {least} tokens; .*lower"):
        on_host(recipe, 2)
    long = load_recipe("smollm2", [AUTO, "sample.sampling.max_tokens=4096"])
    some, more = on_host(long, 20), on_host(long, 28)
    assert bounds(long, 1)[0] < some < more < bounds(long, 1)[1]


def test_rows_follow_the_memory_of_the_gpu() -> None:
    recipe, four = load_recipe("open_rs1", [AUTO, "sample.puzzles_per_iteration=512"]), ["trainer.processes=4"]
    four += ["trainer.activation_checkpointing=false", "trainer.micro_batch_tokens=2048"]
    profile = load_profile("cuda", four)
    size = model_size(recipe.model)

    def missing(tokens: int) -> float:
        sized = recipe.model_copy(update={"pack": recipe.pack.model_copy(update={"row_tokens": tokens})})
        return memory_of(sized, profile, size, H100.memory_bytes).missing

    row = with_rows(recipe, profile, (H100,) * 4).pack.row_size
    assert bounds(recipe, 4)[0] < row < bounds(recipe, 4)[1], "memory decides"
    assert missing(row) == 0 < missing(row + 64)
    elsewhere = load_profile("cuda", [*four, 'engine.external_urls=["http://127.0.0.1:1"]'])
    assert with_rows(recipe, elsewhere, (H100,) * 4).pack.row_size > row, "the engine takes nothing of these GPUs"
    with pytest.raises(BadInputError, match="GPUs that this machine lacks"):
        with_rows(recipe, profile, ())
    with pytest.raises(BadInputError, match="too small for a row"):
        with_rows(recipe, profile, (CudaDevice("a GPU", (8, 0), 16 * GIB),))
    unknown = load_recipe("quickstart", [AUTO, "model={source='hub', id='a/b-7B'}"])
    with pytest.raises(BadInputError, match="a model of unknown shape"):
        with_rows(unknown, CPU)


def test_a_run_with_the_written_profile_has_the_rows_of_the_plan(tmp_path: Path) -> None:
    rented = cluster("4xA40")
    planned = planned_rows(load_recipe("open_rs1", [AUTO]), CUDA, rented)
    plan = make_plan(planned, CUDA, rented)
    assert plan.fitting is not None and plan.work.row_tokens == planned.pack.row_size
    path = tmp_path / "four.toml"
    path.write_text(profile_text(plan.fitting, "open_rs1", str(rented), CUDA))
    gpus = (CudaDevice("A40", (8, 6), rented.gpu.memory_bytes),) * 4
    assert with_rows(load_recipe("open_rs1", [AUTO]), load_profile(str(path)), gpus) == planned
    hopeless = planned_rows(load_recipe("openpipe_32b", [AUTO]), CUDA, cluster("1xA40"))
    assert hopeless.pack.row_size == bounds(hopeless, 1)[0]


def test_stages_have_rows_of_their_own() -> None:
    recipe = load_recipe("fastcurl")
    stages = [stage.model_copy(update={"pack": stage.pack.model_copy(update={"row_tokens": "auto"})})
              for stage in recipe.stages]  # fmt: skip
    stages[0] = recipe.stages[0]
    profile = load_profile("cuda", ["trainer.processes=8"])
    decided = with_rows(recipe.model_copy(update={"stages": stages}), profile, (H100,) * 8)
    assert decided.stages[0] == recipe.stages[0] and decided.pack == recipe.pack
    assert all(isinstance(stage.pack.row_tokens, int) for stage in decided.stages)
    assert rows_survive(decided)


def rows_survive(recipe: Recipe) -> bool:
    return Recipe.model_validate(recipe.model_dump(mode="json")) == recipe


def test_a_run_keeps_the_number_that_it_began_with(
    request_of_mine: Callable[..., RunRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is frozen, so another machine or profile changes nothing; without `auto` the identity is that of a number."""
    request = request_of_mine(AUTO)
    with opened(request) as run:
        number = run.recipe.pack.row_tokens
        assert number == bounds(run.recipe, 1)[1]
        run.at(0, "report", Report).attempt(Identity.of("evaluate", 1, {})).write_bytes("x", b"")
    store, layout = Store.open(request.store), RunLayout("mine")
    assert json.loads(store.read_bytes(layout.recipe))["pack"]["row_tokens"] == number
    written = load_recipe("quickstart", [f"pack.row_tokens={number}"])
    assert Identity.of("pack", 1, run.recipe.pack) == Identity.of("pack", 1, written.pack)
    monkeypatch.setattr("flows.plan.rows.limit_bytes", lambda: GIB)  # too little for any row
    with pytest.raises(BadInputError, match="too small for a row"), opened(request.model_copy(update={"run": "new"})):
        pass
    with opened(request) as again:
        assert again.recipe == run.recipe
    with pytest.raises(IdentityMismatchError, match=r"pack\.row_tokens"):
        check_recipe(store, layout, load_recipe("quickstart", ["pack.row_tokens=128"]))


def test_a_sampler_takes_the_number_of_the_trainer(
    request_of_mine: Callable[..., RunRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its machine may have no room to train, and it may start before the trainer has frozen the recipe."""
    trainer = request_of_mine(AUTO, "iterate_ahead=1")
    sampler = trainer.model_copy(update={"role": "sampler"})
    identity = Identity.of("sample", 1, {})
    with monkeypatch.context() as small:
        small.setattr("flows.plan.rows.limit_bytes", lambda: GIB)
        with opened(sampler) as early:
            assert not early.ctx.store.exists(early.layout.recipe)
            freeze_recipe(
                early.ctx.store, early.layout, load_recipe("quickstart", ["pack.row_tokens=96", "iterate_ahead=1"])
            )
            early.at(1, "rollouts", Rollouts).attempt(identity).write_bytes("x", b"")
        with opened(sampler) as late:
            assert late.recipe.pack.row_tokens == 96
    other = trainer.model_copy(update={"role": "sampler", "overrides": [AUTO, "iterate_ahead=1", "iterations=9"]})
    with pytest.raises(IdentityMismatchError, match="iterations"), opened(other):
        pass


def test_a_sampler_stores_no_request_to_redo_stages(request_of_mine: Callable[..., RunRequest]) -> None:
    request = request_of_mine("iterate_ahead=1").model_copy(update={"role": "sampler", "refresh": ["sample@2"]})
    with pytest.raises(BadInputError, match="none for role sampler"), opened(request):
        pass
    assert not Store.open(request.store).list("runs/mine")


def test_a_run_that_began_with_a_number_goes_on_with_it(tmp_path: Path) -> None:
    store, layout = Store.open(str(tmp_path)), RunLayout("mine")
    freeze_recipe(store, layout, load_recipe("fastcurl"))
    auto = load_recipe("fastcurl", [AUTO])
    assert recipe_to_continue(store, layout, auto) == load_recipe("fastcurl")


def test_only_numbers_reach_a_batch() -> None:
    with pytest.raises(BadInputError, match=r"pack\.row_tokens: auto; expected a number"):
        pack_groups([Group([1], [Branch([2], [-1.0], 1.0)])], PackConfig(row_tokens="auto"))
    own = load_recipe("quickstart")
    (tried,) = candidates(own, ["quickstart"], [AUTO])
    assert tried.recipe == own, "it is compared on the rows of the run"
