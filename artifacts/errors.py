"""Errors that tell a person where, what was found, what was expected and what to do."""

SEE_DOCTOR = "see `deerstalker doctor`"
"""End of a remedy where the command checks what was missing."""


class DeerstalkerError(Exception):
    """An error with one readable line and no need for a traceback.

    Args:
        where: The file, key, option or process concerned.
        found: What was met there.
        expected: What should have been there; may be empty.
        remedy: What the user can do about it; may be empty.
    """

    def __init__(self, where: str, found: str, expected: str = "", remedy: str = "") -> None:
        self.where, self.found, self.expected, self.remedy = where, found, expected, remedy
        parts = [f"{where}: {found}"]
        if expected:
            parts.append(f"expected {expected}")
        if remedy:
            parts.append(remedy)
        super().__init__("; ".join(parts))

    def __reduce__(self) -> tuple[type, tuple[str, str, str, str]]:
        return (type(self), (self.where, self.found, self.expected, self.remedy))


class BadInputError(DeerstalkerError):
    """The user's recipe, option, file or model is at fault; trying again changes nothing."""


class IntegrityError(DeerstalkerError):
    """Stored content disagrees with its manifest, schema or invariants."""


class IdentityMismatchError(DeerstalkerError):
    """An address holds an artifact that another config or other inputs made."""


class StoreError(DeerstalkerError):
    """The object store refused or could not be reached, and retrying at once will not help."""


class TransientError(DeerstalkerError):
    """Something outside failed in a way that may pass; the only kind of error a stage is retried for."""
