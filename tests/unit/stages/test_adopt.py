"""Adapters from outside the store: published over their base, found again, refused before anything is trained."""

import json
import shutil
from pathlib import Path

import pytest

from artifacts.address import ArtifactAddress
from artifacts.errors import BadInputError
from artifacts.identity import Identity
from artifacts.layout import Shared, shared_key
from artifacts.reading import Artifact
from artifacts.refs import Checkpoint, Puzzles, Ref
from artifacts.store.store import Store
from flows.checks.named import check_named
from flows.cli.solve import model_folder
from flows.config.recipes import load_recipe
from flows.inputs.models import fetched_source
from flows.lookup.checkpoints import check_checkpoint, find_checkpoint, trained_sampling
from flows.orchestration.gpu_permit import gpu_permit
from flows.report.terminal.live import current_view
from flows.session.calls import Stages
from stages.context import StageContext
from stages.models.adapter_config import AdapterConfig
from stages.models.adapters import base_of, read_adapter_config
from stages.models.exporting.folder import full_folder
from stages.models.from_scratch import ScratchModel, make_scratch
from stages.models.source import FolderModel, StoredModel
from stages.models.tensors import check_weights
from stages.models.tokenizers.chat import ChatTokenizer, find_chat_template
from stages.models.tokenizers.own_template import adapt_template, begins_from, with_system_prompt
from stages.optional.adopt import adopt, identity_of
from tests.support.adapters import CONFIG, save_adapter


@pytest.fixture
def base(ctx: StageContext, tmp_path: Path) -> Ref[Checkpoint]:
    attempt = ArtifactAddress(ctx.store, "models/base", Checkpoint).attempt(Identity.of("fetch", 1, {}))
    with attempt.folder(tmp_path) as folder:
        make_scratch(ScratchModel(layers=2, vocabulary=300), ["Who was it?"], folder)
    return attempt.publish({"licence": "mit"})


def address(ctx: StageContext) -> ArtifactAddress[Checkpoint]:
    return ArtifactAddress(ctx.store, "models/adopted", Checkpoint)


def test_an_adapter_is_a_checkpoint_over_its_base(ctx: StageContext, base: Ref[Checkpoint], tmp_path: Path) -> None:
    adapter = save_adapter(tmp_path / "adapter", ctx.local_folder(base))
    adopted = adopt(ctx, str(adapter), base, out=address(ctx))
    assert adopt(ctx, str(adapter), base, out=address(ctx)).reused
    folder = ctx.local_folder(adopted)
    assert base_of(folder) == ctx.local_folder(base) and read_adapter_config(folder) == CONFIG
    manifest = Artifact.open(ctx.store, adopted).manifest
    assert manifest.facts["licence"] == "mit" and "tokenizer.json" in manifest.files
    assert check_weights(full_folder(folder, tmp_path / "full"))
    with pytest.raises(BadInputError, match="a second adapter over models/adopted; expected a base without one"):
        adopt(ctx, str(adapter), adopted, out=ArtifactAddress(ctx.store, "models/twice", Checkpoint))


