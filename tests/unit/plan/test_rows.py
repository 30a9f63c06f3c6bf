"""`pack.row_tokens = "auto"`: the number that a run begins with and keeps."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from artifacts.address import ArtifactAddress
from artifacts.errors import BadInputError, IdentityMismatchError
from artifacts.identity import Identity
from artifacts.layout import RunLayout
from artifacts.refs import Checkpoint, Puzzles, Ref, Report, Rollouts
from artifacts.schemas import PUZZLES
from artifacts.store.store import Store
from flows.checks.rows import check_rows
from flows.compare.candidates import candidates
from flows.config.model_size import model_size
from flows.config.recipe import Recipe
from flows.config.recipes import load_profile, load_recipe
from flows.inputs.rows import settle_rows
from flows.opening import RunRequest, as_begun, opened
from flows.plan.cluster import cluster
from flows.plan.page import profile_text
from flows.plan.plan import make_plan, memory_of
from flows.plan.rows import bounds, largest, planned_rows, with_rows
from flows.plan.workload import Lengths
from flows.session.frozen import check_recipe, freeze_recipe, frozen_recipe
from flows.session.session import Session
from stages.environments.generate import TIERS, generate
from stages.environments.logic_puzzles.answers import write_answer
from stages.environments.tables import to_table
from stages.grpo.groups import Branch, Group
from stages.grpo.packing import PackConfig, pack_groups
from stages.hardware.compute_type import CudaDevice
from stages.models.from_scratch import ScratchModel, make_scratch
from stages.models.tokenizers.chat import ChatTokenizer
from tests.support.doctor import GIB, H100

AUTO = "pack.row_tokens=auto"
CPU, CUDA = load_profile("cpu"), load_profile("cuda")


def on_host(recipe: Recipe, gib: float) -> int:
    """Returns the size of a row on a machine without GPUs and with so much memory."""
    return with_rows(recipe, CPU, (), int(gib * GIB)).pack.row_size


def test_bounds_by_hand() -> None:
    # A completion of 300 and its prompt take 400, a group of 16 takes 6,400; both become multiples of 64.
    recipe = load_recipe("answers_only", ["sample.sampling.max_tokens=300", "sample.sampling.samples_per_prompt=16"])
    assert bounds(recipe, 1) == (448, 6400)
    # 8 processes share a step: 64 groups x 16 completions of 300 / 8 tokens are 38,400, in 2 steps 2,400 for each.
    recipe = load_recipe(
        "answers_only",
        ["sample.sampling.max_tokens=300", "sample.sampling.samples_per_prompt=16", "pack.updates=2",
         "sample.puzzles_per_iteration=64"],
    )  # fmt: skip
    assert bounds(recipe, 8) == (448, 2432)
    # Known prompts of 430 tokens: 730 and 430 + 16 x 300 = 5,230. The solver's answers are in a completion as well, and
    # nothing is longer than the context.
    recipe = load_recipe("answers_only", ["sample.sampling.max_tokens=300", "sample.sampling.samples_per_prompt=16"])
    assert bounds(recipe, 1, Lengths(430)) == (768, 5248)
    asking = load_recipe("answers_only", ["sample.sampling.max_tokens=300", "sample.sampling.tool_calls=2"])
    assert Lengths(430, tool_tokens=50).longest(asking.sample.sampling) == 430 + 300 + 2 * 50
    assert bounds(recipe, 1, Lengths(430, context=512)) == (512, 430 + 16 * 82 + 50)


@pytest.mark.parametrize("limit", [0, 448, 500, 640, 700, 6399, 6400, 9000])
def test_the_largest_that_fits(limit: int) -> None:
    expected = max((size for size in range(448, 6401, 64) if size <= limit), default=None)
    assert largest(448, 6400, lambda tokens: tokens <= limit) == expected


@pytest.mark.long
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
    unknown = load_recipe("answers_only", [AUTO, "model={source='hub', id='a/b-7B'}"])
    assert with_rows(unknown, CPU).pack.row_size == bounds(unknown, 1)[0], "its shape decides later"


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
    phases = [phase.model_copy(update={"pack": phase.pack.model_copy(update={"row_tokens": "auto"})})
              for phase in recipe.phases]  # fmt: skip
    phases[0] = recipe.phases[0]
    profile = load_profile("cuda", ["trainer.processes=8"])
    decided = with_rows(recipe.model_copy(update={"phases": phases}), profile, (H100,) * 8)
    assert decided.phases[0] == recipe.phases[0] and decided.pack == recipe.pack
    assert all(isinstance(phase.pack.row_tokens, int) for phase in decided.phases)
    assert rows_survive(decided)


def rows_survive(recipe: Recipe) -> bool:
    return Recipe.model_validate(recipe.model_dump(mode="json")) == recipe


@dataclass(frozen=True)
class Prepared:
    """A prepared set and a model of its words, in the store of a run that has not begun."""

    puzzles: Ref[Puzzles]
    model: Ref[Checkpoint]
    longest: int

    @classmethod
    def of(cls, session: Session, folder: Path) -> "Prepared":
        different = [generate(TIERS["reduced"], seed) for seed in range(6)]
        out = ArtifactAddress(session.ctx.store, "set", Puzzles).attempt(Identity.of("prepare", 1, {}))
        out.write_table("train.parquet", to_table(different), PUZZLES)
        texts = [puzzle.prompt for puzzle in different] + [write_answer(puzzle) for puzzle in different]
        model = ArtifactAddress(session.ctx.store, "model", Checkpoint).attempt(Identity.of("fetch", 1, {}))
        with model.folder(folder) as files:
            make_scratch(ScratchModel(max_positions=8192), texts, files)
            tokenizer = ChatTokenizer(files)
        longest = max(len(tokenizer.prompt_token_ids(puzzle.prompt)) for puzzle in different)
        return cls(out.publish(), model.publish(), longest)

    def settle(self, session: Session) -> PackConfig:
        settle_rows(session, self.model, self.puzzles, [self.longest])
        return session.recipe.pack


def stored(session: Session) -> bool:
    """Publishes the first part of an artifact of the run, and returns whether this froze the recipe."""
    session.at(0, "report", Report).attempt(Identity.of("evaluate", 1, {})).write_bytes("x", b"")
    return session.ctx.store.exists(session.layout.recipe)


def test_rows_hold_the_longest_prompt_with_a_completion_at_its_longest(
    request_of_mine: Callable[..., RunRequest], tmp_path: Path
) -> None:
    """`auto` is the default and looks at the prompts; a shorter number is refused before anything is stored."""
    long = ["sample.sampling.max_tokens=4096", "sample.sampling.samples_per_prompt=4"]
    with opened(request_of_mine(*long, "pack={}")) as run:
        prepared = Prepared.of(run, tmp_path)
        assert prepared.longest > 40
        assert prepared.settle(run).row_size >= prepared.longest + 4096
    for tokens, found in ((4095, "completion of sample"), (4096, "completion of sample"), (4097, "up to 4096")):
        with (
            pytest.raises(BadInputError, match=rf"^pack\.row_tokens: {tokens}, too short .*{found}.*overlong"),
            opened(request_of_mine(*long, f"pack.row_tokens={tokens}")) as run,
        ):
            prepared.settle(run)
        assert not run.ctx.store.exists(run.layout.recipe)
    exact = prepared.longest + 4096
    with opened(request_of_mine(*long, f"pack.row_tokens={exact}")) as run:
        assert prepared.settle(run).row_size == exact
    with opened(request_of_mine(*long, "pack.row_tokens=2048", "pack.overlong=drop")) as run:
        assert prepared.settle(run).row_size == 2048


def test_a_loss_of_routers_is_refused_for_a_model_without_experts_before_anything_is_stored(
    request_of_mine: Callable[..., RunRequest], tmp_path: Path
) -> None:
    with opened(request_of_mine("finetune.loss.router_aux_loss_coef=0.001", AUTO)) as run:
        prepared = Prepared.of(run, tmp_path)
        with pytest.raises(BadInputError, match=r"router_aux_loss_coef: 0.001, for a model without experts \(qwen2\)"):
            prepared.settle(run)
        assert not run.ctx.store.exists(run.layout.recipe)


def test_a_stage_of_a_run_with_short_rows_is_named() -> None:
    recipe = load_recipe("fastcurl")  # rows of 16,384 for completions of 8,192, then of 24,576 for 16,384
    check_rows(recipe, Lengths(8192))
    wide = recipe.phases[0].pack.model_copy(update={"row_tokens": 32_768})
    with pytest.raises(BadInputError, match=r"^phases\.1\.pack\.row_tokens: 24576, too short for .* 16384; .* 24577,"):
        check_rows(recipe.with_packs(recipe.pack, [wide]), Lengths(8193))


def test_a_run_keeps_the_number_that_it_began_with(
    request_of_mine: Callable[..., RunRequest], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It is frozen, so another machine or profile changes nothing; without `auto` the identity is that of a number."""
    request = request_of_mine(AUTO).model_copy(update={"refresh": ["sample"]})  # a new run has nothing to redo
    with opened(request) as run:
        prepared = Prepared.of(run, tmp_path)
        number = prepared.settle(run).row_size
        assert number == bounds(run.recipe, 1, Lengths(prepared.longest))[1] and stored(run)
    store, layout = Store.open(request.store), RunLayout("mine")
    assert json.loads(store.read_bytes(layout.recipe))["pack"]["row_tokens"] == number
    written = load_recipe("answers_only", [f"pack.row_tokens={number}"])
    assert Identity.of("pack", 1, run.recipe.pack) == Identity.of("pack", 1, written.pack)
    monkeypatch.setattr("flows.plan.rows.limit_bytes", lambda: GIB)  # too little for any row
    with pytest.raises(BadInputError, match="too small for a row"), opened(request.model_copy(update={"run": "new"})):
        pass
    with opened(request.model_copy(update={"refresh": []})) as again:
        assert again.recipe == run.recipe
        assert prepared.settle(again).row_size == number
    with pytest.raises(IdentityMismatchError, match=r"pack\.row_tokens"):
        check_recipe(store, layout, load_recipe("answers_only", ["pack.row_tokens=128"]))


