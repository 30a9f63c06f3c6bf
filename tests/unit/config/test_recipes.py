"""Recipes and profiles: all of ours load; what is wrong in one is named with its key."""

import hashlib
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from artifacts.documents.checksums import read_sums
from artifacts.documents.run_files import read_recipe
from artifacts.errors import BadInputError, IdentityMismatchError
from artifacts.identity import Identity
from artifacts.layout import RunLayout
from artifacts.reading import Artifact
from artifacts.refresh import record_request
from artifacts.refs import Checkpoint, Puzzles, Report
from artifacts.store.store import Store
from flows.checks.soundness import check_sound
from flows.cli.console.options import MeasureOptions
from flows.compare.candidates import candidates
from flows.config.limits import cut_below_training, evaluated_as_trained
from flows.config.recipe import Recipe
from flows.config.recipes import load_profile, load_recipe, recipe_names, validate
from flows.lookup.checkpoints import trained_sampling
from flows.lookup.history import read_run
from flows.lookup.stages import REFRESHABLE
from flows.opening import RunRequest, as_begun, opened
from flows.session.frozen import check_recipe, freeze_recipe, frozen_recipe
from stages.evaluate import EvaluateConfig
from stages.models.from_scratch import ScratchModel
from stages.models.source import StoredModel
from stages.sampling.config import SamplingConfig
from tests.support.made_run import make_run


@pytest.mark.parametrize("name", recipe_names())
def test_our_recipes_load_and_survive_freezing(name: str) -> None:
    recipe = load_recipe(name)
    assert Recipe.model_validate(recipe.model_dump(mode="json")) == recipe


TINY = {
    "title": "x",
    "iterations": 1,
    "model": {"source": "scratch"},
    "rate": {"models": [{"name": "a"}]},
    "distil": {},
}


@pytest.mark.parametrize(
    ("setting", "followed"),
    [
        ({"max_tokens": 4096}, True),
        ({"stop": ["END"]}, True),
        ({"tool_calls": 2}, True),
        ({"early_stop": {"threshold": -2.0}}, True),
        ({"samples_per_prompt": 3}, False),
        ({"top_p": 0.9}, False),
        ({"temperature": 0.7}, False),
    ],
)
def test_evaluations_follow_the_limits_of_training_and_nothing_else(setting: dict[str, Any], followed: bool) -> None:
    loss = {"temperature": setting.get("temperature", 1.0)}
    data = {**TINY, "sample": {"sampling": setting}, "finetune": {"loss": loss}}
    recipe = validate(Recipe, data, "test")
    assert recipe.rate and recipe.distil
    (name,) = setting
    sections = [recipe.evaluate.sampled, recipe.final.sampled, recipe.rate.sampling]
    sections += [] if name == "tool_calls" else [recipe.distil.sample.sampling]
    trained = getattr(recipe.sample.sampling, name)
    assert [getattr(section, name) == trained for section in sections] == [followed] * len(sections)
    own = {"max_tokens": 7, "stop": ["X"], "tool_calls": 0, "early_stop": None}
    sampled = validate(Recipe, {**data, "evaluate": {"sampled": own}}, "test").evaluate.sampled
    assert (sampled.max_tokens, sampled.stop, sampled.tool_calls, sampled.early_stop) == (7, ("X",), 0, None)


def test_evaluations_of_a_run_with_phases_follow_the_phase_with_the_highest_limit() -> None:
    recipe = load_recipe("fastcurl", ["final.sampled={samples_per_prompt=2}"])
    longest = [phase.sample.sampling.max_tokens for phase in recipe.phases]
    assert longest == [8192, 16384, 24576, 16384]
    assert recipe.evaluate.sampled.max_tokens == recipe.final.sampled.max_tokens == 24576


