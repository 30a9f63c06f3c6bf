"""Publishing: an artifact's files go under an attempt's own folder, and its manifest goes last."""

import hashlib
import io
import json
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Generic

import polars as pl

from artifacts.errors import IdentityMismatchError
from artifacts.identity import Identity, differences
from artifacts.manifest import MANIFEST_NAME, Manifest, StoredFile, StoredIdentity, content_digest
from artifacts.provenance import provenance
from artifacts.refs import K, Ref
from artifacts.renewal import Renewal
from artifacts.schemas import TableSchema, validated
from artifacts.store import MissingKeyError, Store, Watch
from artifacts.store_directory import synchronise_folder

SUPERSEDED_NAME = "superseded.json"
"""The manifest of an artifact that was set aside, among its files."""


class Slot(Generic[K]):
    """An address in a store where one artifact of one kind may be published, once.

    Attributes:
        renewal: Outdates artifacts. An outdated one is set aside: its files stay, its manifest moves to them.
        before_writing: Called before an attempt stores anything; an error that it raises prevents that.
        label: Short name that task runs carry after the stage's name, such as `0003` in `sample-0003`.
    """

    def __init__(
        self,
        store: Store,
        key: str,
        kind: type[K],
        renewal: Renewal | None = None,
        before_writing: Callable[[], None] = lambda: None,
        label: str = "",
    ) -> None:
        self.store, self.key, self.kind, self.renewal = store, key, kind, renewal
        self.before_writing, self.label = before_writing, label
        self._asked_at = time.perf_counter()

    def find(self, identity: Identity) -> Ref[K] | None:
        """The artifact already published here under this identity, or None where there is none.

        Raises:
            IdentityMismatchError: Another config or other inputs made what stands here.
            IntegrityError: The manifest is damaged.
            StoreError: The store cannot be read; that is never taken for absence.
        """
        self._asked_at = time.perf_counter()
        try:
            data = self.store.read_bytes(f"{self.key}/{MANIFEST_NAME}")
        except MissingKeyError:
            return None
        manifest = Manifest.from_bytes(data, f"{self.store.url}/{self.key}/{MANIFEST_NAME}")
        if self.renewal and self.renewal.outdates(manifest, identity):
            self.store.write_bytes(f"{self.key}/{manifest.attempt}/{SUPERSEDED_NAME}", data)
            self.store.delete(f"{self.key}/{MANIFEST_NAME}")
            return None
        if manifest.identity_digest != identity.digest:
            changes = differences(manifest.identity.model_dump(), identity.as_json())
            raise IdentityMismatchError(
                f"{self.store.url}/{self.key}",
                "an artifact made otherwise: " + "; ".join(changes[:6]),
                f"identity {identity.digest[:12]}",
                "use another run name, or restore the recipe that made it",
            )
        return Ref(manifest.kind, self.key, manifest.digest, reused=True)

    def attempt(self, identity: Identity, *, resumable: bool = False) -> "Attempt[K]":
        """Opens an attempt at making the artifact.

        Args:
            resumable: Give all attempts under this identity the same folder, so that a retry finds what an
                interrupted one left. Only for files whose names carry their checksum (`write_shard`): another writer
                may be at work in it, or have published what lies there.
        """
        name = self._progress_name(identity) if resumable else f"attempt-{uuid.uuid4().hex[:12]}"
        return Attempt(self, identity, name, self._asked_at)

    def progress_key(self, identity: Identity) -> str:
        """Key of the folder that attempts under an identity share: what an interrupted one left, the next finds."""
        return f"{self.key}/{self._progress_name(identity)}"

    def _progress_name(self, identity: Identity) -> str:
        name = f"progress-{identity.digest[:12]}"
        if self.renewal and (label := self.renewal.label(identity.stage)):
            name += f"-{label}"  # else it would adopt what is to be made anew
        return name


