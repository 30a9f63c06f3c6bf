"""Checksums of files that belong to no artifact: frozen recipes and reports for people.

They are in a list beside the files, in the format of `sha256sum`. A comment at its end has the checksum of the list.
"""

import hashlib
from collections.abc import Mapping

from artifacts.documents.self_checksum import check_sealed_list, sealed_list
from artifacts.errors import IntegrityError
from artifacts.store.store import MissingKeyError, Store

SUMS_NAME = "SHA256SUMS"


def write_files(store: Store, folder: str, files: Mapping[str, bytes]) -> None:
    """Writes files that may be overwritten later, and the list of their checksums last.

    The old list is deleted first, so that a command that is killed in between leaves no list instead of a wrong one. Of
    two commands that write at the same time, the one whose list stays writes its files again where the other's stand.
    """
    sums_key, sums = f"{folder}/{SUMS_NAME}", sums_of(files)
    store.delete(sums_key)
    for name, data in files.items():
        store.write_bytes(f"{folder}/{name}", data)
    store.write_bytes(sums_key, sums)
    for name, data in files.items():
        if not _holds(store, f"{folder}/{name}", data) and _holds(store, sums_key, sums):
            store.write_bytes(f"{folder}/{name}", data)


def _holds(store: Store, key: str, data: bytes) -> bool:
    try:
        return store.read_bytes(key, len(data) + 1) == data
    except IntegrityError:  # it is larger
        return False
    except MissingKeyError:
        return False


def sums_of(files: Mapping[str, bytes]) -> bytes:
    """Returns the list of the checksums of files; `files` has their content by name."""
    return sealed_list("".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in sorted(files.items())))


def read_sums(data: bytes, where: str) -> dict[str, str]:
    """Returns the SHA-256 (hex) of each file in a list, by name.

    Raises:
        IntegrityError: The list is damaged.
    """
    return {line[66:]: line[:64] for line in check_sealed_list(data, where).splitlines()}
