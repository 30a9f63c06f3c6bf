"""Splits of published puzzle sets by the names that people give them."""

from artifacts.errors import BadInputError
from artifacts.layout import RunLayout
from artifacts.reading import Artifact
from artifacts.refs import Puzzles, Ref, Report
from artifacts.store.store import Store
from stages.prepare import SPLITS


def named_split(name: str, store: Store, where: str) -> tuple[Ref[Puzzles], str]:
    """The puzzle set and split of a name: RUN:SPLIT, or KEY:SPLIT of a set in the store.

    Args:
        where: Start of an error message.

    Raises:
        BadInputError: There is no such set or split.
    """
    owner, _, split = name.rpartition(":")
    if split not in SPLITS:
        raise BadInputError(where, f"split {split!r}", ", ".join(SPLITS), "name it as RUN:SPLIT")
    if "/" in owner:
        named = Artifact.at(store, owner)
        if named.manifest.kind != Puzzles.__name__:
            raise BadInputError(where, f"an artifact of kind {named.manifest.kind}", "Puzzles")
        return named.ref, split
    report = Artifact.at(store, RunLayout(owner).iteration(0, "report"), Report)
    return Ref(**report.manifest.inputs["puzzles"]), split
