"""Opens the files of questions that a recipe names: of this machine, of object stores, of web servers, of the hub."""

import hashlib
import io
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, BinaryIO

from artifacts.errors import BadInputError
from artifacts.local.input_files import (
    LARGEST_TABLE,
    PLAIN_OR_GZIP,
    UnfitInputError,
    answer_content,
    read_input,
)
from artifacts.store.location import local_folder, split_address
from artifacts.store.store import MissingKeyError, Store
from stages.environments.question_file.config import FORMATS, HF, HUB, WEB, QuestionColumns
from stages.environments.question_file.hub import hub_files

_EXPECTED, _REMEDY = f"a file {FORMATS}", "check puzzles.puzzle.path"
_TIMEOUT_S = 60.0
"""Longest time between two parts of a download."""
_LONGEST_S = 3600.0
"""Longest time of a download."""


@dataclass(frozen=True)
class QuestionPart:
    """One file of questions.

    Attributes:
        name: Its name, for error messages.
        opened: Opens it for reading at any place.
    """

    name: str
    opened: Callable[[], AbstractContextManager[BinaryIO]]


@dataclass(frozen=True)
class OpenedFiles:
    """Files of questions that were found.

    Attributes:
        identity: What decides their content: a digest, or a commit and the names of the files.
        parts: The files, in order.
    """

    identity: dict[str, Any]
    parts: tuple[QuestionPart, ...]


def opened_files(config: QuestionColumns) -> OpenedFiles:
    """Finds the files of a config. Those of the hub are not downloaded yet, others are read.

    Raises:
        BadInputError: There is no such file, it cannot be read, or the token of this machine gives no access to it.
    """
    if config.path.startswith((HUB, HF)):
        identity, files = hub_files(config)
        return OpenedFiles(identity, tuple(QuestionPart(name, open_) for name, open_ in files))
    return of_content(config.path, _downloaded(config.path) if config.path.startswith(WEB) else _read(config.path))


def of_content(name: str, content: bytes) -> OpenedFiles:
    """Returns one file whose content is known."""
    part = QuestionPart(name, lambda: io.BytesIO(content))
    return OpenedFiles({"sha256": hashlib.sha256(content).hexdigest()}, (part,))


def _read(path: str) -> bytes:
    if (local := local_folder(path)) is not None:
        remedy = _REMEDY if local.is_absolute() else "a relative puzzles.puzzle.path starts at the working directory"
        return read_input(local, _EXPECTED, remedy, where=str(local.absolute()), most_bytes=LARGEST_TABLE)
    folder, _, name = path.rpartition("/")
    try:
        return Store.open(folder, writable=False).read_bytes(name, LARGEST_TABLE)
    except MissingKeyError as error:
        raise BadInputError(path, "no such file", _EXPECTED, _REMEDY) from error


def _downloaded(url: str) -> bytes:
    """Returns the content of a web address, which holds no credentials."""
    import httpx

    split_address(url)
    try:
        with httpx.stream("GET", url, headers=PLAIN_OR_GZIP, follow_redirects=True, timeout=_TIMEOUT_S) as answer:
            if url.startswith("https:") and any(step.url.scheme != "https" for step in (*answer.history, answer)):
                raise BadInputError(url, "a redirect to an address without TLS", "https:// all the way", _REMEDY)
            if not answer.is_success:
                raise BadInputError(url, f"HTTP {answer.status_code}", _EXPECTED, _REMEDY)
            coding = answer.headers.get("Content-Encoding", "")
            return answer_content(coding, answer.iter_bytes(), LARGEST_TABLE, _LONGEST_S)
    except (httpx.HTTPError, UnfitInputError) as error:
        found = f"cannot be read ({error.strerror if isinstance(error, UnfitInputError) else error})"
        raise BadInputError(url, found, _EXPECTED, "check puzzles.puzzle.path and the network") from error
