"""Python files of a user: found again by their digest, refused after a change, and loaded alone."""

import hashlib
import inspect
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Self

from pydantic import Field, SerializationInfo, SerializerFunctionWrapHandler, model_serializer, model_validator

from artifacts.config import Config
from artifacts.documents.parsing import exists
from artifacts.documents.suggestions import did_you_mean
from artifacts.errors import BadInputError
from artifacts.identity import IN_IDENTITY
from artifacts.local.input_files import read_input, read_regular, with_home

PUT_IT = "put it beside the recipe, or into the working directory"
PUT_IT_THERE = "put it there, or write its path relative to the recipe, such as ../FILE.py:NAME"
_MODULE = "deerstalker_user_file"
_FILES: dict[str, str] = {}
"""Paths of files, by SHA-256, that this process has found in a recipe or in the manifest of a set."""


class UserFunction(Config):
    """A function in a Python file. In a recipe it is written as `FILE.py:NAME`, its path relative to the recipe.

    The file is loaded alone: it can import installed packages, but no file beside it.
    """

    name: str = Field(
        pattern=r"\.py:[A-Za-z_][A-Za-z0-9_]*$", examples=["FILE.py:NAME"], description="File and name of the function."
    )
    folder: str | None = Field(default=None, description="Folder of the recipe; filled in when the recipe is loaded.")
    sha256: str | None = Field(default=None, description="Digest of the file; filled in likewise.")

    @model_validator(mode="before")
    @classmethod
    def _as_text(cls, data: Any) -> Any:
        return {"name": data} if isinstance(data, str) else data

    @model_serializer(mode="wrap")
    def _without_folder_in_identities(self, plain: SerializerFunctionWrapHandler, info: SerializationInfo) -> Any:
        return {"name": Path(self.name).name, "sha256": self.sha256} if info.context == IN_IDENTITY else plain(self)

    @property
    def file(self) -> Path:
        """The file."""
        return Path(self.folder or ".") / with_home(self.name.rpartition(":")[0])

    def located(self, folder: Path) -> Self:
        """Returns the same settings with the folder and the digest of the file.

        Raises:
            BadInputError: There is no such file, or its digest differs from the one in the recipe.
        """
        config = self if self.folder is not None else self.model_copy(update={"folder": str(folder.resolve())})
        digest = noted_digest(config.file, self.sha256, self.name, "the file of the function")
        return config.model_copy(update={"sha256": digest})

    def found(self) -> Path:
        """Returns the path of the file, unchanged.

        Raises:
            BadInputError: It is not there, or it has changed since the run began.
        """
        if self.sha256 is None:
            raise BadInputError(self.name, "named outside the recipe's own sections", "a function of the whole run")
        file = file_of(str(self.file), self.sha256)
        now = digest_of(file, "the file of the function")
        if now != self.sha256:
            raise changed(self.name, self.sha256, now)
        return file.resolve()


def note_file(sha256: str | None, file: str | None) -> None:
    """Notes the path of a file with a given digest, so that `file_of` finds it."""
    if sha256 is not None and file is not None:
        _FILES[sha256] = file


def noted_digest(file: Path, expected: str | None, name: str, what: str) -> str:
    """Returns the digest of the file that a recipe names, and notes its path, so that `file_of` finds it.

    Args:
        file: The file.
        expected: Its digest when the run began; None for a new run.
        name: How the recipe names it, for the error.
        what: What the file is, for the error.

    Raises:
        BadInputError: There is no such file, or its digest is another one.
    """
    digest = digest_of(file, what, PUT_IT_THERE)
    if expected not in (None, digest):
        raise changed(name, str(expected), digest)
    note_file(digest, str(file))
    return digest


def file_of(location: str, sha256: str) -> Path:
    """Returns the Python file with a digest; if none of the three places has it, the first of these places.

    The places are the path that `note_file` noted, the given path, and the file's name in the working directory.

    Args:
        location: The file as an item or a recipe names it.
        sha256: The digest of the file.
    """
    places = [Path(place) for place in (_FILES.get(sha256), location, Path(location).name) if place is not None]
    return next((place for place in places if exists(place)), places[0])


def digest_of(file: Path, what: str = "the file of the environment", remedy: str = PUT_IT) -> str:
    """Returns the SHA-256 (hex) of a Python file.

    Args:
        what: What the file is, for the error.
        remedy: What to do if there is none.

    Raises:
        BadInputError: It cannot be read.
    """
    return hashlib.sha256(read_input(file, what, remedy)).hexdigest()


def changed(name: str, before: str, now: str) -> BadInputError:
    """Returns the error for code that has changed since the run began."""
    return BadInputError(
        name,
        f"changed since the run began ({_short(before)} -> {_short(now)})",
        "the code that the run began with",
        "restore it, or start a new run with another --run name",
    )


def _short(version: str) -> str:
    return version[:12] if len(version) == 64 else version


def load_from(file: Path, name: str, digest: str) -> Any:
    """Returns an object of a Python file, which is executed.

    Raises:
        Exception: The file cannot be executed, has another digest, or lacks the object.
    """
    source = read_regular(file)
    if (now := hashlib.sha256(source).hexdigest()) != digest:
        raise ValueError(f"the file has changed: digest {now[:12]}, expected {digest[:12]}")
    module = ModuleType(_MODULE)
    module.__file__ = str(file)
    sys.modules[_MODULE] = module  # for dataclasses and pickle
    exec(compile(source, str(file), "exec"), module.__dict__)
    if not hasattr(module, name):
        raise AttributeError(f"{file.name} has no {name}{did_you_mean(name, [*module.__dict__])}")
    return getattr(module, name)


def number_or_text(value: Any, low: float = -math.inf, high: float = math.inf) -> float | str:
    """Returns what a user's function returned as a number, or the text of anything but a finite one of a range."""
    try:
        number = float(value) if not isinstance(value, str) else math.nan
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    return number if math.isfinite(number) and low <= number <= high else repr(value)[:80]


def check_call(function: Any, written: str, arguments: Sequence[str], *, by_name: bool) -> None:
    """Raises TypeError if a function cannot be called with these arguments.

    Args:
        function: The function.
        written: How it should be written, for the error.
        arguments: Names of the arguments.
        by_name: Whether they are given by name.
    """
    if not callable(function):
        raise TypeError(f"it is {repr(function)[:80]}; write {written}")
    try:
        signature = inspect.signature(function)
    except ValueError:  # a function in C need not have one
        return
    try:
        signature.bind(**dict.fromkeys(arguments)) if by_name else signature.bind(*arguments)
    except TypeError as error:
        raise TypeError(f"{signature}: {error}; write {written}") from error