OWN_TEMPERATURE = ("finetune.loss.temperature_of=loss", "finetune.loss.old_logprobs=trainer")
NO_TERM = ("grade.reward.accuracy_weight=0", "pack.uniform_groups=kept")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            ["sample.sampling.samples_per_prompt=1"],
            r"samples_per_prompt: 1, .* 0 with grade\.advantage\.baseline = 'group_mean'",
        ),
        (
            ["sample.sampling.samples_per_prompt=1", "grade.advantage={baseline='leave_one_out', scale='none'}"],
            r"samples_per_prompt: 1, .* 0 with grade\.advantage\.baseline = 'leave_one_out'",
        ),
        (
            [
                "sample.sampling.samples_per_prompt=1",
                "sample.puzzles_per_iteration=1",
                "pack.updates=1",
                "grade.advantage={baseline='batch_mean', scale='none'}",
            ],
            r"samples_per_prompt: 1, and 1 puzzle",
        ),
        (["sample.sampling.temperature=0", *OWN_TEMPERATURE], r"temperature: 0\.0, so that all completions"),
        (["sample.sampling.top_k=1", "finetune.loss.old_logprobs=trainer"], r"top_k: 1, so that all completions"),
        (["grade.reward.accuracy_weight=0"], r"grade\.reward: no term with a weight"),
        (["grade.reward={accuracy_weight=0, outcomes={right=1.0, wrong=1.0, no_answer=1.0}}"], r"no term with a"),
        (["finetune.frozen_iterations=48"], r"frozen_iterations: 48, .* none of 48 iterations"),
        (["pack.last_token_advantage=zero", "sample.sampling.max_tokens=1"], r"last_token_advantage: zero"),
        ([*NO_TERM, "finetune.loss.entropy_coef=0.1"], r"no term with a weight"),
    ],
)
def test_recipes_that_cannot_learn_are_refused_before_a_run(
    request_of_mine: Callable[..., RunRequest], changes: list[str], message: str
) -> None:
    with pytest.raises(BadInputError, match=message), opened(request_of_mine(*changes)):
        pass


@pytest.mark.parametrize(
    "changes",
    [
        ["sample.sampling.samples_per_prompt=1", "grade.advantage={baseline='batch_mean', scale='batch_std'}"],
        ["sample.sampling.samples_per_prompt=1", "grade.advantage={baseline='none', scale='none'}", "value={}"],
        ["sample.sampling.temperature=0", "sample.sampling.samples_per_prompt=1", *OWN_TEMPERATURE,
         "finetune.loss.kind=cross_entropy", "pack={row_tokens=256, completions='right', uniform_groups='kept'}"],
        ["sample.sampling.samples_per_prompt=1", "teach={hint='derivation'}"],
        [*NO_TERM, "grade.advantage.level=process"],
        ["iterations=0", "sample.sampling.samples_per_prompt=1"],
        ["finetune.frozen_iterations=48", "grade.advantage={baseline='none', scale='none'}", "value={}"],
    ],
)  # fmt: skip
def test_recipes_that_learn_without_a_group_may_begin(
    request_of_mine: Callable[..., RunRequest], changes: list[str]
) -> None:
    with opened(request_of_mine(*changes)):
        pass


def test_how_a_judge_is_asked_may_change_in_a_run_but_not_what_it_is_asked(tmp_path: Path) -> None:
    store, layout = Store.open(str(tmp_path)), RunLayout("judged")
    judge = '{{model="judge", prompt="{{completion}}", concurrency={}, best={}}}'

    def recipe(concurrency: int, best: float) -> Recipe:
        return load_recipe("answers_only", [f"grade.reward.judge={judge.format(concurrency, best)}"])

    freeze_recipe(store, layout, recipe(2, 10.0))
    check_recipe(store, layout, recipe(4, 10.0))
    with pytest.raises(IdentityMismatchError, match=r"grade\.reward\.judge\.best"):
        check_recipe(store, layout, recipe(2, 5.0))


