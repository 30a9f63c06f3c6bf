"""Identifies the tokenizers of checkpoints without fetching their weights."""

from artifacts.reading import Artifact
from artifacts.refs import Checkpoint, Ref
from artifacts.store.store import Store


def tokenizer_digest(store: Store, weights: Ref[Checkpoint]) -> str | None:
    """Returns the SHA-256 (hex) of the tokenizer file of a checkpoint; None if it has none.

    Two checkpoints with the same digest give a text the same tokens; chat templates and end tokens may differ.
    """
    file = Artifact.open(store, weights).manifest.files.get("tokenizer.json")
    return None if file is None else file.sha256
