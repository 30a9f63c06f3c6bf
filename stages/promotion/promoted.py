"""A run's `promoted.json`, which names the checkpoint that is promoted.

It repeats the content of the newest decision, so that people and commands find the checkpoint with one read.
"""

from typing import Annotated

from artifacts.documents.run_files import json_object
from artifacts.documents.self_checksum import check_seal, sealed_json
from artifacts.errors import IntegrityError
from artifacts.refs import Decision, Ref
from artifacts.store.store import MissingKeyError, Store
from stages.statistics.records import CheckpointRef, Record, ReportRef, ref_as_json


class Promoted(Record):
    """The content of `promoted.json`.

    Attributes:
        decided_at_iteration: Iteration of the newest decision.
        decision: That decision.
        checkpoint: The promoted checkpoint.
        report: Its evaluation on the validation split.
        iteration: Number of its iteration; 0 is the model before GRPO.
        score: Its score in that evaluation.
        model_card: Key of its model card.
        checksum: SHA-256 (hex) of the file without this field; empty before the file is written.
    """

    decided_at_iteration: int
    decision: Annotated[Ref[Decision], ref_as_json]
    checkpoint: CheckpointRef
    report: ReportRef
    iteration: int
    score: float
    model_card: str
    checksum: str = ""


def write_promoted(promoted: Promoted, store: Store, key: str) -> None:
    """Writes a run's `promoted.json` with its checksum."""
    store.write_bytes(key, sealed_json(promoted.as_json()))


def read_promoted(store: Store, key: str) -> Promoted | None:
    """Returns the content of a run's `promoted.json`; None before the first decision.

    Args:
        key: `RunLayout.promoted`.

    Raises:
        IntegrityError: The file is empty, cut short, altered, or lacks a field.
    """
    where = f"{store.url}/{key}"
    try:
        data = store.read_bytes(key)
    except MissingKeyError:
        return None
    content = json_object(data, where)
    check_seal(data, where)
    try:
        return Promoted.of(content, where)
    except IntegrityError as error:
        remedy = "run again: the next decision writes the file again"
        raise IntegrityError(where, error.found, error.expected, remedy) from error