def test_a_run_goes_on_with_the_adapter_of_a_folder_that_is_gone(
    ctx: StageContext, base: Ref[Checkpoint], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    save_adapter(tmp_path / "mine/adapter", ctx.local_folder(base))
    source = StoredModel(name=base.key, adapter="mine/adapter")  # spelled like an id of the hub
    key = shared_key(Shared.MODELS, "adapter", identity_of("mine/adapter", base))
    first = adopt(ctx, "mine/adapter", base, out=ArtifactAddress(ctx.store, key, Checkpoint))
    (tmp_path / "mine").rename(tmp_path / "away")
    puzzles: Ref[Puzzles] = Ref("Puzzles", "puzzles/none", "0" * 64)
    with gpu_permit(None, "run", ctx.log) as permit:
        stages = Stages(ctx, current_view(), permit)
        assert fetched_source(stages, source, puzzles) == first
        with pytest.raises(BadInputError, match="other/adapter"):
            fetched_source(stages, source.model_copy(update={"adapter": "./other/adapter"}), puzzles)


def test_an_adapter_has_the_template_of_a_base_to_which_the_recipe_adds_lines(
    ctx: StageContext, base: Ref[Checkpoint], tmp_path: Path
) -> None:
    """PEFT saves the template on which an adapter was trained; `model.system_prompt` stands before it."""
    folder = ctx.local_folder(base)
    adapter = save_adapter(tmp_path / "adapter", folder)
    (adapter / "chat_template.jinja").write_text(find_chat_template(folder) or "")
    attempt = ArtifactAddress(ctx.store, "models/prompted", Checkpoint).attempt(Identity.of("fetch", 1, {"prompt": 1}))
    with attempt.folder(tmp_path) as prompted:
        shutil.copytree(folder, prompted, dirs_exist_ok=True)
        adapt_template(prompted, "Think first.", {"add_generation_prompt": True})
    adopted = ctx.local_folder(adopt(ctx, str(adapter), attempt.publish({}), out=address(ctx)))
    assert "Think first." in ChatTokenizer(adopted).prompt_text("Who was it?")


@pytest.mark.parametrize(
    ("lines", "begins"),
    [
        ("", True),
        (with_system_prompt("", "Think\nfirst."), True),
        ("\n", False),
        ("{{ bos_token }}\n", False),
        ("{%- if x is not defined %}{%- set x = 1 %}\n{%- endif %}\n", False),
    ],
)
def test_only_lines_that_a_recipe_writes_may_stand_before_a_template(lines: str, begins: bool) -> None:
    own = "{%- for message in messages %}\n{{ message.content }}\n{%- endfor %}"
    assert begins_from(lines + own, own) == begins


def test_an_adapter_of_another_base_is_not_published(ctx: StageContext, base: Ref[Checkpoint], tmp_path: Path) -> None:
    other = save_adapter(tmp_path / "other", make_wide(tmp_path / "wide"))
    with pytest.raises(BadInputError, match="an adapter of another base"):
        adopt(ctx, str(other), base, out=address(ctx))
    assert not ctx.store.list("models/adopted")


def test_an_adapter_with_a_chat_template_of_its_own_is_refused(
    ctx: StageContext, base: Ref[Checkpoint], tmp_path: Path
) -> None:
    """It would get other prompts than those that it was trained on."""
    folder = ctx.local_folder(base)
    adapter = save_adapter(tmp_path / "adapter", folder)
    own, settings = adapter / "chat_template.jinja", json.loads((folder / "tokenizer_config.json").read_text())
    own.write_text("{{ messages[0].content }}")
    with pytest.raises(BadInputError, match="a chat template of its own; expected that of models/base; take"):
        adopt(ctx, str(adapter), base, out=address(ctx))
    own.write_text(find_chat_template(folder) or "")
    adopt(ctx, str(adapter), base, out=address(ctx))
    own.unlink()
    (adapter / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": "{{ 1 }}"}))
    with pytest.raises(BadInputError, match="a chat template of its own"):
        adopt(ctx, str(adapter), base, out=ArtifactAddress(ctx.store, "models/other", Checkpoint))


@pytest.mark.parametrize(
    ("config", "refused"),
    [
        (CONFIG, None),
        (AdapterConfig(8, 8.0, False, CONFIG.projections), r"rank = 4, .* expected the adapter's rank = 8, "),
        (AdapterConfig(4, 8.0, True, CONFIG.projections), r"expected the adapter's .*rslora = true"),
        (AdapterConfig(4, 8.0, False, ("v_proj",)), r"expected the adapter's .*\[\"v_proj\"\]"),
    ],
)
def test_a_recipe_that_cannot_continue_its_adapter_is_refused_before_it_runs(
    ctx: StageContext, base: Ref[Checkpoint], tmp_path: Path, config: AdapterConfig, refused: str | None
) -> None:
    folder = ctx.local_folder(base)
    adapter = save_adapter(tmp_path / "adapter", folder, config)
    lora = ["rank=4", "alpha=8", 'projections=["q_proj","down_proj"]', "parameters=lora"]
    recipe = load_recipe("answers_only", [f"finetune.trainable.{setting}" for setting in reversed(lora)])
    recipe = recipe.model_copy(update={"model": FolderModel(path=str(folder), adapter=str(adapter))})
    if refused is None:
        check_named(recipe, ctx.store)
    else:
        with pytest.raises(BadInputError, match=refused):
            check_named(recipe, ctx.store)
    wide = make_wide(tmp_path / "wide")
    other = recipe.model_copy(update={"model": FolderModel(path=str(wide), adapter=str(adapter))})
    with pytest.raises(BadInputError, match="an adapter of another base"):
        check_named(other, ctx.store)


@pytest.mark.parametrize("source", ["folder", "checkpoint"])
def test_a_recipe_named_as_a_checkpoint_is_its_model_with_the_adapter(
    ctx: StageContext, base: Ref[Checkpoint], tmp_path: Path, source: str
) -> None:
    folder = ctx.local_folder(base)
    adapter = save_adapter(tmp_path / "adapter", folder)
    where = {"folder": f"path = '{folder}'", "checkpoint": f"name = '{base.key}'"}[source]
    named = recipe_of(tmp_path, f"source = '{source}'\n{where}\nadapter = '{adapter}'")
    found = find_checkpoint(named, ctx.store)
    asked = model_folder(found, ctx.store, tmp_path / "asked")
    assert base_of(asked) == folder and read_adapter_config(asked) == CONFIG
    assert check_weights(full_folder(asked, tmp_path / "full")) and ChatTokenizer(asked).prompt_text("a")
    if source == "checkpoint":
        assert found == StoredModel(name=base.key, adapter=str(adapter))
        assert trained_sampling(named, ctx.store) is None
    adopted = adopt(ctx, str(adapter), base, out=address(ctx))
    twice = StoredModel(name=adopted.key, adapter=str(adapter))
    with pytest.raises(BadInputError, match="a second adapter over models/adopted; expected a base without one"):
        model_folder(twice, ctx.store, tmp_path / "twice")


def test_a_recipe_named_as_a_checkpoint_is_its_model_with_the_prompt_of_the_recipe(
    ctx: StageContext, base: Ref[Checkpoint], tmp_path: Path
) -> None:
    folder = ctx.local_folder(base)
    for number, path in enumerate((str(folder), folder.as_uri(), "memory://asked")):
        if path.startswith("memory"):
            copy = Store.open(path)
            for file in folder.iterdir():
                copy.upload(file, file.name)
        named = recipe_of(tmp_path, f"source = 'folder'\npath = '{path}'\nsystem_prompt = 'Be brief.'")
        asked = model_folder(find_checkpoint(named, ctx.store), ctx.store, tmp_path / str(number))
        assert "Be brief." in ChatTokenizer(asked).prompt_text("2 + 2 = ?")
        check_checkpoint(named, ctx.store)
        plain = model_folder(FolderModel(path=path), ctx.store, tmp_path / f"{number}-plain")
        assert (plain == folder) == (not path.startswith("memory")), "a local folder is not copied"


def recipe_of(folder: Path, model: str) -> str:
    """Writes a recipe with a section `model`, and returns its name as a checkpoint."""
    (folder / "asked.toml").write_text(f"title = 't'\niterations = 1\n[model]\n{model}\n")
    return f"recipe:{folder / 'asked.toml'}"


def make_wide(folder: Path) -> Path:
    """A model of another width."""
    folder.mkdir()
    make_scratch(ScratchModel(layers=2, vocabulary=300, hidden=128, heads=4), ["Who was it?"], folder)
    return folder