class Attempt(Generic[K]):
    """Files on their way to becoming an artifact; nobody reads them before `publish`."""

    def __init__(self, slot: Slot[K], identity: Identity, name: str, started: float) -> None:
        self.slot, self.identity, self.name, self._started = slot, identity, name, started
        self.files: dict[str, StoredFile] = {}

    @property
    def prefix(self) -> str:
        """Key of the attempt's folder."""
        return f"{self.slot.key}/{self.name}"

    def write_bytes(self, name: str, data: bytes) -> None:
        """Stores one file."""
        self.slot.before_writing()
        self.slot.store.write_bytes(f"{self.prefix}/{name}", data)
        self.files[name] = StoredFile(sha256=hashlib.sha256(data).hexdigest(), size_bytes=len(data))

    def write_json(self, name: str, value: object) -> None:
        """Stores a value as readable JSON (no NaN)."""
        self.write_bytes(name, _json_bytes(value))

    def write_table(self, name: str, frame: pl.DataFrame, schema: TableSchema) -> None:
        """Validates a table and stores it as Parquet.

        Raises:
            IntegrityError: The table breaks its schema.
        """
        buffer = io.BytesIO()
        validated(frame, schema, f"{self.prefix}/{name}").write_parquet(buffer, compression="zstd")
        self.write_bytes(name, buffer.getvalue())

    def write_shard(self, stem: str, frame: pl.DataFrame, schema: TableSchema) -> None:
        """Stores a table under a name that carries its checksum, so that a retry can trust or reject it."""
        buffer = io.BytesIO()
        validated(frame, schema, f"{self.prefix}/{stem}").write_parquet(buffer, compression="zstd")
        self._write_summed(stem, ".parquet", buffer.getvalue())

    def write_json_shard(self, stem: str, value: object) -> None:
        """Stores a value as JSON under a name that carries its checksum, so that no other writer's is overwritten."""
        self._write_summed(stem, ".json", _json_bytes(value))

    def _write_summed(self, stem: str, suffix: str, data: bytes) -> None:
        self.write_bytes(f"{stem}-{hashlib.sha256(data).hexdigest()[:16]}{suffix}", data)

    def adopt_shards(self, stem: str, schema: TableSchema, *, by: str, rows: int) -> pl.DataFrame | None:
        """Takes over what interrupted attempts and other writers left in shards: every whole group of rows, once.

        Of a group that several shards hold, the first counts, in the order of their names. What else such a shard holds
        is stored again as a shard of its own, so that the attempt's files, and thereby what is published and every
        reader sees, hold no group twice. Ignored are a shard whose checksum fails and a group that lacks rows.

        Args:
            by: Column that names a row's group.
            rows: Number of rows of a whole group.
        """
        # Those of this attempt are among the shards, too, and count no more than another writer's.
        self.files = {name: file for name, file in self.files.items() if not name.startswith(f"{stem}-")}
        known: set[Any] = set()
        frames: list[pl.DataFrame] = []
        for key in self.slot.store.list(self.prefix):
            name = key.removeprefix(f"{self.prefix}/")
            if not name.startswith(f"{stem}-"):
                continue
            data = self.slot.store.read_bytes(key)
            sha256 = hashlib.sha256(data).hexdigest()
            if name != f"{stem}-{sha256[:16]}.parquet":
                continue
            shard = validated(pl.read_parquet(io.BytesIO(data)), schema, key)
            fresh = shard.filter((pl.len().over(by) == rows) & ~pl.col(by).is_in(list(known)))
            if fresh.is_empty():
                continue
            if len(fresh) == len(shard):
                self.files[name] = StoredFile(sha256=sha256, size_bytes=len(data))
            else:
                self.write_shard(stem, fresh, schema)
            known |= set(fresh[by])
            frames.append(fresh)
        return pl.concat(frames) if frames else None

    @contextmanager
    def folder(self, scratch: Path, watch: Watch | None = None) -> Generator[Path, None, None]:
        """Yields an empty local folder whose files become the artifact's, for child processes to write into.

        On a directory store it is the attempt's own folder, so that large files are written once. Where the block
        fails, the folder goes: no other attempt knows its name.

        Args:
            scratch: Where the folder is made if the files have to be uploaded.
            watch: Given the bytes of an upload when it begins; what it returns is told of each part.
        """
        self.slot.before_writing()
        local = self.slot.store.local_path(self.prefix)
        if local is not None:
            _make_folder(local)
            try:
                yield local
                self.files.update(_measure(local))
            except BaseException:
                _discard(local, self.prefix)
                raise
            return
        staging = Path(tempfile.mkdtemp(dir=scratch, prefix="upload-"))
        try:
            yield staging
            total_bytes = sum(path.stat().st_size for path in staging.rglob("*") if path.is_file())
            progress = watch(total_bytes) if watch else None
            for name, digest in self.slot.store.upload_tree(staging, self.prefix, progress).items():
                self.files[name] = StoredFile(sha256=digest.sha256, size_bytes=digest.size_bytes)
        finally:
            shutil.rmtree(staging, ignore_errors=True)

    def publish(self, facts: Mapping[str, Any] | None = None, **inputs: Ref[Any] | None) -> Ref[K]:
        """Writes the manifest, create-only. Where another attempt was first, its artifact is the result.

        Args:
            facts: What the stage measured, JSON without NaN.
            **inputs: The refs behind the identity's inputs, for lineage.

        Raises:
            IdentityMismatchError: Another attempt published under another identity meanwhile.
        """
        manifest = Manifest(
            kind=self.slot.kind.__name__,
            identity=StoredIdentity(**self.identity.as_json()),
            identity_digest=self.identity.digest,
            attempt=self.name,
            digest=content_digest(self.files),
            files=self.files,
            inputs={role: ref.as_json() for role, ref in inputs.items() if ref is not None},
            facts=dict(facts or {}),
            provenance={**provenance(), "seconds": round(time.perf_counter() - self._started, 3)},
        )
        for _ in range(2):  # a second time where the first found an artifact that a renewal sets aside
            if self.slot.store.create_bytes(f"{self.slot.key}/{MANIFEST_NAME}", manifest.to_bytes()):
                return Ref(manifest.kind, self.slot.key, manifest.digest)
            if winner := self.slot.find(self.identity):
                return winner
        raise IdentityMismatchError(self.slot.key, "a manifest that came and went", "one writer", "run again")


def _make_folder(folder: Path) -> None:
    for last in (False,) * 20 + (True,):  # another writer may remove an empty folder above it at the same time
        try:
            folder.mkdir(parents=True)
        except FileNotFoundError:
            if last:
                raise
        else:
            return


def _discard(folder: Path, key: str) -> None:
    """Removes a folder of a directory store, and those above it, up to the store's own, that become empty."""
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):  # not empty: others write there
        for _ in key.split("/")[1:]:
            folder = folder.parent
            folder.rmdir()


def _json_bytes(value: object) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _measure(folder: Path) -> dict[str, StoredFile]:
    """Digests of the files that stand in a folder of the store; the disk has them before a manifest names them."""
    measured: dict[str, StoredFile] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_dir():
            synchronise_folder(path)
            continue
        with path.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
            os.fsync(stream.fileno())
        measured[path.relative_to(folder).as_posix()] = StoredFile(sha256=digest, size_bytes=path.stat().st_size)
    synchronise_folder(folder)
    return measured