def test_a_reward_of_ones_own_is_a_term_and_a_judge_must_be_there(
    request_of_mine: Callable[..., RunRequest], tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text("def reward(completion, item, grade, tokens):\n    return 1.0\n")
    alone = "grade.reward.accuracy_weight=0"
    with opened(request_of_mine(f"grade.reward.function={tmp_path}/mine.py:reward", alone)):
        pass
    judge = '{base_url="http://127.0.0.1:1/v1", model="judge", prompt="{completion}"}'
    with (
        pytest.raises(BadInputError, match=r"grade\.reward\.judge: http://127\.0\.0\.1:1/v1 cannot be reached"),
        opened(request_of_mine(f"grade.reward.judge={judge}", alone)),
    ):
        pass
    assert not list((tmp_path / "store").rglob("*.json"))


def test_a_loss_and_a_reward_of_ones_own_hold_in_every_phase(
    request_of_mine: Callable[..., RunRequest], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after the recipe and their file were moved, but not after the file was changed."""
    code = "def loss(x):\n    return x.new, {}\ndef reward(completion, item, grade, tokens):\n    return 1.0\n"

    def request(folder: Path, later: str = "loss", more: str = "") -> RunRequest:
        monkeypatch.chdir(folder)
        (folder / "mine.py").write_text(code + more)
        phases = f"{{name='a', iterations=1}}, {{name='b', finetune={{loss={{function='mine.py:{later}'}}}}}}"
        functions = ("finetune.loss.function=mine.py:loss", "grade.reward.function=mine.py:reward")
        return request_of_mine(*functions, f"phases=[{phases}]")

    with opened(request(tmp_path)) as run:
        for part in run.recipe.parts:
            assert part.finetune.loss.function and part.finetune.loss.function.found() == tmp_path / "mine.py"
            assert part.grade.reward.function and part.grade.reward.function.found() == tmp_path / "mine.py"
        freeze_recipe(run.ctx.store, run.layout, run.recipe)
        frozen = validate(Recipe, read_recipe(run.ctx.store, run.layout), "frozen")
    (compared,) = candidates(frozen.in_phase(1), ["own"], [])
    assert compared.recipe.finetune.loss.function == run.recipe.parts[1].finetune.loss.function
    with (
        pytest.raises(IdentityMismatchError, match=r"phases\.1\.finetune\.loss\.function\.name: .*mine\.py:reward"),
        opened(request(tmp_path, "reward")),
    ):
        pass
    (tmp_path / "moved").mkdir()
    with opened(request(tmp_path / "moved")):
        pass
    with (
        pytest.raises(IdentityMismatchError, match=r"the code that it uses has changed: .*phases\.1\.grade\.reward"),
        opened(request(tmp_path / "moved", more="\n")),
    ):
        pass


def test_a_candidate_of_a_comparison_that_cannot_learn_is_refused() -> None:
    one = ["sample.sampling.samples_per_prompt=1", "grade.advantage={baseline='batch_mean', scale='batch_std'}"]
    with pytest.raises(BadInputError, match=r"samples_per_prompt: 1, .* 0 with grade\.advantage\.baseline"):
        candidates(load_recipe("answers_only", one), ["grpo"], [])


def test_an_evaluation_that_cuts_earlier_than_training_is_warned_of_when_the_run_begins(
    request_of_mine: Callable[..., RunRequest], capsys: pytest.CaptureFixture[str]
) -> None:
    with opened(request_of_mine("sample.sampling.max_tokens=100", "evaluate.sampled.max_tokens=99")):
        pass
    warnings = [line for line in capsys.readouterr().err.splitlines() if "warning" in line]
    assert warnings == [
        "warning: evaluate.sampled.max_tokens is 99, but completions are trained with up to 100 tokens: longer answers "
        "are measured as cut"
    ]


def test_checkpoints_that_only_texts_trained_are_measured_with_the_limits_of_the_final_evaluation() -> None:
    """A run without iterations samples by nothing else."""
    assert load_recipe("sky_t1").longest_sampling.max_tokens == 16384


def test_a_checkpoint_of_a_run_is_measured_with_the_limits_of_its_training(
    made: tuple[Store, RunLayout], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, layout = made
    key = Artifact.at(store, layout.iteration(2, "checkpoint")).ref.key
    for name in ("made", "made@2", key):
        assert trained_sampling(name, store) == read_run(store, "made").typed_recipe().sample.sampling
    assert trained_sampling("hub:a/b", store) is None
    (tmp_path / "named.toml").write_text("title='t'\niterations=1\n[model]\nsource='checkpoint'\nname='made@2'\n")
    monkeypatch.chdir(tmp_path)
    for name in ("recipe:named.toml", f"recipe:{tmp_path}/named.toml"):
        assert trained_sampling(name, store) == read_run(store, "made").typed_recipe().sample.sampling
    trained = SamplingConfig(max_tokens=512, stop=("END",), temperature=0.7)
    given = EvaluateConfig.model_validate(MeasureOptions(count=3).config())
    followed = evaluated_as_trained(given, trained)
    assert (followed.puzzles, followed.sampled.max_tokens, followed.sampled.stop) == (3, 512, ("END",))
    assert (followed.sampled.temperature, followed.sampled.samples_per_prompt) == (1.0, 4)
    short = EvaluateConfig.model_validate(MeasureOptions(max_tokens=16).config())
    assert evaluated_as_trained(short, trained).sampled.max_tokens == 16
    assert len(cut_below_training(short.sampled, trained, "sampled")) == 1
    assert evaluated_as_trained(given, None) == given


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("finetune.lr=1e-3", r"finetune\.lr: Extra inputs are not permitted"),
        ("finetune.learning_rate=0", r"finetune\.learning_rate: Input should be greater than 0 \(found 0\)"),
        ("grade.grader=lenient", r"grade\.grader: Input should be 'strict' or 'published'"),
        ("sample.puzzles_per_iteration=100000", r"sample\.puzzles_per_iteration is 100000, more than puzzles\.train"),
        ("puzzles={val=8, test=8}", r"evaluate\.puzzles is .* than puzzles\.val \(8\); final\.puzzles is .*test \(8\)"),
        ("sample.sampling.temperature=0.7", r"finetune\.loss\.temperature is 1\.0, but .* is 0\.7"),
        ("finetune.loss.temperature=0.7", r'is 0\.7, but .* is 1\.0: .*temperature_of = "loss" and .*"trainer"'),
        ("finetune.loss.temperature_of=loss", r"temperature_of 'loss' needs old_logprobs = 'trainer'"),
        ("sample.resample.grader=published", r"resample\.grader is 'published', but grade\.grader is 'strict'"),
        ("sample.resample.max_rounds=50", r"the stride of sample\.resample is 6528, more than puzzles\.train"),
        ("sample={resample={}, sampling={samples_per_prompt=1}}", r"resample needs groups that can differ"),
        ("finetune.trainable={parameters='attention', rank=4}", r"rank is set, but parameters is 'attention'"),
        (
            "value={}",
            r"grade\.advantage has baseline 'group_mean' .*, but the baseline is the critic: set baseline",
        ),
        ("value={pretrain={run='a', first=3, last=2}}", r"last is 2, before first, which is 3"),
        ("value={source='a@3', pretrain={run='a'}}", r"pretrain is set, but source is a@3"),
        ("value={reward_low=1}", r"reward_low is 1\.0, not below reward_high"),
        ("value={reward_low=-1}", r"belong to head = 'bounded', but head is 'linear'"),
        ("value={length_alpha=1, lambda_policy=0.9}", r"length_alpha replaces lambda_policy, which is 0\.9"),
        ("finetune.loss.positive_nll=0.1", r"needs to know the right completions: set pack\.mark_right = true"),
        ("model.source=cloud", "model"),
        ("iterations.first=1", "iterations is a value"),
        (
            "warm_start.steps=1000",
            r"warm_start\.steps x .*texts_per_step is 16000, more than puzzles\.train \(6000\)",
        ),
        ("puzzles.file=val.json", r"puzzles\.file fills the test split only.*evaluate --puzzles FILE"),
        ("puzzles.puzzle=5", r"puzzles\.puzzle: .*\(found 5\)"),
        ("puzzles.puzzle={environment='zebra', houses=-1}", r"^answers_only: puzzles\.puzzle\.houses: "),
        ("sample=5", r"sample: Input should be a valid dictionary.*\(found 5\)"),
        ("pack=null", r"pack: Input should be a valid dictionary.*\(found null\)"),
        ("puzzles=x", r"puzzles: Input should be a valid dictionary.*\(found \"x\"\)"),
        ("warm_start=5", r"warm_start: Input should be a valid dictionary.*\(found 5\)"),
        ("model=5", r"model: Input should be a valid dictionary"),
        ("nonsense", r"no key=value; expected .* finetune\.learning_rate=1e-5"),
    ],
)
def test_a_wrong_setting_is_named(override: str, message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        load_recipe("answers_only", [override])


def test_a_bounded_critic_reaches_the_rewards_of_cut_completions() -> None:
    critic = ["grade.advantage={baseline='none', scale='none'}", "value.head=bounded"]
    with pytest.raises(BadInputError, match=r"reward_low is 0, but a completion that is cut can have the reward -0\.5"):
        load_recipe("answers_only", critic)
    load_recipe("answers_only", [*critic, "value.reward_low=-0.5"])
    load_recipe("answers_only", [*critic, "grade.reward.truncated=zero"])


def test_answers_that_are_not_taken_cannot_promote() -> None:
    with pytest.raises(BadInputError, match=r"promote\.mode is greedy, but evaluate\.greedy is false"):
        load_recipe("dr_grpo", ["evaluate.greedy=false"])


def test_a_loss_may_have_a_temperature_of_its_own_where_the_recipe_says_so() -> None:
    own = ["finetune.loss.temperature_of=loss", "finetune.loss.old_logprobs=trainer"]
    recipe = load_recipe("answers_only", [*own, "sample.sampling.temperature=0.7"])
    assert (recipe.sample.sampling.temperature, recipe.finetune.loss.temperature) == (0.7, 1.0)
    open_rs = load_recipe("open_rs1")
    assert (open_rs.sample.sampling.temperature, open_rs.finetune.loss.temperature) == (0.7, 1.0)
    with pytest.raises(BadInputError, match=r"is 1\.0, but sample\.sampling\.temperature is 0\.7"):
        load_recipe("open_rs1", ["finetune.loss.temperature_of=sampler"])
    with pytest.raises(BadInputError, match="importance_correction compares with the sampler's log-probabilities"):
        load_recipe("open_rs1", ["finetune.loss.importance_correction=token_mask"])
    with pytest.raises(BadInputError, match="needs old_logprobs = 'trainer'"):
        load_recipe("open_rs1", ["finetune.loss.old_logprobs=sampler"])


def test_on_gpus_an_engine_may_assemble_long_groups_without_counting_as_hung() -> None:
    """While vLLM assembles a group of 50 x 8,192 tokens, nothing else of it moves for about 7.5 s."""
    assert load_profile("cuda").engine.stall_timeout_s >= 60.0


def test_null_switches_off_what_toml_cannot(tmp_path: Path) -> None:
    assert load_recipe("answers_only").finetune.optimizer.max_grad_norm == 1.0
    assert (
        load_recipe("answers_only", ["finetune.optimizer.max_grad_norm=null"]).finetune.optimizer.max_grad_norm is None
    )
    path = tmp_path / "own.toml"
    path.write_text('[engine]\nkv_cache_gib = "null"\n')
    assert load_profile(str(path)).engine.kv_cache_gib is None


def test_an_unknown_recipe_lists_the_known_ones() -> None:
    with pytest.raises(BadInputError, match=r"quickstart, .*smollm2"):
        load_recipe("quikstart")


@pytest.mark.parametrize(("content", "message"), [(b"iterations = ", "not TOML"), (b"\xff\xfe", "not TOML")])
def test_a_broken_file_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "broken.toml"
    path.write_bytes(content)
    with pytest.raises(BadInputError, match=message):
        load_recipe(str(path))


def test_the_seed_reaches_every_section_that_names_none() -> None:
    recipe = load_recipe("answers_only", ["seed=7", "pack.seed=1"])
    assert isinstance(recipe.model, ScratchModel)
    assert recipe.warm_start is not None
    seeds = (recipe.model.seed, recipe.puzzles.seed, recipe.warm_start.seed, recipe.sample.seed, recipe.pack.seed)
    assert seeds == (7, 7, 7, 7, 1)


def test_a_run_name_belongs_to_one_recipe(tmp_path: Path) -> None:
    store, layout = Store.open(str(tmp_path)), RunLayout("mine")
    freeze_recipe(store, layout, load_recipe("answers_only"))
    freeze_recipe(store, layout, load_recipe("answers_only"))
    frozen = store.read_bytes(layout.recipe)
    for refusing in (check_recipe, freeze_recipe):
        with pytest.raises(IdentityMismatchError, match=r"seed: 0 -> 5.*choose another --run name"):
            refusing(store, layout, load_recipe("answers_only", ["seed=5"]))
    assert store.read_bytes(layout.recipe) == frozen
    assert Recipe.model_validate(read_recipe(store, layout)) == load_recipe("answers_only")
    sums = store.read_bytes(layout.sums)
    assert read_sums(sums, "sums") == {"recipe.json": hashlib.sha256(frozen).hexdigest()}
    store.delete(layout.sums)  # a process was killed between the two files
    freeze_recipe(store, layout, load_recipe("answers_only"))
    assert store.read_bytes(layout.sums) == sums


def test_orders_and_filters_of_texts_by_what_puzzles_are_may_begin(request_of_mine: Callable[..., RunRequest]) -> None:
    order = "distil.sample.order={by='ascending', column='num_clues'}"
    where = "distil.sample.where=[{all=[{column='difficulty:rooms', at_least=2}]}]"
    own = "sample.where=[{all=[{column='accuracy:run', below=1.0}]}]"
    with opened(request_of_mine(order, where, "sample.order={by='pools', column='truncated:run'}", own)) as run:
        assert run.recipe.distil
        assert run.recipe.distil.sample.columns == ["num_clues", "difficulty:rooms"]


def test_a_run_that_stored_nothing_keeps_no_name(request_of_mine: Callable[..., RunRequest]) -> None:
    """The first attempt failed; the same name with what made it fail corrected is the same run, not another."""
    with opened(request_of_mine("seed=5")) as failed:
        store, layout = failed.ctx.store, failed.layout
        failed.address("puzzles/shared", Puzzles).attempt(Identity.of("prepare", 1, {})).write_bytes("x", b"")
        assert failed.at(0, "report", Report).find(Identity.of("evaluate", 1, {})) is None
    with opened(request_of_mine()) as run:
        assert store.list(layout.root) == []
        run.at(0, "report", Report).attempt(Identity.of("evaluate", 1, {})).write_bytes("x", b"")
    assert Recipe.model_validate(read_recipe(store, layout)) == load_recipe("answers_only")
    with pytest.raises(IdentityMismatchError, match="seed: 0 -> 5"), opened(request_of_mine("seed=5")):
        pass


def test_after_a_refresh_an_iteration_may_have_other_steps(request_of_mine: Callable[..., RunRequest]) -> None:
    """Another batch may have another number of steps, and so of learning rates, which are settings of its training."""
    with opened(request_of_mine()) as run:
        run.at(1, "checkpoint", Checkpoint).attempt(Identity.of("finetune", 1, {"learning_rates": [0.1]})).publish()
        run.refresh = record_request(run.ctx.store, run.layout, ["grade@1"], datetime.now(UTC), REFRESHABLE, last=1)
        other = Identity.of("finetune", 1, {"learning_rates": [0.1, 0.1]})
        assert run.at(1, "checkpoint", Checkpoint).find(other) is None


def trained_in_turn(first: str, second: str, optimizer: str = "kept") -> str:
    """The setting `phases` of two phases that train different parameters."""
    return (
        f"phases=[{{name='a', iterations=1, finetune={{trainable={{parameters='{first}'}}}}}}, "
        f"{{name='b', optimizer='{optimizer}', finetune={{trainable={{parameters='{second}'}}}}}}]"
    )


@pytest.mark.parametrize(
    ("first", "second", "optimizer"),
    [
        ("all", "attention", "kept"),
        ("all", "top_layers", "kept"),
        ("attention", "all", "fresh"),
        ("all", "lora", "fresh"),
        ("lora", "all", "fresh"),
        ("lora", "lora", "kept"),
    ],
)
def test_phases_may_train_other_parameters(first: str, second: str, optimizer: str) -> None:
    check_sound(load_recipe("answers_only", [trained_in_turn(first, second, optimizer)]))


@pytest.mark.parametrize(
    ("setting", "value"),
    [("schedule", "'cosine'"), ("schedule_iterations", "700"), ("warmup_iterations", "10"), ("frozen_iterations", "5")],
)
def test_a_later_phase_sets_no_schedule_for_itself(setting: str, value: str) -> None:
    """Schedules count from the run's first iteration, so that this one would have ended when the phase begins."""
    whole = ["finetune.schedule='linear'", "finetune.schedule_iterations=40", "finetune.warmup_iterations=2"]
    phases = "phases=[{{name='a', iterations=30}}, {{name='b', finetune={{{}}}}}]"
    check_sound(load_recipe("answers_only", [*whole, phases.format("learning_rate=1e-4, schedule='constant'")]))
    with pytest.raises(BadInputError, match=rf"phases\.1\.finetune\.{setting}: .*count from the run's first iteration"):
        check_sound(load_recipe("answers_only", [*whole, phases.format(f"{setting}={value}")]))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["sample.sampling.top_p=0.9"], r"sampling\.top_p: 0\.9, .* expected 1\.0; or set .*old_logprobs to trainer"),
        (["sample.sampling.repetition_penalty=1.3"], r"sampling\.repetition_penalty: 1\.3, so the sampler's"),
        (["grade.advantage.scale=batch_std", "sample.resample.max_rounds=1"], r"batch_std, which includes the groups"),
        (["grade.advantage.baseline=batch_mean", "sample.resample.max_rounds=1"], r"batch_mean, which includes the"),
        (
            [
                "value={normalise='batch'}",
                "grade.advantage={baseline='none', scale='none'}",
                "sample.resample.max_rounds=1",
            ],
            r"value\.normalise: batch, which includes the",
        ),
        (
            ["distil.sample.order={by='pools'}"],
            r"distil\.sample: its order or where reads 'accuracy:run', but pass rates are measured after",
        ),
        (
            ["rate={models=[{name='big'}]}", "distil.sample.where=[{all=[{column='exact:big', above=0.0}]}]"],
            r"distil\.sample: its order or where reads 'exact:big'",
        ),
        (
            ["sample.order={by='pools', column='num_clues'}"],
            r"sample\.order\.column: 'num_clues', which is not a share",
        ),
        (
            ["rate={models=[{name='big'}]}", "sample.order={by='pools', column='tokens:big'}"],
            r"'tokens:big', which is not a share .* expected accuracy:NAME, exact:NAME, truncated:NAME",
        ),
        (
            ["phases=[{name='a', sample={order={by='pools', column='num_clues'}}}]"],
            r"'num_clues', which is not a share",
        ),
        (
            [trained_in_turn("attention", "all")],
            r"phases\.1\.finetune\.trainable: parameters that the optimizer state of 'a' lacks; .* 'fresh'",
        ),
        ([trained_in_turn("all", "lora")], r"the optimizer state of 'a' lacks"),
        (
            ["sample.where=[{all=[{column='accuracy:run', below=1.0}]}]"],
            r"sample\.where: accuracy:run, which changes while .* or sample\.order\.by = 'pools'",
        ),
        (
            ["phases=[{name='a', sample={where=[{all=[{column='tokens:run', below=9.0}]}]}}]"],
            r"sample\.where: tokens:run, which changes",
        ),
        (
            ["sample.sampling.temperature=0.005", "finetune.loss.temperature=0.005"],
            r"sample\.sampling\.temperature: 0\.005; expected 0, or from 0\.01 to 2",
        ),
        (
            ["final.strategies=[{strategy='sift', temperature=2.5}]"],
            r"final\.strategies\.0\.temperature: 2\.5; expected 0, or from 0\.01 to 2",
        ),
        ([trained_in_turn("attention", "top_layers")], r"the optimizer state of 'a' lacks"),
        (
            [
                "phases=[{name='a', iterations=1, finetune={trainable={parameters='lora', rank=4}}}, "
                "{name='b', optimizer='fresh', finetune={trainable={parameters='lora', rank=8}}}]"
            ],
            r"finetune\.trainable: rank = 8, .* expected the adapter's rank = 4",
        ),
        (
            ["distil.sample.order={by='pools', column='difficulty:rooms'}"],
            r"distil\.sample\.order\.column: 'difficulty:rooms', which is not a share",
        ),
    ],
)
def test_what_no_run_should_begin_with_is_refused_and_what_has_begun_goes_on(
    request_of_mine: Callable[..., RunRequest], overrides: list[str], message: str
) -> None:
    request, layout = request_of_mine(*overrides), RunLayout("mine")
    with pytest.raises(BadInputError, match=message) as raised, opened(request):
        pass
    assert "\n" not in str(raised.value)
    store = Store.open(request.store)
    assert store.list(layout.root) == []
    freeze_recipe(store, layout, load_recipe("answers_only", overrides))  # as a program that refused less
    with opened(request) as run:
        assert run.layout == layout


