"""The local copies of artifacts that a run with a store on S3 keeps."""

from pathlib import Path

import pytest

from artifacts.address import ArtifactAddress
from artifacts.identity import Identity
from artifacts.refs import Checkpoint, Ref
from artifacts.store.store import Store
from stages.context import StageContext
from tests.support.contexts import make_context

LARGE = 200
"""Bytes of the weights in this test; the limit is 100."""


def published(ctx: StageContext, n: int) -> Ref[Checkpoint]:
    attempt = ArtifactAddress(ctx.store, f"runs/r/iterations/{n:04d}/checkpoint", Checkpoint).attempt(
        Identity.of("finetune", 1, {"n": n})
    )
    with ctx.folder(attempt) as folder:
        (folder / "config.json").write_bytes(b"{}")
        (folder / "model.safetensors").write_bytes(bytes([n]) * LARGE)
    return attempt.publish()


def test_weights_of_old_iterations_leave_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An iteration reads the base and the newest weights; weights that are needed again are downloaded again."""
    monkeypatch.setattr("stages.context._LARGE_BYTES", 100)
    with make_context(Store.open("memory://copies"), tmp_path) as ctx:
        weights = [published(ctx, 0)]
        for n in range(1, 6):
            stage = ctx.reporting_to(lambda *_: None)  # as each stage has a context of its own
            stage.local_folder(weights[0])
            stage.local_folder(weights[-1])
            weights.append(published(stage, n))
            ctx.remove_old_copies()
            kept = {int(path.read_bytes()[0]) for path in tmp_path.rglob("*.safetensors")}
            assert kept == {0, n - 1, n}
        assert all((ctx.downloads / ref.digest / "config.json").is_file() for ref in weights), "engines may read it"
        again = ctx.local_folder(weights[2]) / "model.safetensors"
        assert again.read_bytes() == bytes([2]) * LARGE


def test_a_folder_of_the_store_is_never_touched(ctx: StageContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stages.context._LARGE_BYTES", 100)
    ref = published(ctx, 1)
    for _ in range(3):
        ctx.remove_old_copies()
    assert (ctx.local_folder(ref) / "model.safetensors").is_file()
