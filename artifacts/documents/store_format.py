"""The version of a store's format, which each manifest and each frozen recipe names."""

from collections.abc import Mapping
from typing import Any, Literal

from artifacts.errors import IntegrityError, OtherFormatError

FormatVersion = Literal[1]
FORMAT_VERSION: FormatVersion = 1
"""The version that this program writes; release 0.1.0 began with 1.

Raise it when the content of manifests, recipes, keys or tables changes. Then add a function here that converts
documents of the previous version, and let `check_format` accept both.
"""
VERSION_FIELD = "format_version"


def check_format(document: Mapping[str, Any], where: str) -> None:
    """Refuses a document of another version of the format.

    Args:
        document: The content of a manifest or a frozen recipe.
        where: Address of the file, for error messages.

    Raises:
        OtherFormatError: A newer version wrote it, or a commit from before the first release, which named no version.
        IntegrityError: Its version is not a positive integer.
    """
    expected = f"{VERSION_FIELD} {FORMAT_VERSION}"
    if VERSION_FIELD not in document:
        found, remedy = f"no {VERSION_FIELD}: made by a commit before release 0.1.0", "go on with that commit"
        raise OtherFormatError(where, found, expected, f"name a new --store, or {remedy}")
    version = document[VERSION_FIELD]
    if type(version) is not int or version < 1:
        raise IntegrityError(where, f"a {VERSION_FIELD} that is not a version", expected, "restore it from a copy")
    if version > FORMAT_VERSION:
        found, remedy = f"{VERSION_FIELD} {version}: made by a newer release", "install that release"
        raise OtherFormatError(where, found, expected, f"name a new --store, or {remedy}")