def test_a_sampler_takes_the_number_of_the_trainer(
    request_of_mine: Callable[..., RunRequest], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
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
                early.ctx.store, early.layout, load_recipe("answers_only", ["pack.row_tokens=96", "iterate_ahead=1"])
            )
            early.at(1, "rollouts", Rollouts).attempt(identity).write_bytes("x", b"")
            assert Prepared.of(early, tmp_path).settle(early).row_size == 96
        with opened(sampler) as late:
            assert late.recipe.pack.row_tokens == 96
    other = trainer.model_copy(update={"role": "sampler", "overrides": [AUTO, "iterate_ahead=1", "iterations=9"]})
    with pytest.raises(IdentityMismatchError, match="iterations"), opened(other):
        pass


@pytest.mark.parametrize("role", ["sampler", "trainer"])
def test_one_of_two_roles_stores_no_request_to_refresh_stages(
    request_of_mine: Callable[..., RunRequest], role: str
) -> None:
    begun = request_of_mine("iterate_ahead=1")
    with opened(begun) as session:
        session.before_writing()
    before = Store.open(begun.store).list("runs/mine")
    request = begun.model_copy(update={"role": role, "refresh": ["sample@2"]})
    with pytest.raises(BadInputError, match=f"and role {role}; expected role both"), opened(request):
        pass
    assert Store.open(begun.store).list("runs/mine") == before


def test_a_run_that_began_with_a_number_goes_on_with_it(tmp_path: Path) -> None:
    store, layout = Store.open(str(tmp_path)), RunLayout("mine")
    freeze_recipe(store, layout, load_recipe("fastcurl"))
    auto = load_recipe("fastcurl", [AUTO])
    assert as_begun(auto, frozen_recipe(store, layout), store) == load_recipe("fastcurl")


def test_only_numbers_reach_a_batch() -> None:
    with pytest.raises(BadInputError, match=r"pack\.row_tokens: auto; expected a number"):
        pack_groups([Group([1], [Branch([2], [-1.0], 1.0)])], PackConfig(row_tokens="auto"))
    own = load_recipe("answers_only")
    (tried,) = candidates(own, ["answers_only"], [AUTO])
    assert tried.recipe == own, "it is compared on the rows of the run"
