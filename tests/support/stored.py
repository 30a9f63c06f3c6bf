"""The artifacts of a store, as campaigns compare them before and after a fault."""

from artifacts.layout import MANIFEST_NAME
from artifacts.manifest import Manifest
from artifacts.store.store import Store


def manifests_of(store: Store) -> dict[str, Manifest]:
    """Returns the manifest of every artifact by key, without step checkpoints, which come and go."""
    keys = [key for key in store.list() if key.endswith(f"/{MANIFEST_NAME}") and "/progress-" not in key]
    return {key.removesuffix(f"/{MANIFEST_NAME}"): Manifest.from_bytes(store.read_bytes(key), key) for key in keys}


def attempts_of(store: Store) -> dict[str, str]:
    """Returns the attempt that published each artifact, by key."""
    return {key: manifest.attempt for key, manifest in manifests_of(store).items()}
