"""The record of a staged run after an iteration: which stage it is in, since when, and which comes next."""

from artifacts.reading import Artifact
from artifacts.refs import Ref, Transition
from artifacts.store.store import Store
from stages.statistics.records import Record

PROGRESS_FILE = "progress.json"


class StageProgress(Record):
    """The decision after an iteration of a staged run.

    Attributes:
        stage: Number of the iteration's stage, from 0.
        since: First iteration of that stage.
        values: The watched figure after each iteration of the stage; empty if the stage has a fixed length.
        ended: Whether the iteration was the last of the stage.
        reason: Why it has ended or not, in words.
    """

    stage: int
    since: int
    values: list[float]
    ended: bool
    reason: str

    def position_after(self, iteration: int) -> tuple[int, int]:
        """Returns the number of the next iteration's stage, and the first iteration of that stage."""
        return (self.stage + 1, iteration + 1) if self.ended else (self.stage, self.since)


def read_progress(transition: Ref[Transition], store: Store) -> StageProgress:
    """Returns the record that `advance` published.

    Raises:
        IntegrityError: It is damaged.
    """
    content = Artifact.open(store, transition).read_json(PROGRESS_FILE)
    return StageProgress.of(content, f"{store.url}/{transition.key}")
