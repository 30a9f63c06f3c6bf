"""Parses addresses of stores and folders that people type."""

import os
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from artifacts.errors import BadInputError
from artifacts.local.input_files import with_home

STORE_VARIABLE = "DEERSTALKER_STORE"
"""Variable of the environment with the store that is used if a person names none."""
DATA_FOLDER = "./deerstalker-data"
"""The folder for what stays on this machine if the store does not."""
DEFAULT_STORE = os.environ.get(STORE_VARIABLE) or DATA_FOLDER
_FORMS = "a folder, file:///absolute/path, or s3://bucket/prefix"
_SCHEMES = ("file:", "s3:")


def local_folder(address: str) -> Path | None:
    """Returns the local folder that an address names; None if the address has another scheme than `file`.

    Raises:
        BadInputError: The address is empty or malformed, or is a `file://` address without a folder of this machine.
    """
    _check_text(address)
    if "://" not in address:
        if address.startswith(_SCHEMES):
            raise BadInputError(
                repr(address), "no // after the scheme", _FORMS, "write it in full, or ./ before a name"
            )
        return _of_path(address)
    parts = split_address(address)
    if parts.scheme != "file":
        return None
    if parts.netloc not in ("", "localhost"):
        raise BadInputError(address, f"host {parts.netloc!r}", "file:///absolute/path", "use three slashes")
    try:
        path = unquote(parts.path, errors="strict")
    except UnicodeDecodeError as error:
        raise BadInputError(
            address, "escaped bytes that are not UTF-8", _FORMS, "name the folder by its path"
        ) from error
    if not path:
        raise BadInputError(address, "no folder", "file:///absolute/path", "name the folder")
    _check_text(path)
    return Path(path)


def split_address(address: str) -> SplitResult:
    """Returns the parts of an address with a scheme.

    Raises:
        BadInputError: The address cannot be parsed, or contains credentials or options.
    """
    _check_text(address)
    try:
        parts = urlsplit(address)
    except ValueError as error:
        raise BadInputError(repr(address), f"not an address ({error})", _FORMS, "check the store's address") from error
    if parts.username or parts.password or parts.query or parts.fragment:
        shown = f"{parts.scheme}://...{parts.path}"
        raise BadInputError(shown, "credentials or options in the address", "", "set them in the environment")
    return parts


def _of_path(address: str) -> Path:
    home = address.partition("/")[0]
    if not home.startswith("~"):
        return Path(address)
    if (folder := with_home(home)) == Path(home) or not folder.is_dir():
        raise BadInputError(address, f"no user with a home folder called {home}", _FORMS, f"name it, or write ./{home}")
    return with_home(address)


def _check_text(address: str) -> None:
    """Raises BadInputError for an empty address and for control characters, which can disguise an address."""
    if not address.strip():
        raise BadInputError("address of a store", repr(address), _FORMS, "name one, or leave the option out")
    if any(ord(c) < 32 or 127 <= ord(c) < 160 or 0xD800 <= ord(c) < 0xE000 for c in address):
        raise BadInputError(
            "address of a store", ascii(address[:200]), "text without control characters", "check the address"
        )