def test_a_run_goes_on_from_the_checkpoint_that_it_began_with(tmp_path: Path) -> None:
    store, layout = Store.open(str(tmp_path)), RunLayout("mine")
    promoted = RunLayout(make_run(store).run).promoted
    rated = "rate={models=[{name='big', source={source='checkpoint', name='made'}}, {name='start'}]}"
    recipe = load_recipe("answers_only", ["model={source='checkpoint', name='made'}", "warm_start=null", rated])

    def opened_with() -> Recipe:
        return as_begun(recipe, frozen_recipe(store, layout), store)

    begun = opened_with()
    assert begun.model == StoredModel(name="runs/made/iterations/0004/checkpoint")
    assert begun.rate is not None and [model.source for model in begun.rate.models] == [begun.model, None]
    freeze_recipe(store, layout, begun)
    store.delete(promoted)  # what is promoted now has no meaning for the run
    assert opened_with() == begun
    check_recipe(store, layout, opened_with())


def test_a_start_that_asks_to_redo_stages_takes_the_name_at_once(request_of_mine: Callable[..., RunRequest]) -> None:
    """Its request is stored, and must not stand beside another recipe than its own."""
    with opened(request_of_mine()) as first:
        redo = request_of_mine("seed=5").model_copy(update={"refresh": ["evaluate"]})
        with opened(redo) as second:
            second.at(0, "report", Report).attempt(Identity.of("evaluate", 1, {})).write_bytes("x", b"")
        attempt = first.at(0, "report", Report).attempt(Identity.of("evaluate", 2, {}))
        with pytest.raises(IdentityMismatchError, match="seed"):
            attempt.write_bytes("x", b"")


