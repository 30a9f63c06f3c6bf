"""Makes `format_N.tar.xz`, a small store of format N, the present one: `python -m tests.support.stores`.

It is made once, when a release brings format N, and never again: tests check that later programs read it.
"""

import io
import tarfile
from pathlib import Path
from unittest.mock import patch

from artifacts.documents.store_format import FORMAT_VERSION
from artifacts.store.store import Store
from tests.support import memory_store
from tests.support.made_run import make_run

FOLDER = Path(__file__).parent
_LEFT_OUT = ("puzzles/drawn/", "runs/kept/evaluations/", "runs/kept/iterations/0000/")
"""Artifacts of kinds that other artifacts of the store have too."""


def archive(number: int) -> Path:
    """Returns the path of the archive of a format's store."""
    return FOLDER / f"format_{number}.tar.xz"


def write_archive() -> Path:
    """Writes the archive of the present format, and returns its path."""
    memory_store.register()
    store = Store.open("memory://of-a-format")
    with patch("platform.node", return_value="a-host"):
        make_run(store, "kept", iterations=1)
    with tarfile.open(archive(FORMAT_VERSION), "x:xz") as file:
        for key in (key for key in store.list("") if not key.startswith(_LEFT_OUT)):
            data = store.read_bytes(key)
            entry = tarfile.TarInfo(key)
            entry.size = len(data)
            file.addfile(entry, io.BytesIO(data))
    return archive(FORMAT_VERSION)
