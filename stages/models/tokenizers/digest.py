"""Identifies the tokenizers of checkpoints without fetching their weights."""

from artifacts.errors import NEW_RUN, BadInputError
from artifacts.reading import Artifact
from artifacts.refs import Checkpoint, Ref
from artifacts.store.store import Store


def tokenizer_digest(store: Store, weights: Ref[Checkpoint]) -> str | None:
    """Returns the SHA-256 (hex) of the tokenizer file of a checkpoint; None if it has none.

    Two checkpoints with the same digest give a text the same tokens; chat templates and end tokens may differ.
    """
    file = Artifact.open(store, weights).manifest.files.get("tokenizer.json")
    return None if file is None else file.sha256


def check_same_tokenizer(store: Store, model: Ref[Checkpoint], policy: Ref[Checkpoint], where: str) -> None:
    """Checks that a teacher or critic has the tokenizer of the policy whose tokens it reads.

    Only manifests are read, so the check also works for pruned models.

    Raises:
        BadInputError: It has another tokenizer.
    """
    digests = [(tokenizer_digest(store, ref) or "none")[:12] for ref in (model, policy)]
    if digests[0] != digests[1]:
        raise BadInputError(
            where,
            f"{model.key} has another tokenizer ({digests[0]})",
            f"that of {policy.key} ({digests[1]}), whose tokens it is to read",
            f"{NEW_RUN}, with models of one family; models made from scratch need the same puzzles and texts",
        )
