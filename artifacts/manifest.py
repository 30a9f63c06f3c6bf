"""The manifest: the file that makes an artifact exist. It is written last and lists all other files."""

import hashlib
import json
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Self

from pydantic import Field, ValidationError

from artifacts.documents.document import Document
from artifacts.documents.self_checksum import BLANK, check_seal, sealed
from artifacts.documents.store_format import FORMAT_VERSION, FormatVersion, check_format
from artifacts.errors import BadInputError, IntegrityError
from artifacts.identity import Identity, sha256_json
from artifacts.store.keys import is_key, shown

_EXPECTED = f"a manifest of format_version {FORMAT_VERSION}"
_REMAKE = "delete the artifact's folder and run again to make the artifact again"


class StoredFile(Document):
    """Checksum and size of one file of an artifact."""

    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    size_bytes: int = Field(ge=0)

    @classmethod
    def of(cls, data: bytes) -> Self:
        """Returns the checksum and size of a file's content."""
        return cls(sha256=hashlib.sha256(data).hexdigest(), size_bytes=len(data))


class Pruned(Document):
    """A note that an artifact's files were removed.

    Attributes:
        at: Time of the removal, ISO 8601.
        rule: The rule of `deerstalker prune` that removed them.
    """

    at: str
    rule: str


class Manifest(Document):
    """The record of one artifact: files, identity, inputs, facts and provenance.

    Attributes:
        format_version: Version of the store's format.
        kind: Name of the artifact's kind (see `artifacts.refs`).
        identity: Stage, revision, config and input digests that made it.
        identity_digest: SHA-256 of `identity`.
        attempt: Name of the folder below the artifact's key that holds its files.
        digest: SHA-256 of `files`. It covers content only, so equal content has equal digests.
        files: Checksums by file name, relative to the attempt's folder `<key>/<attempt>/`.
        inputs: Refs of the inputs by role, for lineage; `identity.inputs` has their digests.
        facts: Measurements and counts of the stage, for readers; not covered by the digest.
        provenance: Time, host, hardware, code and library versions; the stage's seconds, and on what they were spent
            (see `artifacts.activity`).
        pruned: Set when the files were removed to save space. The artifact keeps its name, facts and lineage, so a run
            can continue after it; only reading its files fails.
        checksum: SHA-256 of the manifest's own bytes with this field blank (see `artifacts.documents.self_checksum`).
    """

    format_version: FormatVersion
    kind: str
    identity: Identity
    identity_digest: str
    attempt: str
    digest: str
    files: dict[str, StoredFile]
    inputs: dict[str, dict[str, Any]]
    facts: dict[str, Any]
    provenance: dict[str, Any]
    pruned: Pruned | None = None
    checksum: str = BLANK

    @property
    def made_at(self) -> datetime:
        """The time of publishing, with its time zone."""
        return datetime.fromisoformat(self.provenance["created_at"])

    def refuse_future(self, key: str) -> None:
        """Refuses an artifact dated in the future, because a new request would seem older than it.

        Raises:
            BadInputError: The clock of this machine, or of the one that made the artifact, is wrong.
        """
        now = datetime.now(UTC)
        if self.made_at > now:
            found = f"made at {self.made_at:%Y-%m-%d %H:%M:%S} UTC, and it is {now:%Y-%m-%d %H:%M:%S} here"
            remedy = "set the clock of this machine if it is wrong, or wait until then"
            raise BadInputError(key, found, "an artifact of the past", remedy)

    def to_bytes(self) -> bytes:
        """Returns the manifest as readable JSON, with its checksum."""
        return sealed((self.model_copy(update={"checksum": BLANK}).model_dump_json(indent=2) + "\n").encode())

    @classmethod
    def from_bytes(cls, data: bytes, where: str) -> "Manifest":
        """Reads and checks a manifest.

        Args:
            data: Content of the file.
            where: Address of the file, for error messages.

        Raises:
            IntegrityError: The file is not a manifest, or its digests do not follow from its content.
            OtherFormatError: It is an intact manifest of another version of the format.
        """
        try:
            manifest = cls.model_validate_json(data)
        except ValidationError as error:
            with suppress(
                IntegrityError, ValueError, RecursionError
            ):  # in a damaged manifest the version may be damaged too
                check_seal(data, where)
                check_format(json.loads(data), where)
            first = error.errors()[0]
            reason = f"not a manifest ({'.'.join(map(str, first['loc']))}: {first['msg']})" if data.strip() else "empty"
            raise IntegrityError(where, shown(reason), _EXPECTED, _REMAKE) from error
        try:
            digests = (
                ("digest", manifest.digest, content_digest(manifest.files)),
                ("identity_digest", manifest.identity_digest, manifest.identity.digest),
            )
        except (ValueError, RecursionError) as error:  # a NaN, a number of 5,000 digits, a thousand levels
            raise IntegrityError(where, f"impossible settings ({error})", _EXPECTED, _REMAKE) from error
        for name, stated, actual in digests:
            if stated != actual:
                raise IntegrityError(
                    where, f"{name} {shown(stated)}", actual, "the manifest was altered; restore or delete it"
                )
        check_seal(data, where)
        _check_names(manifest, where)
        return manifest


def _check_names(manifest: Manifest, where: str) -> None:
    """Raises IntegrityError for file names that lead out of the artifact's folder and for inputs that are not refs."""
    for name in (manifest.attempt, *manifest.files):
        if not is_key(name):
            raise IntegrityError(where, f"the name {shown(name[:200])!r}", "names of files in its folder", _REMAKE)
    for role, ref in manifest.inputs.items():
        if set(ref) != {"kind", "key", "digest"} or not all(isinstance(part, str) for part in ref.values()):
            problem = f"an input {shown(role[:200])!r} that is not a ref"
            raise IntegrityError(where, problem, "kind, key, digest", _REMAKE)


def content_digest(files: dict[str, StoredFile]) -> str:
    """Returns the SHA-256 (hex) of the names, sizes and checksums of an artifact's files."""
    return sha256_json({name: [file.sha256, file.size_bytes] for name, file in files.items()})
