"""Comparisons: what a candidate brings, where it goes, what it starts from, and what is shown of it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from artifacts.address import ArtifactAddress
from artifacts.errors import BadInputError
from artifacts.identity import Identity
from artifacts.layout import MANIFEST_NAME, RunLayout, state_key
from artifacts.reading import Artifact
from artifacts.refs import Batch, Checkpoint, Grades, OptimizerState, Ref, Transition
from artifacts.store.store import Store
from flows.compare.candidates import OWN, ComparedRecipe, candidates, page_folder, starting_weights
from flows.compare.comparison import check_rows, comparison_figures, reference_of
from flows.compare.comparison_report import setting_rows, text_rows, write_report
from flows.config.recipe import Recipe
from flows.config.recipes import load_recipe, validate
from flows.lookup.history import IterationRecord, RunRecord, read_run
from flows.report.figures import compared
from flows.report.html.run_report import report_files
from flows.report.run_view import RunView
from flows.upkeep.removal import remove
from flows.upkeep.retention import Retention, plan
from stages.grade import grade
from stages.pack import pack
from stages.training.saved_state import STATE_FOLLOWS
from tests.support.contexts import make_context
from tests.support.made_run import copied_store

QUICKSTART, SMOLLM2 = load_recipe("answers_only"), load_recipe("smollm2")
LAST_TWO = Retention(parts=("optimizer_state",), keep_last=2, comparisons=True)


def candidate(own: Recipe, name: str, *overrides: str) -> ComparedRecipe:
    (chosen,) = candidates(own, [name], overrides)
    return chosen


@pytest.mark.parametrize("own", [QUICKSTART, SMOLLM2], ids=["answers_only", "smollm2"])
@pytest.mark.parametrize("name", ["grpo", "dapo", "dr_grpo", "openpipe_14b", "open_rs1", "deepscaler", "trl_default"])
def test_a_recipe_for_another_scale_brings_its_algorithm_only(own: Recipe, name: str) -> None:
    chosen = candidate(own, name)
    published = load_recipe(name)
    assert chosen.taken == "algorithm"
    assert chosen.recipe.grade.advantage == published.grade.advantage
    assert chosen.recipe.finetune.loss.kind == published.finetune.loss.kind
    assert chosen.recipe.grade.reward == own.grade.reward
    assert chosen.recipe.finetune.optimizer == own.finetune.optimizer
    kept = ("learning_rate", "schedule", "epochs", "carry_state", "trainable")
    assert [getattr(chosen.recipe.finetune, key) for key in kept] == [getattr(own.finetune, key) for key in kept]
    assert chosen.recipe.pack.model_copy(update={"uniform_groups": "dropped"}) == own.pack
    assert chosen.recipe.sample == own.sample
    longest = own.sample.sampling.max_tokens
    assert chosen.recipe.finetune.loss.constant_tokens == (longest if name == "dr_grpo" else None)


def test_a_candidate_trains_on_the_completions_of_its_own_recipe(tmp_path: Path) -> None:
    """Cross-entropy on all completions would imitate the wrong ones, and DAPO on right ones only has no contrast."""
    imitates = ["pack.completions=right", "pack.uniform_groups=kept", "finetune.loss.kind=cross_entropy"]
    file = tmp_path / "imitates.toml"
    file.write_text(
        'title = "x"\niterations = 1\nmodel = { source = "scratch", hidden = 64 }\n'
        'pack = { completions = "right", uniform_groups = "kept" }\nfinetune.loss.kind = "cross_entropy"\n'
    )
    chosen = candidate(QUICKSTART, str(file))
    assert (chosen.taken, chosen.recipe.pack.completions) == ("algorithm", "right")
    assert chosen.laid_over(QUICKSTART)["pack.completions"] == "right"
    assert candidate(load_recipe("answers_only", imitates), "dapo").recipe.pack.completions == "all"


def test_rows_that_a_completion_of_the_run_exceeds_are_refused_before_anything_is_trained(
    made: tuple[Store, RunLayout],
) -> None:
    store, layout = made
    own, rollouts = read_run(store, layout.run).typed_recipe(), Artifact.at(store, layout.iteration(1, "rollouts"))
    check_rows([candidate(own, OWN)], rollouts)
    with pytest.raises(BadInputError, match=r"^own: pack\.row_tokens is 17, but a completion .* has \d+ tokens"):
        check_rows([candidate(own, OWN), candidate(own, OWN, "pack.row_tokens=17")], rollouts)
    check_rows([candidate(own, OWN, "pack.row_tokens=17", "pack.overlong=drop")], rollouts)


def test_groups_of_equal_accuracy_are_left_out_where_the_candidate_alone_resamples() -> None:
    assert candidate(QUICKSTART, "dapo").mixed_only
    assert not candidate(QUICKSTART, "grpo").mixed_only
    assert not candidate(QUICKSTART, OWN).mixed_only
    resampling = load_recipe("answers_only", ["sample.resample.max_rounds=2"])
    assert not candidate(resampling, "dapo").mixed_only, "the rollouts say which groups were kept"


def test_a_variation_of_the_runs_recipe_is_taken_as_it_stands(tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    text = Path("deployments/recipes/answers_only.toml").read_text()
    mine.write_text(f"seed = 7\n{text}".replace("learning_rate = 1e-3 ", "learning_rate = 3e-3 "))
    chosen = candidate(QUICKSTART, str(mine))
    assert (chosen.taken, chosen.recipe.finetune.learning_rate) == ("sections", 3e-3)
    assert chosen.laid_over(QUICKSTART) == {"pack.seed": 7, "finetune.learning_rate": 3e-3}
    longer = tmp_path / "longer.toml"
    longer.write_text(mine.read_text().replace("max_tokens = 12\n\n[grade", "max_tokens = 24\n\n[grade"))
    assert candidate(QUICKSTART, str(longer)).taken == "algorithm"


def test_phases_of_which_each_would_bring_other_settings_are_refused(tmp_path: Path) -> None:
    """Only one of them can be compared, and the settings above them are those of no iteration."""
    mine = tmp_path / "mine.toml"
    text = Path("deployments/recipes/answers_only.toml").read_text()
    one, other = '[[phases]]\nname = "a"\niterations = 2\n', '[[phases]]\nname = "b"\n'
    mine.write_text(f"{text}\n{one}{other}finetune.loss.entropy_coef = 0.1\n")
    with pytest.raises(BadInputError, match=r"phases that differ in what a comparison takes.*of one phase"):
        candidate(QUICKSTART, str(mine))
    mine.write_text(f"{text}\n{other}finetune.loss.clip_high = 0.3\n")
    assert candidate(QUICKSTART, str(mine)).recipe.finetune.loss.clip_high == 0.3, "not that above the phase"


def test_a_kl_term_has_the_reference_that_the_run_had(made: tuple[Store, RunLayout]) -> None:
    store, layout = made
    record = read_run(store, layout.run)
    first, used = (Ref[Checkpoint]("Checkpoint", key, "0" * 64) for key in ("first", "used"))

    def of(kind: str, own: str, *, trained: bool = True) -> Ref[Checkpoint]:
        recipe = json.loads(json.dumps(record.recipe))
        recipe["finetune"]["reference"] = own
        iterations = list(record.iterations)
        for place, item in enumerate(iterations):
            made = dict(item.manifests)
            if item.number == 2 and (finetune := made.pop("finetune", None)) and trained:
                inputs = {**finetune.inputs, "reference": used.as_json()}
                made["finetune"] = finetune.model_copy(update={"inputs": inputs})
            iterations[place] = replace(item, manifests=made)
        changed = replace(record, recipe=recipe, iterations=iterations)
        return reference_of(changed, 2, load_recipe("answers_only", [f"finetune.reference={kind}"]), first)

    assert of("periodic", "periodic") == of("base", "base") == used
    assert of("base", "ema") == of("base", "base", trained=False) == first
    with pytest.raises(BadInputError, match=r"no finetune of iteration 2, whose reference is ema"):
        of("ema", "ema", trained=False)


def test_overrides_come_last() -> None:
    chosen = candidate(QUICKSTART, "dr_grpo", "finetune.learning_rate=2e-4", "finetune.loss.constant_tokens=9")
    assert (chosen.recipe.finetune.learning_rate, chosen.recipe.finetune.loss.constant_tokens) == (2e-4, 9)
    assert chosen.laid_over(QUICKSTART)["finetune.learning_rate"] == 2e-4


def test_an_override_names_a_reward_below_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text("def reward(completion, item, grade, tokens):\n    return grade.accuracy\n")
    monkeypatch.chdir(tmp_path)
    function = candidate(QUICKSTART, OWN, "grade.reward.function=mine.py:reward").recipe.grade.reward.function
    assert function is not None and function.found() == tmp_path / "mine.py"
    with pytest.raises(BadInputError, match=r"other\.py: no such file"):
        candidate(QUICKSTART, OWN, "grade.reward.function=other.py:reward")


def test_a_candidate_with_a_teacher_or_a_critic_is_refused() -> None:
    advantage = "grade.advantage={baseline = 'none', scale = 'none'}"
    for setting, found in (("teach.teacher=hub:a/b", "on-policy distillation"), ("value.head=linear", "a critic")):
        with pytest.raises(BadInputError, match=f"^own: {found}; .*train .* as .*run.*, and `diff` the runs"):
            candidate(load_recipe("answers_only", [setting, advantage]), OWN)


def test_an_overlong_buffer_as_long_as_a_completion_is_refused_unless_the_run_has_it() -> None:
    buffer = ["grade.reward.truncated=soft_overlong", "grade.reward.overlong_buffer_tokens=12"]
    with pytest.raises(BadInputError, match="overlong_buffer_tokens is 12, but the run's completions have at most 12"):
        candidate(QUICKSTART, "dapo", *buffer)
    assert candidate(QUICKSTART, "dapo", buffer[0], "grade.reward.overlong_buffer_tokens=11")
    assert candidate(load_recipe("answers_only", buffer), "dapo").recipe.grade.reward.overlong_buffer_tokens == 12


def test_an_algorithm_that_misreads_the_runs_rollouts_is_refused() -> None:
    nucleus = load_recipe("dr_grpo", ["sample.sampling.top_p=0.9"])
    with pytest.raises(BadInputError, match=r"sample\.sampling\.top_p: 0\.9, so the sampler's probabilities are not"):
        candidate(nucleus, "openpipe_14b")
    with pytest.raises(BadInputError, match=r"grade\.advantage\.scale: batch_std, which includes the groups"):
        candidate(load_recipe("dapo"), OWN, "grade.advantage.scale=batch_std")


def test_a_kl_term_comes_with_its_own_schedule() -> None:
    scheduled = load_recipe("still3_zero")
    assert scheduled.finetune.kl_schedule is not None
    assert candidate(scheduled, "grpo").recipe.finetune.kl_schedule is None
    assert candidate(scheduled, "dapo").recipe.finetune.loss.kl_coef == 0
    assert candidate(QUICKSTART, "still3_zero").recipe.finetune.kl_schedule == scheduled.finetune.kl_schedule


@pytest.fixture
def copied(made: tuple[Store, RunLayout], tmp_path: Path) -> tuple[Store, RunLayout, Recipe, Artifact]:
    """The made run, to be added to, with its recipe and the rollouts of its second iteration."""
    store, layout = copied_store(made[0], tmp_path / "store"), made[1]
    own = validate(Recipe, read_run(store, layout.run).recipe, layout.run)
    return store, layout, own, Artifact.at(store, layout.iteration(2, "rollouts"))


def test_every_set_of_settings_has_an_address(
    copied: tuple[Store, RunLayout, Recipe, Artifact], tmp_path: Path
) -> None:
    """Grading again with other rewards, and files of one name, go beside what stands; the same again is found."""
    store, layout, own, rollouts = copied
    files = [tmp_path / folder / "x.toml" for folder in ("a", "b")]
    for epochs, file in enumerate(files, start=1):
        file.parent.mkdir()
        text = f'title = "x"\niterations = 1\n[model]\nsource = "scratch"\n[finetune]\nepochs = {epochs}\n'
        file.write_text(text)
    tried = [
        candidate(own, OWN),
        candidate(own, OWN, "grade.reward.exact_weight=1"),
        candidate(own, OWN, "grade.reward.exact_weight=2"),
        *candidates(own, [str(file) for file in files], []),
        candidate(own, "dapo"),
    ]
    folders = [item.folder(rollouts.ref) for item in tried]
    assert len(set(folders)) == len(tried)
    assert [name.rpartition("-")[0] for name in folders] == [OWN, OWN, OWN, "x", "x", "dapo"]
    assert page_folder(tried[:1], rollouts.ref) != page_folder(tried[1:2], rollouts.ref)
    puzzles = Ref[Any](**rollouts.manifest.inputs["puzzles"])
    with make_context(store, tmp_path) as ctx:
        for again in (False, True):
            for item in tried:
                at = {part: layout.comparison(2, item.folder(rollouts.ref), part) for part in ("grades", "batch")}
                grades = grade(
                    ctx, item.recipe.grade, rollouts.ref, puzzles, out=ArtifactAddress(store, at["grades"], Grades)
                )
                out = ArtifactAddress(store, at["batch"], Batch)
                pack(ctx, item.recipe.pack, rollouts.ref, grades, out=out, mixed_only=item.mixed_only)
                assert grades.reused == again
    listed = {removal.key for removal in plan(store, LAST_TWO)}
    made = {layout.comparison(2, name, part) for name in folders for part in ("grades", "batch")}
    assert made <= listed, "prune finds them under whatever name"
    remove(store, plan(store, LAST_TWO), LAST_TWO)
    assert not [key for key in store.list(f"{layout.root}/comparisons") if not key.endswith(MANIFEST_NAME)]
    assert "report.html" in report_files(RunView(read_run(store, layout.run), store))


def test_other_rollouts_have_another_address() -> None:
    chosen = candidate(QUICKSTART, "dapo")
    first, other = (Ref[Any]("Rollouts", "rollouts", digest) for digest in ("a", "b"))
    assert chosen.folder(first) != chosen.folder(other)


@pytest.mark.parametrize("stage", ["grade", "pack", "finetune"])
def test_another_revision_of_a_stage_has_another_address(stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an upgrade, the same command would find artifacts of another identity, and be refused for ever."""
    chosen, rollouts = candidate(QUICKSTART, "dapo"), Ref[Any]("Rollouts", "rollouts", "a")
    before = chosen.folder(rollouts)
    monkeypatch.setattr(f"stages.{stage}.REVISION", 99)
    assert chosen.folder(rollouts) != before


