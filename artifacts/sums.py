"""Checksums of files that belong to no artifact: frozen recipes and reports for people.

They stand beside the files in the format of `sha256sum`, with the checksum of the list itself in a comment.
"""

import hashlib
from collections.abc import Mapping

from artifacts.errors import IntegrityError
from artifacts.store import Store

SUMS_NAME = "SHA256SUMS"
_SEAL = "# SHA-256 of the lines above: "


def write_files(store: Store, folder: str, files: Mapping[str, bytes]) -> None:
    """Writes files that may be written anew, and their checksums last; between the two they have none."""
    store.delete(f"{folder}/{SUMS_NAME}")
    for name, data in files.items():
        store.write_bytes(f"{folder}/{name}", data)
    store.write_bytes(f"{folder}/{SUMS_NAME}", sums_of(files))


def sums_of(files: Mapping[str, bytes]) -> bytes:
    """The list of checksums of files by their names."""
    lines = "".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in sorted(files.items()))
    return f"{lines}{_SEAL}{hashlib.sha256(lines.encode()).hexdigest()}\n".encode()


def read_sums(data: bytes, where: str) -> dict[str, str]:
    """SHA-256 by name.

    Raises:
        IntegrityError: The list is damaged.
    """
    lines, seal, stated = data.rpartition(_SEAL.encode())
    actual = hashlib.sha256(lines).hexdigest()
    if not seal or stated != f"{actual}\n".encode():
        raise IntegrityError(where, "a damaged list of checksums", f"one whose seal is {actual}", "write it anew")
    return {line[66:]: line[:64] for line in lines.decode().splitlines()}
