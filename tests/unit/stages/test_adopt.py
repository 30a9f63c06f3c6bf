"""Adapters from outside the store: published over their base, found again, refused before anything is trained."""

from pathlib import Path

import pytest

from artifacts.address import ArtifactAddress
from artifacts.errors import BadInputError
from artifacts.identity import Identity
from artifacts.reading import Artifact
from artifacts.refs import Checkpoint, Ref
from flows.checks.named import check_named
from flows.config.recipes import load_recipe
from stages.context import StageContext
from stages.models.adapter_config import AdapterConfig
from stages.models.adapters import base_of, read_adapter_config
from stages.models.exporting.folder import full_folder
from stages.models.from_scratch import ScratchModel, make_scratch
from stages.models.source import FolderModel
from stages.models.tensors import check_weights
from stages.optional.adopt import adopt
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


def test_an_adapter_of_another_base_is_not_published(ctx: StageContext, base: Ref[Checkpoint], tmp_path: Path) -> None:
    other = save_adapter(tmp_path / "other", make_wide(tmp_path / "wide"))
    with pytest.raises(BadInputError, match="an adapter of another base"):
        adopt(ctx, str(other), base, out=address(ctx))
    assert not ctx.store.list("models/adopted")


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


def make_wide(folder: Path) -> Path:
    """A model of another width."""
    folder.mkdir()
    make_scratch(ScratchModel(layers=2, vocabulary=300, hidden=128, heads=4), ["Who was it?"], folder)
    return folder