def test_a_slug_is_part_of_a_key(tmp_path: Path) -> None:
    file = tmp_path / "my recipe?.toml"
    file.write_text(Path("deployments/recipes/answers_only.toml").read_text())
    chosen = candidate(QUICKSTART, str(file))
    assert chosen.folder(Ref[Any]("Rollouts", "rollouts", "a")).startswith("my-recipe--")


LORA = ["finetune.trainable.parameters=lora"]


@pytest.mark.parametrize(
    ("own", "changes", "carried"),
    [
        ([], [], True),
        ([], ["finetune.learning_rate=1e-4"], True),
        ([], ["finetune.carry_state=false"], False),
        ([], LORA, False),
        (LORA, [], True),
        (LORA, ["finetune.trainable.rank=8"], False),
        (LORA, ["finetune.trainable.parameters=all"], False),
    ],
)
def test_the_state_is_carried_on_where_it_can_be(
    tmp_path: Path, own: list[str], changes: list[str], carried: bool
) -> None:
    store, recipe = Store.open(str(tmp_path)), load_recipe("answers_only", own)
    policy, state = trained(store, MINE.iteration(1, "checkpoint"))
    record = RunRecord(MINE, recipe.model_dump(mode="json"), [], {}, None)
    start = starting_weights(candidate(recipe, OWN, *changes).recipe, record, 2, policy, policy, store)
    assert (start.checkpoint, start.reference) == (policy, policy)
    assert start.state == (state if carried else None)


