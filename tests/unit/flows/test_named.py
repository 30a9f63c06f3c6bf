"""What the recipe of a new run names is looked up before the run begins."""

from pathlib import Path

import pytest

from artifacts.address import ArtifactAddress
from artifacts.errors import BadInputError
from artifacts.identity import Identity
from artifacts.layout import RunLayout, manifest_key
from artifacts.manifest import Pruned
from artifacts.reading import Artifact
from artifacts.refs import Critic
from artifacts.store.store import Store
from flows.checks.named import check_named
from flows.config.recipes import load_recipe
from stages.training.critic import ValueConfig
from tests.support.installed import TINY
from tests.support.made_run import make_run
from tests.support.trees import save_model

JUDGE = RunLayout("judge")
VALUE = ["grade.advantage={baseline = 'none', scale = 'none'}"]
PRETRAIN = 'value.pretrain={run = "made", first = 1, last = %d}'
RATED = 'rate={models = [{name = "big", source = {source = "checkpoint", name = "%s"}}]}'


@pytest.mark.parametrize(
    "setting",
    ["teach.teacher=made@2", "distil.teacher=made@2", PRETRAIN % 3, RATED % "made@3", "distil.teacher=student",
     "teach.hint=derivation", "distil.teacher=hub:somebody/model"],
)  # fmt: skip
def test_what_exists_is_taken(setting: str, made: tuple[Store, RunLayout]) -> None:
    check_named(load_recipe(str(TINY), [*VALUE, setting]), made[0])


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        ("teach.teacher=other@2", r"teach.teacher: run 'other': not in file:.*; expected made; .*"),
        ("teach.teacher=made", r"teach.teacher: 'made', whose promoted checkpoint may change; .* write runs/made/.*"),
        ("distil.teacher=made@77", r"distil.teacher: made@77: no measured iteration 77; .*"),
        ("distil.teacher=answers/deepseek", r"distil.teacher: file:.*/answers/deepseek: no manifest; .*"),
        ("value.source=made@2", r"value.source: made@2: no critic in file:.*"),
        (PRETRAIN % 77, r"value.pretrain: made@[0-9]+: no rollouts in .*; expected those of iterations 1 to 77; .*"),
        (RATED % "other@1", r"rate.models: big: run 'other': not in file:.*; expected made; .*"),
    ],
)
def test_what_is_missing_is_refused_in_one_line(setting: str, problem: str, made: tuple[Store, RunLayout]) -> None:
    recipe = load_recipe(str(TINY), [*VALUE, setting])
    with pytest.raises(BadInputError, match=f"^{problem}$"):
        check_named(recipe, made[0])


def test_a_folder_that_cannot_be_copied_is_refused(tmp_path: Path, made: tuple[Store, RunLayout]) -> None:
    save_model(tmp_path / "model", "Qwen2")
    for folder, problem in (("model", r"no tokenizer_config\.json"), ("absent", "no such folder")):
        recipe = load_recipe(str(TINY), [f'model={{source="folder", path="{tmp_path}/{folder}"}}'])
        with pytest.raises(BadInputError, match=problem):
            check_named(recipe, made[0])


@pytest.fixture
def with_critic(tmp_path: Path) -> Store:
    """A store with the run `made`, and a run with a critic whose head is linear."""
    store = Store.open(str(tmp_path / "store"))
    make_run(store, iterations=1)
    attempt = ArtifactAddress(store, JUDGE.iteration(1, "critic"), Critic).attempt(
        Identity.of("value", 1, ValueConfig(learning_rate=0.01).model_dump(mode="json"))
    )
    attempt.write_bytes("model.safetensors", b"")
    attempt.publish()
    return store


def test_a_critic_with_another_head_is_refused_before_the_run_begins(with_critic: Store) -> None:
    linear = load_recipe(str(TINY), [*VALUE, "value.source=judge@1"])
    check_named(linear, with_critic)
    bounded = load_recipe(str(TINY), [*VALUE, "value.source=judge@1", "value.head=bounded", "value.reward_low=-1"])
    with pytest.raises(BadInputError, match=r"^value.source: judge@1: a critic with a linear head; .* value.head to"):
        check_named(bounded, with_critic)


@pytest.mark.parametrize(
    ("setting", "part"),
    [
        ("teach.teacher=made@1", "checkpoint"), ("distil.teacher=made@1", "checkpoint"), (PRETRAIN % 1, "rollouts"),
        (PRETRAIN % 1, "grades"), (RATED % "made@1", "checkpoint"), ("value.source=judge@1", "critic"),
    ],
)  # fmt: skip
def test_what_was_pruned_is_refused_in_one_line(setting: str, part: str, with_critic: Store) -> None:
    layout = JUDGE if part == "critic" else RunLayout("made")
    artifact = Artifact.at(with_critic, layout.iteration(1, part))
    pruned = artifact.manifest.model_copy(update={"pruned": Pruned(at="2026-11-28", rule="--parts")})
    with_critic.write_bytes(manifest_key(artifact.key), pruned.to_bytes())
    where = setting.partition("=")[0].replace("rate", "rate.models: big")
    with pytest.raises(BadInputError, match=rf"^{where}: file:.*/{part}: its files were pruned on 2026-11-28 "):
        check_named(load_recipe(str(TINY), [*VALUE, setting]), with_critic)
