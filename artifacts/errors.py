"""Errors for people: each names the place, the problem, the expected state and a remedy."""

from collections.abc import Iterator, Sequence

SEE_DOCTOR = "see `deerstalker doctor`"
"""End of a remedy, for problems that `deerstalker doctor` checks for."""

NEW_RUN = "the recipe of a run that has begun is fixed: start a run with another name"
"""Part of a remedy that changes the recipe, for errors that end a run after it has stored artifacts."""


INDENT = "    "
"""Prefix of each line of a child process below an error, so that it does not look like a line of the program."""


class DeerstalkerError(Exception):
    """An error that one readable line explains, without a traceback.

    Attributes:
        line: The line, without the tail.

    Args:
        where: The file, key, option or process with the problem.
        found: The problem.
        expected: The expected value or state; may be empty.
        remedy: What the user can do about it; may be empty.
        tail: Last lines of a child process that explain the problem; may be empty. They are printed below the line.
    """

    def __init__(self, where: str, found: str, expected: str = "", remedy: str = "", tail: Sequence[str] = ()) -> None:
        self.where, self.found, self.expected, self.remedy, self.tail = where, found, expected, remedy, tuple(tail)
        parts = [f"{where}: {found}"]
        if expected:
            parts.append(f"expected {expected}")
        if remedy:
            parts.append(remedy)
        self.line = "; ".join(parts)
        super().__init__("\n".join([self.line, *(INDENT + line for line in self.tail)]))

    def __reduce__(self) -> tuple[type, tuple[str, str, str, str, tuple[str, ...]]]:
        return (type(self), (self.where, self.found, self.expected, self.remedy, self.tail))


class BadInputError(DeerstalkerError):
    """The user's recipe, option, file or model is wrong; a retry would fail again."""


class NotPublishedError(BadInputError):
    """There is no artifact under a key: the key is wrong, or the artifact is being made again."""


class IntegrityError(DeerstalkerError):
    """Stored content disagrees with its manifest, schema or invariants."""


class OtherFormatError(DeerstalkerError):
    """A store is of another version of the format than this program writes (see `artifacts.documents.store_format`)."""


class IdentityMismatchError(DeerstalkerError):
    """An address holds an artifact that was made with another config or other inputs."""


class StoreError(DeerstalkerError):
    """The store refused a request or could not be reached, and an immediate retry will not help."""


class DiskFullError(StoreError):
    """A disk has no room for a file; a retry fails until somebody frees space (see `artifacts.local.full_disk`)."""


class TransientError(DeerstalkerError):
    """Another system failed temporarily. This is the only kind of error after which a stage is retried."""


def chain_of(error: BaseException) -> Iterator[BaseException]:
    """Yields an error, and the errors that led to it."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or link.__context__