MINE = RunLayout("mine")
PHASES = "phases=[{name='a', iterations=1}, {name='b', optimizer='%s'}]"


def trained(store: Store, key: str, **inputs: Ref[Any]) -> tuple[Ref[Checkpoint], Ref[OptimizerState]]:
    """A checkpoint, and the optimizer state beside it."""
    identity, state_at = Identity.of("finetune", 1, {"key": key}, **inputs), state_key(key)
    assert state_at is not None
    attempt = ArtifactAddress(store, key, Checkpoint).attempt(identity)
    attempt.write_bytes("weights", key.encode())
    checkpoint = attempt.publish({STATE_FOLLOWS: True}, **inputs)
    attempt = ArtifactAddress(store, state_at, OptimizerState).attempt(identity)
    attempt.write_bytes("state", key.encode())
    return checkpoint, attempt.publish(checkpoint=checkpoint)


@pytest.mark.parametrize("finished", [False, True])
@pytest.mark.parametrize(
    ("begins", "number", "phases", "carried"),
    [
        (RunLayout("other").iteration(3, "checkpoint"), 1, [], False),  # the first weights, with a state of their run
        (RunLayout("other").iteration(3, "checkpoint"), 2, [], False),  # after a rollback to them
        (MINE.iteration(1, "checkpoint"), 2, [], True),
        (MINE.iteration(1, "checkpoint"), 2, [PHASES % "kept"], True),
        (MINE.iteration(1, "checkpoint"), 2, [PHASES % "fresh"], False),
        (MINE.iteration(1, "checkpoint"), 3, [PHASES % "kept"], True),  # after a rollback into the phase before
        (MINE.iteration(1, "checkpoint"), 3, [PHASES % "fresh"], False),
        (MINE.iteration(2, "checkpoint"), 3, [PHASES % "fresh"], True),
    ],
)
def test_a_candidate_starts_from_the_state_of_the_runs_own_update(
    tmp_path: Path, begins: str, number: int, phases: list[str], carried: bool, finished: bool
) -> None:
    store, recipe = Store.open(str(tmp_path)), load_recipe("answers_only", phases)
    policy, state = trained(store, begins)
    before = ArtifactAddress(store, MINE.iteration(1, "transition"), Transition)
    before.attempt(Identity.of("advance", 1, {})).publish({"phase": 1, "since": 1, "ended": True, "reason": ""})
    ended = {"advance": Artifact.at(store, before.key).manifest} if phases else {}
    inputs = {"weights": policy} | ({"optimizer_state": state} if carried else {})
    own, _ = trained(store, MINE.iteration(number, "checkpoint"), **inputs)
    done = {"finetune": Artifact.open(store, own).manifest} if finished else {}
    iterations = [IterationRecord(min(1, number - 1), ended), IterationRecord(number, done)]
    record = RunRecord(MINE, recipe.model_dump(mode="json"), iterations, {}, None)
    start = starting_weights(candidate(record.recipe_at(number), OWN).recipe, record, number, policy, policy, store)
    assert start.state == (state if carried else None)


