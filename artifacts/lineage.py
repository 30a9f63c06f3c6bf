"""Lineage of artifacts: their inputs, the inputs of those, and so on, read from manifests alone."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from artifacts.errors import BadInputError
from artifacts.manifest import Manifest
from artifacts.reading import Artifact
from artifacts.refs import Ref
from artifacts.store.store import Store
from artifacts.verification import Damage, noted


@dataclass(frozen=True)
class Node:
    """One artifact of a lineage.

    Attributes:
        ref: The ref by which the artifact was used.
        depth: Number of steps from the nearest artifact whose lineage was requested.
        manifest: The manifest under the ref's key; None if it is gone or damaged.
        replaced: Whether another artifact, the one that `manifest` describes, is now published under the key.
        damaged: Whether the manifest under the key cannot be read.
    """

    ref: Ref[Any]
    depth: int
    manifest: Manifest | None
    replaced: bool = False
    damaged: bool = False

    @property
    def inputs(self) -> dict[str, Ref[Any]]:
        """The refs of its inputs by role; empty if they are unknown."""
        if self.manifest is None or self.replaced:
            return {}
        return {role: Ref(**ref) for role, ref in self.manifest.inputs.items()}


def lineage(
    store: Store, refs: Iterable[Ref[Any]], depth: int | None = None, damaged: list[Damage] | None = None
) -> list[Node]:
    """Returns the artifacts of `refs` and all artifacts from which they were made, nearest first, each once.

    Args:
        store: The store.
        refs: The artifacts whose lineage is returned.
        depth: Number of steps back; None for all.
        damaged: List to which damaged manifests are added; the lineage ends at them. With None they raise an error.

    Raises:
        IntegrityError: A manifest is damaged, and `damaged` is None.
        StoreError: The store cannot be read.
    """
    nodes: dict[tuple[str, str], Node] = {}
    level, steps = list(refs), 0
    while level:
        following: list[Ref[Any]] = []
        for ref in level:
            if (ref.key, ref.digest) not in nodes:
                node = nodes[ref.key, ref.digest] = _node(store, ref, steps, damaged)
                following += node.inputs.values()
        level, steps = (following, steps + 1) if depth is None or steps < depth else ([], steps)
    return list(nodes.values())


def _node(store: Store, ref: Ref[Any], depth: int, damaged: list[Damage] | None) -> Node:
    with noted(damaged, ref.key):
        try:
            artifact = Artifact.at(store, ref.key)
        except BadInputError:
            return Node(ref, depth, None)
        return Node(ref, depth, artifact.manifest, artifact.manifest.digest != ref.digest)
    return Node(ref, depth, None, damaged=True)
