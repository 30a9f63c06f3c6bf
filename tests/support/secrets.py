"""Finds files that hold a secret."""

from collections.abc import Sequence
from pathlib import Path


def holders_of(secrets: Sequence[str], folders: Sequence[Path], *, of_at_least: int = 6) -> list[str]:
    """Returns the files below the folders that hold one of the secrets; asserts a least number of files in all."""
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    assert len(files) >= of_at_least
    return [str(path) for path in files if any(secret.encode() in path.read_bytes() for secret in secrets)]