def test_a_page_shows_loss_kl_and_intervals_where_there_are_any(
    copied: tuple[Store, RunLayout, Recipe, Artifact],
) -> None:
    store, layout, own, _ = copied
    parts = ("grades", "batch", "checkpoint", "report")
    grades, batch, checkpoint, report = (Artifact.at(store, layout.iteration(2, part)).manifest for part in parts)
    (step,) = checkpoint.facts["steps"]
    measured = [{**step, "kl": kl, "kl_penalty": None, "sampler_ess": 0.75, "loss": 0.25} for kl in (0.01, 0.03)]
    measured.append({**step, "skipped": True, "kl": None, "loss": None, "grad_norm": None, "ratio_max": None})
    with_kl = checkpoint.model_copy(update={"facts": {"steps": measured}})
    sampled_only = report.model_copy(update={"facts": {**report.facts, "greedy": None}})
    rows = {
        OWN: {"taken": "sections", "laid_over": {}, **comparison_figures(grades, batch, checkpoint, sampled_only)},
        "grpo": {
            "taken": "algorithm",
            "laid_over": candidate(own, "grpo").laid_over(own),
            **comparison_figures(grades, batch, with_kl, report),
        },
    }
    cells = {name: values for name, *values in text_rows(rows)}
    assert cells["taken"] == ["sections", "algorithm"]
    assert cells["kl"] == ["", "0.0200"]
    assert (cells["updates"], cells["skipped"]) == (["1", "3"], ["", "1"])
    assert cells["ratio_max"] == ["1.10", "1.10"]
    assert cells["sampler_ess"] == ["", "0.750"]
    assert cells["loss"] == ["0.1000", "0.2500"]
    assert "kl_penalty" not in cells, "nobody's KL is in the reward"
    accuracy = report.facts["sampled"]["accuracy"]
    interval = f"{accuracy['mean']:.1%} ({accuracy['low'] * 100:.1f} to {accuracy['high'] * 100:.1f})"
    assert cells["held_out_sampled"] == [interval, interval]
    assert cells["held_out_greedy"][0] == "" != cells["held_out_greedy"][1]
    assert ["finetune.loss.kl_coef", "", "0.04"] in setting_rows(rows)
    address = write_report(store, layout.comparison(2, "page-of-a-test", "page"), "made, iteration 2", rows)
    folder = Path(address.removeprefix("file://")).parent
    page = (folder / "report.html").read_text()
    assert page.count("data:image/png") == 4
    assert "<td>kl</td><td></td><td>0.0200</td>" in page and interval in page
    assert "<td>finetune.loss.kl_coef</td><td></td><td>0.04</td>" in page
    assert json.loads((folder / "report.json").read_text())["grpo"]["held_out_sampled_low"] == accuracy["low"]
    unmeasured = {OWN: {**rows[OWN], "taken": None, **{item.compared_as: None for item in compared()}}}
    address = write_report(store, layout.comparison(2, "nothing", "page"), "made, iteration 2", unmeasured)
    assert "data:image/png" not in Path(address.removeprefix("file://")).read_text()
