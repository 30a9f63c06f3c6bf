"""What an artifact was made from, and what that was made from, read from manifests alone."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from artifacts.errors import BadInputError
from artifacts.manifest import Manifest
from artifacts.reading import Artifact
from artifacts.refs import Ref
from artifacts.store import Store
from artifacts.verification import Damage, noted


@dataclass(frozen=True)
class Node:
    """One artifact of a lineage.

    Attributes:
        ref: What the manifest it was made into names.
        depth: Steps back from the artifact that was asked for, the shortest way.
        manifest: None where nothing is published under the key any more.
        replaced: Something else is published under the key now; `manifest` describes that.
        damaged: Something is published there, and its manifest cannot be read.
    """

    ref: Ref[Any]
    depth: int
    manifest: Manifest | None
    replaced: bool = False
    damaged: bool = False

    @property
    def inputs(self) -> dict[str, Ref[Any]]:
        """Refs of what it was made from, by role; empty where that is not known."""
        if self.manifest is None or self.replaced:
            return {}
        return {role: Ref(**ref) for role, ref in self.manifest.inputs.items()}


def lineage(
    store: Store, refs: Iterable[Ref[Any]], depth: int | None = None, damaged: list[Damage] | None = None
) -> list[Node]:
    """The artifacts that `refs` name and those they descend from, the nearest first, each once.

    Args:
        depth: How many steps back; None goes to the beginning.
        damaged: Where damaged manifests are added; the lineage ends at them.

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