def test_a_warm_start_which_runs_share_is_not_made_again(request_of_mine: Callable[..., RunRequest]) -> None:
    request = request_of_mine()
    freeze_recipe(Store.open(request.store), RunLayout(request.run), load_recipe("answers_only"))
    refreshing = request.model_copy(update={"refresh": ["sft"]})
    message = r"^refresh: sft, but .* which runs share; .*; change warm_start\.seed"
    with pytest.raises(BadInputError, match=message), opened(refreshing):
        pass


def test_of_two_recipes_under_one_name_the_one_that_stores_first_keeps_it(
    request_of_mine: Callable[..., RunRequest], tmp_path: Path
) -> None:
    """Both begin with what runs share, so the name is free; no artifact comes under another recipe than its own."""
    identity = Identity.of("evaluate", 1, {})
    with opened(request_of_mine()) as first, opened(request_of_mine("seed=5")) as second:
        store, layout = first.ctx.store, first.layout
        with first.address(layout.sft(1, "checkpoint"), Checkpoint).attempt(identity).folder(tmp_path):
            late = second.at(0, "report", Report).attempt(identity)
            with pytest.raises(IdentityMismatchError, match="seed: 0 -> 5"):
                late.write_bytes("x", b"")
            late = second.address(layout.evaluation("before"), Report).attempt(identity)
            with pytest.raises(IdentityMismatchError, match="seed: 0 -> 5"), late.folder(tmp_path):
                pass
        assert store.list(layout.root) == [layout.sums, layout.recipe]
    assert Recipe.model_validate(read_recipe(store, layout)) == load_recipe("answers_only")


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("flows.train", {"torch", "torchtune", "transformers", "vllm", "prefect.server.database"}),
        ("stages.environments.generate", {"polars", "pandera", "pandas", "numpy"}),  # a process of the pool
    ],
)
def test_starting_a_flow_or_a_process_of_its_pool_loads_nothing_heavy(module: str, heavy: set[str]) -> None:
    code = f"import sys, {module}; sys.exit(', '.join({heavy} & sys.modules.keys()) or None)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_recipe_that_iterates_ahead_corrects_for_older_weights() -> None:
    plain = load_recipe("answers_only")
    assert (plain.iterate_ahead, plain.finetune.loss.importance_correction) == (0, "none")
    loss = load_recipe("answers_only", ["iterate_ahead=1"]).finetune.loss
    assert (loss.old_logprobs, loss.importance_correction) == ("trainer", "token_truncate")
    own = load_recipe("answers_only", ["iterate_ahead=1", "finetune.loss.importance_correction=sequence_mask"])
    assert (own.finetune.loss.old_logprobs, own.finetune.loss.importance_correction) == ("trainer", "sequence_mask")
    ratio = load_recipe("answers_only", ["iterate_ahead=1", "finetune.loss.old_logprobs=sampler"]).finetune.loss
    assert (ratio.old_logprobs, ratio.importance_correction) == ("sampler", "none")
    masked = load_recipe("sao", ["iterate_ahead=1"]).finetune.loss
    assert (masked.kind, masked.old_logprobs, masked.importance_correction) == ("masked", "sampler", "none")


def test_an_own_loss_that_iterates_ahead_corrects_itself(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def loss(x):\n    return -x.new.exp() * x.advantages / x.sampler.exp()\n")
    function = f"finetune.loss.function={tmp_path / 'mine.py'}:loss"
    loss = load_recipe("answers_only", ["iterate_ahead=1", function]).finetune.loss
    assert loss.function and (loss.old_logprobs, loss.importance_correction) == ("trainer", "none")


@pytest.mark.parametrize(
    ("recipe", "override", "message"),
    [
        ("answers_only", "finetune.loss.importance_correction=none", "does not correct for them"),
        ("open_rs1", "iterate_ahead=1", "does not correct for them: drop .* temperature_of = 'loss'"),
        ("deepscaler", "iterate_ahead=1", "before it is known which of `phases` comes next: set it to 0"),
        ("on_policy_distillation", "iterate_ahead=1", "older weights than those that teach compares with"),
        ("answers_only", "sample.order={by='pools'}", "before this iteration's rates are known"),
        ("answers_only", "iterate_ahead=2", r"less than or equal to 1 \(found 2\)"),
    ],
)
def test_what_contradicts_iterating_ahead_is_refused(recipe: str, override: str, message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        load_recipe(recipe, ["iterate_ahead=1", override])
