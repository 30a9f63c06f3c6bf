"""The record of a run with phases after an iteration: which phase it is in, since when, and which comes next."""

from artifacts.reading import Artifact
from artifacts.refs import Ref, Transition
from artifacts.store.store import Store
from stages.statistics.records import Record

PROGRESS_FILE = "progress.json"


class PhaseProgress(Record):
    """The decision after an iteration of a run with phases.

    Attributes:
        phase: Number of the iteration's phase, from 0.
        since: First iteration of that phase.
        values: The watched figure after each iteration of the phase; empty if the phase has a fixed length.
        ended: Whether the iteration was the last of the phase.
        reason: Why it has ended or not, in words.
    """

    phase: int
    since: int
    values: list[float]
    ended: bool
    reason: str

    def position_after(self, iteration: int) -> tuple[int, int]:
        """Returns the number of the next iteration's phase, and the first iteration of that phase."""
        return (self.phase + 1, iteration + 1) if self.ended else (self.phase, self.since)


def read_progress(transition: Ref[Transition], store: Store) -> PhaseProgress:
    """Returns the record that `advance` published.

    Raises:
        IntegrityError: It is damaged.
    """
    content = Artifact.open(store, transition).read_json(PROGRESS_FILE)
    return PhaseProgress.of(content, f"{store.url}/{transition.key}")
