"""The stage that merges checkpoints: what it publishes, finds again and refuses."""

from pathlib import Path

import pytest
from safetensors.torch import load_file

from artifacts.address import ArtifactAddress
from artifacts.errors import BadInputError
from artifacts.lineage import lineage
from artifacts.reading import Artifact
from artifacts.refs import Checkpoint, Puzzles, Ref
from flows.inputs.models import fetched_source, hidden_size_of, stored_size
from flows.lookup.checkpoints import find_checkpoint
from flows.orchestration.gpu_permit import gpu_permit
from flows.report.terminal.live import current_view
from flows.session.calls import Stages
from stages.context import StageContext
from stages.merge import merge
from stages.models.merging.config import MergeConfig, MergedModel
from stages.models.merging.methods import arcee_fusion
from stages.models.source import StoredModel
from tests.support.specialists import SHAPE, publish_specialist, write_specialist

FUSION = MergeConfig()


def published(ctx: StageContext, tmp_path: Path, seed: int) -> Ref[Checkpoint]:
    return publish_specialist(ctx.store, write_specialist(tmp_path / f"seed{seed}", seed))


def address(ctx: StageContext) -> ArtifactAddress[Checkpoint]:
    return ArtifactAddress(ctx.store, "models/merged", Checkpoint)


def test_a_merge_is_an_artifact_like_others_and_a_source_of_a_run(ctx: StageContext, tmp_path: Path) -> None:
    base, model = (published(ctx, tmp_path, seed) for seed in (0, 1))
    steps: list[tuple[int, int]] = []
    ctx.progress = lambda label, done, total, figures: steps.append((done, total))
    merged = merge(ctx, FUSION, [model], base, out=address(ctx))
    again = merge(ctx, FUSION, [model], base, out=address(ctx))
    with gpu_permit(None, "run", ctx.log) as permit:
        source, unused = StoredModel(name=merged.key), Ref[Puzzles]("Puzzles", "puzzles/unused", "0" * 64)
        stored = fetched_source(Stages(ctx, current_view(), permit), source, unused)
    assert (again, again.reused, stored) == (merged, True, merged)
    assert not (ctx.scratch / "merge").exists(), "a run would keep it to its end"
    assert find_checkpoint(merged.key, ctx.store) == merged
    assert hidden_size_of(source, ctx.store) == SHAPE.hidden
    source = MergedModel(models=(merged.key,), base=base.key)
    assert hidden_size_of(source, ctx.store) == SHAPE.hidden
    size = stored_size(source, ctx.store)
    assert size.shape and (size.shape.layers, str(size)[-len(merged.key) - 1 :]) == (SHAPE.layers, f"{merged.key})")
    folders = [ctx.local_folder(ref) for ref in (base, model, merged)]
    one, two, new = (load_file(folder / "model.safetensors") for folder in folders)
    manifest = Artifact.open(ctx.store, merged).manifest
    for name, tensor in one.items():
        fused = arcee_fusion(tensor, two[name])
        assert new[name].equal(fused.tensor.bfloat16())
        assert manifest.facts["tensors"][name]["threshold"] == fused.threshold
        assert manifest.facts["tensors"][name]["taken"] == fused.taken
    assert manifest.facts["licence"] == "mit"
    assert manifest.facts["elements"] == sum(tensor.numel() for tensor in one.values())
    assert 0 < manifest.facts["moved"] < manifest.facts["changed"] < 0.6
    assert {node.ref.key for node in lineage(ctx.store, [merged])} == {merged.key, base.key, model.key}
    assert not steps or steps[-1][1] == len(one)


def test_models_of_different_shapes_are_refused_before_a_tensor_is_read(ctx: StageContext, tmp_path: Path) -> None:
    base = published(ctx, tmp_path, 0)
    wider = write_specialist(tmp_path / "wider", 1, shape=SHAPE.model_copy(update={"intermediate": 64}))
    other = publish_specialist(ctx.store, wider)
    for weights in (tmp_path / "store").rglob("*.safetensors"):
        weights.unlink()
    with pytest.raises(BadInputError, match="the model models/wider: hidden_dim 64; expected 48, as in models/seed0"):
        merge(ctx, FUSION, [other], base, out=address(ctx))


def test_the_same_weights_twice_are_refused(ctx: StageContext, tmp_path: Path) -> None:
    base = published(ctx, tmp_path, 0)
    with pytest.raises(BadInputError, match="the model models/seed0: the same weights as models/seed0"):
        merge(ctx, FUSION, [base], base, out=address(ctx))
    assert not ctx.store.exists("models/merged/manifest.json")
