"""Finds the split of a published puzzle set that a name means."""

from artifacts.errors import BadInputError
from artifacts.layout import RunLayout
from artifacts.reading import Artifact, is_published
from artifacts.refs import Puzzles, Ref, Report
from artifacts.store.store import Store
from flows.lookup.history import unknown_run
from stages.prepare import SPLITS
from stages.processes.user_file import note_file


def named_split(name: str, store: Store, where: str) -> tuple[Ref[Puzzles], str]:
    """Returns the puzzle set and split that a name means: RUN:SPLIT, or KEY:SPLIT of a set in the store.

    Args:
        where: Start of error messages.

    Raises:
        BadInputError: There is no such set or split.
    """
    owner, _, split = name.rpartition(":")
    if split not in SPLITS:
        raise BadInputError(where, f"split {split!r}", ", ".join(SPLITS), "name it as RUN:SPLIT")
    if "/" in owner:
        artifact = Artifact.at(store, owner)
        if artifact.manifest.kind != Puzzles.__name__:
            raise BadInputError(where, f"an artifact of kind {artifact.manifest.kind}", "Puzzles")
    else:
        artifact = set_of_run(RunLayout(owner), store)
    whole = whole_set(artifact)
    note_file(whole.manifest.identity.config.get("sha256"), whole.manifest.facts.get("file"))
    return artifact.ref, split


def set_of_run(layout: RunLayout, store: Store) -> Artifact:
    """Returns the puzzle set of a run that has measured its first model.

    Raises:
        BadInputError: There is no such run, or it has not measured it yet.
    """
    if not is_published(store, key := layout.iteration(0, "report")) and not store.exists(layout.recipe):
        raise unknown_run(layout.run, store)
    report = Artifact.at(store, key, Report)
    return Artifact.open(store, Ref[Puzzles](**report.manifest.inputs["puzzles"]))


def whole_set(puzzles: Artifact) -> Artifact:
    """Returns the set from which the overlong prompts of a set were dropped; the same set if none was."""
    if "puzzles" not in puzzles.manifest.inputs:
        return puzzles
    return Artifact.open(puzzles.store, Ref[Puzzles](**puzzles.manifest.inputs["puzzles"]))
