"""Options that the commands share."""

from dataclasses import dataclass
from typing import Annotated

from cyclopts import Parameter

from flows.surroundings import DEFAULT_STORE

Changes = Annotated[tuple[str, ...], Parameter(negative=(), show_default=False)]
Switch = Annotated[bool, Parameter(show_default=False)]


@Parameter(name="*")
@dataclass(frozen=True)
class Output:
    """How a command answers.

    Parameters
    ----------
    json
        Print one JSON document on stdout; everything else goes to stderr.
    debug
        Show logs and tracebacks.
    """

    json: Annotated[bool, Parameter(negative=())] = False
    debug: Annotated[bool, Parameter(negative=())] = False


@Parameter(name="*")
@dataclass(frozen=True)
class Stored(Output):
    """The same for a command that reads or writes artifacts.

    Parameters
    ----------
    store
        Where artifacts live: a folder, file://, or s3://bucket/prefix.
    """

    store: str = DEFAULT_STORE


STORED, OUTPUT = Stored(), Output()
