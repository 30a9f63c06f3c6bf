"""Which runs of this user compute on which devices of this machine, as notes in their temporary folders.

A note counts as long as the folder has an owner (see `stages.processes.scratch`), so a killed run leaves none.
"""

import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from artifacts.documents.document import Document
from artifacts.local.input_files import read_regular
from stages.processes.scratch import PREFIX, has_owner

_NOTE = "device_use.json"
_MOST_BYTES = 1 << 16


class DeviceUse(Document):
    """A run that computes on devices.

    Attributes:
        run: Name of its flow run.
        store: Address of its store; flow runs of one name in one store share a run on purpose.
        process_id: Its process.
        devices: Names of the devices: UUIDs of GPUs, or cores.
        permit: The limit and the server from which it has or had a permit to use them; empty without one.
    """

    run: str
    store: str
    process_id: int
    devices: tuple[str, ...]
    permit: str = ""


def announce(folder: Path, use: DeviceUse) -> list[DeviceUse]:
    """Leaves a note in a temporary folder of this process, and returns the other runs that use one of its devices.

    Runs whose permits are of the same limit are left out: they wait for one another. Of two concurrent starts, at
    least one finds the other.
    """
    unfinished = folder / f"{_NOTE}.new"
    unfinished.write_text(use.model_dump_json())
    unfinished.replace(folder / _NOTE)
    found = [other for note in _notes() if note.parent != folder and (other := _read(note))]
    return [
        other
        for other in found
        if not set(use.devices).isdisjoint(other.devices)
        and other.process_id != use.process_id
        and (other.run, other.store) != (use.run, use.store)
        and (not use.permit or other.permit != use.permit)
    ]


def _notes() -> Sequence[Path]:
    return sorted(Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{_NOTE}"))


def _read(note: Path) -> DeviceUse | None:
    with suppress(OSError, ValueError, ValidationError):  # it is being removed, or another program wrote it
        if note.parent.lstat().st_uid == os.geteuid() and has_owner(note.parent):
            return DeviceUse.model_validate_json(read_regular(note, _MOST_BYTES))
    return None
