"""Removes folders of artifacts, and old optimizer states of a run."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from artifacts.layout import (
    IN_ATTEMPT,
    STATE_PARTS,
    WEIGHTS_PARTS,
    RunLayout,
    artifact_of,
    is_within,
    manifest_key,
    state_key,
)
from artifacts.manifest import Manifest, Pruned
from artifacts.reading import Artifact, is_published
from artifacts.refs import Decision, OptimizerState
from artifacts.store.store import Store, Unfinished
from stages.statistics.records import read_decision
from stages.training.saved_state import is_saved

LOST_AFTER_S = 24 * 3600.0
"""Age after which a write counts as lost: no process takes a day to send one file."""


@dataclass(frozen=True)
class Removal:
    """A folder to remove.

    Attributes:
        key: Key of the artifact to which the folder belongs.
        what: The kind of a published artifact; `step checkpoints`, `sampled shards`, `set aside` or `lost attempt` for
            other folders.
        size_bytes: Total size of its files.
        folder: Key of the folder.
        manifest: Manifest of a published artifact, which stays and records the removal; None for other folders.
    """

    key: str
    what: str
    size_bytes: int
    folder: str
    manifest: Manifest | None = None


def remove(store: Store, removals: Iterable[Removal], rule: object) -> None:
    """Removes folders. Manifests are first marked as pruned, so that missing files do not count as damage.

    What another process has removed, pruned or made again since it was looked up is left as it is.

    Args:
        rule: The reason, whose text the manifests of the removed artifacts keep.
    """
    pruned = Pruned(at=datetime.now(UTC).isoformat(timespec="seconds"), rule=str(rule))
    for item in removals:
        if item.manifest is not None:
            if not is_published(store, item.key) or Artifact.at(store, item.key).manifest != item.manifest:
                continue
            marked = item.manifest.model_copy(update={"pruned": pruned})
            store.write_bytes(manifest_key(item.key), marked.to_bytes())
        store.delete(item.folder)


def unfinished_writes(store: Store, runs: Sequence[str] = ()) -> list[Unfinished]:
    """Returns the writes of a store's own files that have not ended: under way, or left by processes that were killed.

    Args:
        runs: Names of runs; the whole store if empty.

    Raises:
        StoreError: The server does not list uploads, or the credentials do not allow it.
    """
    prefixes = [RunLayout(run).root for run in runs] or [""]
    return [write for prefix in prefixes for write in store.unfinished(prefix) if is_within(write.key)]


def lost(writes: Iterable[Unfinished], older_than_s: float = LOST_AFTER_S) -> list[Unfinished]:
    """Returns the writes that are so old that their processes must have been killed.

    Args:
        older_than_s: Age in seconds.
    """
    return [write for write in writes if write.age_s >= older_than_s]


class OldStates:
    """Removes old optimizer states of policy and critic while a run continues. Their manifests are kept.

    A run still needs its newest states, and the states beside the checkpoints to which a rollback may return: the
    promoted one and the best. A critic does not roll back. The states of the newest iteration may be published after
    its decision; until then the states before them are the newest. What weights were trained from is needed as long as
    their own state is not published: that training is repeated if the state is lost. After a rollback, and where a
    phase begins with a fresh optimizer, the next iterations do not wait for it.

    Args:
        store: Store of the run.
        layout: Keys of the run.
        keep_every: Iterations whose number is a multiple of this keep their state; 0: none.
    """

    def __init__(self, store: Store, layout: RunLayout, keep_every: int) -> None:
        self._store, self._layout, self._keep_every = store, layout, keep_every
        self._earlier: list[int] | None = None
        self._unsaved: list[int] = []

    def iteration_finished(self, n: int) -> None:
        """Removes states of the iterations before `n`, after `n` has published its decision.

        Call it once more for the last iteration of a run, after its states are published.

        Raises:
            IntegrityError: A decision or a manifest of the run is damaged.
        """
        if self._earlier is None:
            self._earlier, self._unsaved = self._left_before(n)
        decision = read_decision(
            Artifact.at(self._store, self._layout.iteration(n, "decision"), Decision).ref, self._store
        )
        needed = {state_key(measured.checkpoint.key) for measured in (decision.standing, decision.best)}
        sources = {number: self._sources_of_unsaved(number) for number in (*self._unsaved, n)}
        self._unsaved = [number for number, keys in sources.items() if keys]
        needed |= set().union(*sources.values())
        earlier = [number for number in self._earlier if number != n]
        for part in STATE_PARTS:
            newest = (self._layout.iteration(number, part) for number in (n, *reversed(earlier)))
            needed |= {next((key for key in newest if is_published(self._store, key)), None)}
        left: list[int] = []
        for number in earlier:
            keys = {self._layout.iteration(number, part) for part in STATE_PARTS}
            if keys & needed:
                left.append(number)
            for key in keys - needed:
                if is_published(self._store, key):
                    self._remove(key)
        self._earlier = left if self._keeps(n) else [*left, n]

    def _left_before(self, n: int) -> tuple[list[int], list[int]]:
        """Returns what earlier commands have left before iteration `n`, where a run goes on.

        Returns:
            The iterations with files of a state that may go, and those with weights whose state is not published.
        """
        keys = self._store.list(self._layout.iterations) if n else []
        files = filter(None, map(IN_ATTEMPT.fullmatch, keys))
        stored = {part[0] for file in files if (part := self._layout.part_of(file[1])) and part[1] in STATE_PARTS}
        earlier = [number for number in sorted(stored) if number < n and not self._keeps(number)]
        if not earlier:
            return [], []
        published = set(filter(None, map(artifact_of, keys)))
        parts = ((number, self._layout.iteration(number, part)) for number in range(n) for part in WEIGHTS_PARTS)
        return earlier, sorted({at for at, key in parts if key in published and state_key(key) not in published})

    def _keeps(self, number: int) -> bool:
        return self._keep_every > 0 and number % self._keep_every == 0

    def _sources_of_unsaved(self, n: int) -> set[str]:
        """Returns the keys of all inputs of the iteration's weights whose optimizer state is not published yet."""
        keys = set[str]()
        for part in WEIGHTS_PARTS:
            key = self._layout.iteration(n, part)
            if not is_published(self._store, key):
                continue
            weights = Artifact.at(self._store, key)
            if not is_saved(weights.ref, self._store):
                keys |= {ref["key"] for ref in weights.manifest.inputs.values()}
        return keys

    def _remove(self, key: str) -> None:
        manifest = Artifact.at(self._store, key, OptimizerState).manifest
        folder = f"{key}/{manifest.attempt}"
        if manifest.pruned is not None:
            self._store.delete(folder)  # completes a removal that was interrupted
            return
        kept = f" and every {self._keep_every}th" if self._keep_every else ""
        rule = f"keep_state_every = {self._keep_every}: all but the newest, the best and the promoted{kept}"
        size = sum(file.size_bytes for file in manifest.files.values())
        remove(self._store, [Removal(key, manifest.kind, size, folder, manifest)], rule)
