"""Local folders of checkpoints in a store."""

from pathlib import Path
from typing import Any

from artifacts.manifest import Manifest
from artifacts.reading import Artifact
from artifacts.refs import Checkpoint, Ref
from artifacts.store.store import StartProgress, Store
from stages.models.adapter_config import ADAPTER_CONFIG
from stages.models.adapters import with_base

BASE = "base"
"""Role under which the manifest of an adapter names the checkpoint of the full weights."""


def holds_adapter(manifest: Manifest) -> bool:
    """Returns whether an artifact is a checkpoint with an adapter instead of full weights."""
    return ADAPTER_CONFIG in manifest.files


def base_ref(store: Store, checkpoint: Ref[Checkpoint]) -> Ref[Checkpoint]:
    """Returns the checkpoint with the full weights below an adapter; any other checkpoint itself."""
    manifest = Artifact.open(store, checkpoint).manifest
    return Ref(**manifest.inputs[BASE]) if holds_adapter(manifest) else checkpoint


def local_artifact(
    store: Store, ref: Ref[Any], cache: Path, watch: StartProgress | None = None, links: Path | None = None
) -> list[Path]:
    """Returns a local folder with an artifact's verified files (see `Artifact.local_folder`), then its base's.

    A checkpoint with an adapter needs its base: its folder holds links to its files and, as `base`, to that of the
    base.

    Args:
        cache: Parent folder of local copies.
        watch: As for `Artifact.local_folder`.
        links: Parent folder of folders of links; `cache` by default.
    """
    artifact = Artifact.open(store, ref)
    folder = artifact.local_folder(cache, watch)
    if not holds_adapter(artifact.manifest):
        return [folder]
    base = Artifact.open(store, Ref(**artifact.manifest.inputs[BASE])).local_folder(cache, watch)
    return [with_base(folder, base, (links or cache) / f"{artifact.manifest.digest}-{base.name}"), folder, base]
