"""Publishes artifacts: an attempt writes files into its own folder and the manifest last."""

import io
import json
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Generic

import polars as pl

from artifacts.activity import doing, spans_since
from artifacts.documents.self_checksum import shard_name
from artifacts.documents.store_format import FORMAT_VERSION
from artifacts.errors import IdentityMismatchError, NotPublishedError
from artifacts.identity import Identity, differences
from artifacts.layout import REFRESHED_NAME, RunLayout, attempt_name, manifest_key, progress_name
from artifacts.local.input_files import LARGEST_TABLE
from artifacts.manifest import Manifest, StoredFile, content_digest
from artifacts.provenance import provenance
from artifacts.refresh import Refresh
from artifacts.refs import K, Ref
from artifacts.schemas import TableSchema, validated
from artifacts.store.directory import synchronise_folder
from artifacts.store.store import MissingKeyError, StartProgress, Store
from artifacts.store.transfer import digests_of_files


class ArtifactAddress(Generic[K]):
    """An address in a store where one artifact of one kind can be published, once.

    Args:
        store: The store.
        key: Folder of the artifact in the store.
        kind: Kind of the artifact.
        refresh: Stages to run again. If they outdate a published artifact, `find` refreshes it: the manifest moves to
            the artifact's files, which stay.
        before_writing: Called before an attempt stores a file; an error that it raises prevents the write.
        label: Suffix of the names of task runs, such as `0003` in `sample-0003`.
        must_exist: Whether `find` raises NotPublishedError instead of returning None, so that nothing is made here.
    """

    def __init__(
        self,
        store: Store,
        key: str,
        kind: type[K],
        refresh: Refresh | None = None,
        before_writing: Callable[[], None] = lambda: None,
        label: str = "",
        *,
        must_exist: bool = False,
    ) -> None:
        self.store, self.key, self.kind, self.refresh = store, key, kind, refresh
        self.before_writing, self.label, self.must_exist = before_writing, label, must_exist
        self._looked_up_at = time.perf_counter()

    def find(self, identity: Identity) -> Ref[K] | None:
        """Returns the artifact published here under this identity; None if there is none or `refresh` outdates it.

        Raises:
            DeerstalkerError: As for `find_manifest`.
        """
        manifest = self.find_manifest(identity)
        return None if manifest is None else Ref(manifest.kind, self.key, manifest.digest, reused=True)

    def find_manifest(self, identity: Identity) -> Manifest | None:
        """Returns the manifest of the artifact that `find` returns.

        Raises:
            IdentityMismatchError: The artifact that is published here was made with another config or other inputs.
            IntegrityError: The manifest is damaged.
            NotPublishedError: There is none that may stay, and the address `must_exist`.
            StoreError: The store cannot be read, so it is not known whether there is an artifact.
        """
        self._looked_up_at = time.perf_counter()
        try:
            data = self.store.read_bytes(manifest_key(self.key))
        except MissingKeyError:
            if self.must_exist:
                raise NotPublishedError(self.key, "no artifact that may stay") from None
            return None
        manifest = Manifest.from_bytes(data, f"{self.store.url}/{manifest_key(self.key)}")
        if self.refresh and self.refresh.outdates(manifest, identity):
            if self.must_exist:
                raise NotPublishedError(self.key, "no artifact that may stay")
            self.store.write_bytes(f"{self.key}/{manifest.attempt}/{REFRESHED_NAME}", data)
            if not self._is_still(data):
                return self.find_manifest(identity)  # another process has made it again meanwhile
            self.store.delete(manifest_key(self.key))
            return None
        if manifest.identity_digest == identity.digest:
            return manifest
        if changes := differences(manifest.identity.model_dump(), identity.model_dump()):  # else a new setting is null
            only_inputs = all(change.startswith("inputs.") for change in changes)
            raise IdentityMismatchError(
                f"{self.store.url}/{self.key}",
                f"an artifact made with other {'inputs' if only_inputs else 'settings or inputs'}: "
                + "; ".join(changes[:6]),
                f"identity {identity.digest[:12]}",
                f"use another run name, or restore {'the files' if only_inputs else 'the recipe'} that made "
                + (f"these inputs{self._refreshed_by(identity)}" if only_inputs else "it"),
            )
        return manifest

    def attempt(self, identity: Identity, *, resumable: bool = False) -> "Attempt[K]":
        """Returns a new attempt at making the artifact.

        Args:
            identity: Identity of the stage execution.
            resumable: Whether all attempts under this identity share a folder, so that a retry finds the files of an
                interrupted one. Use it only for files with their checksum in the name (`write_shard`), because another
                writer may use the folder at the same time, or may have published its files.
        """
        name = self._progress_name(identity) if resumable else attempt_name(uuid.uuid4().hex)
        return Attempt(self, identity, name, self._looked_up_at, shared=resumable)

    def progress_key(self, identity: Identity) -> str:
        """Returns the key of the folder that all resumable attempts under an identity share."""
        return f"{self.key}/{self._progress_name(identity)}"

    def _refreshed_by(self, identity: Identity) -> str:
        """Returns the command that makes the artifact again from other inputs; empty if it belongs to no iteration."""
        layout = RunLayout.of(self.key)
        number = layout and layout.iteration_of(self.key)
        if layout is None or number is None:
            return ""
        return (
            f", or let `deerstalker iterate {layout.run} --until N --refresh {identity.stage}@{number}` make it again"
        )

    def _is_still(self, manifest: bytes) -> bool:
        try:
            return self.store.read_bytes(manifest_key(self.key)) == manifest
        except MissingKeyError:
            return False

    def _progress_name(self, identity: Identity) -> str:
        return progress_name(identity, self.refresh.label(identity.stage) if self.refresh else "")


class Attempt(Generic[K]):
    """Files that `publish` turns into an artifact; no stage reads them before that.

    Attributes:
        started: Time (`time.perf_counter`) from which the manifest counts the seconds that the artifact took.
    """

    def __init__(
        self, address: ArtifactAddress[K], identity: Identity, name: str, started: float, *, shared: bool = False
    ) -> None:
        self.address, self.identity, self.name, self.started = address, identity, name, started
        self._shared = shared
        self.files: dict[str, StoredFile] = {}

    @property
    def prefix(self) -> str:
        """The key of the attempt's folder."""
        return f"{self.address.key}/{self.name}"

    def write_bytes(self, name: str, data: bytes) -> None:
        """Stores one file."""
        self.address.before_writing()
        self.address.store.write_bytes(f"{self.prefix}/{name}", data)
        self.files[name] = StoredFile.of(data)

    def write_json(self, name: str, value: object) -> None:
        """Stores a value as readable JSON.

        Raises:
            ValueError: The value holds a NaN or an infinity.
        """
        self.write_bytes(name, _json_bytes(value))

    def write_table(self, name: str, frame: pl.DataFrame, schema: TableSchema) -> None:
        """Validates a table and stores it as Parquet.

        Raises:
            IntegrityError: The table breaks its schema.
        """
        self.write_bytes(name, _parquet_bytes(frame, schema, f"{self.prefix}/{name}"))

    def write_shard(self, stem: str, frame: pl.DataFrame, schema: TableSchema) -> None:
        """Validates a table and stores it as Parquet under a name that contains its checksum.

        A retry checks the checksum before it adopts the table.

        Raises:
            IntegrityError: The table breaks its schema.
        """
        self._write_summed(stem, ".parquet", _parquet_bytes(frame, schema, f"{self.prefix}/{stem}"))

    def write_json_shard(self, stem: str, value: object) -> None:
        """Stores a value as JSON under a name that contains its checksum, so it overwrites no other writer's file.

        Raises:
            ValueError: The value holds a NaN or an infinity.
        """
        self._write_summed(stem, ".json", _json_bytes(value))

    def _write_summed(self, stem: str, suffix: str, data: bytes) -> None:
        self.write_bytes(shard_name(stem, suffix, data), data)

    def adopt_shards(self, stem: str, schema: TableSchema, *, by: str, rows: int) -> pl.DataFrame | None:
        """Adopts each complete group of rows from the shards of interrupted attempts and other writers, once.

        If several shards contain a group, the first shard by name provides it. If only some groups of a shard are new,
        they are stored as another shard, so no group is twice in the attempt's files. Shards whose checksum fails and
        groups that lack rows are ignored.

        Args:
            stem: Beginning of the shards' names.
            schema: Schema of the shards.
            by: Column that names a row's group.
            rows: Number of rows of a complete group.

        Returns:
            The adopted rows; None if there are none.
        """
        # The attempt's own shards are among those in the store, and are treated like those of other writers.
        self.files = {name: file for name, file in self.files.items() if not name.startswith(f"{stem}-")}
        adopted: set[Any] = set()
        frames: list[pl.DataFrame] = []
        known_types: list[pl.Schema] = []
        for key in self.address.store.list(self.prefix):
            name = key.removeprefix(f"{self.prefix}/")
            if not name.startswith(f"{stem}-"):
                continue
            data = self.address.store.read_bytes(key, LARGEST_TABLE)
            if name != shard_name(stem, ".parquet", data):
                continue
            shard = pl.read_parquet(io.BytesIO(data))
            if shard.schema not in known_types:  # a validation takes 20 ms, and there may be thousands of small shards
                known_types.append(validated(shard, schema, key).schema)
            new_groups = shard.filter((pl.len().over(by) == rows) & ~pl.col(by).is_in(list(adopted)))
            if new_groups.is_empty():
                continue
            if len(new_groups) == len(shard):
                self.files[name] = StoredFile.of(data)
            else:
                self.write_shard(stem, new_groups, schema)
            adopted |= set(new_groups[by])
            frames.append(new_groups)
        return validated(pl.concat(frames), schema, self.prefix) if frames else None

    @contextmanager
    def folder(
        self, scratch: Path, watch: StartProgress | None = None, *, keep: Path | None = None
    ) -> Generator[Path, None, None]:
        """Yields an empty local folder for the artifact's files, which child processes may write.

        On a directory store it is the attempt's own folder, so that large files are written once. The folder is deleted
        if the block fails, because no other attempt knows its name.

        Args:
            scratch: Parent of the folder if the files have to be uploaded.
            watch: Called with the size of an upload in bytes when it begins. It returns a function that is called with
                the size of each part.
            keep: Parent folder of local copies, as for `Artifact.local_folder`; the uploaded files stay there, so that
                the next stage need not download them.
        """
        self.address.before_writing()
        local = self.address.store.local_path(self.prefix)
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
            for name, digest in self.address.store.upload_tree(staging, self.prefix, progress).items():
                self.files[name] = StoredFile(sha256=digest.sha256, size_bytes=digest.size_bytes)
            if keep is not None:
                with suppress(OSError):  # another attempt with the same content has left its copy
                    staging.rename(keep / content_digest(self.files))
        finally:
            shutil.rmtree(staging, ignore_errors=True)

    def publish(self, facts: Mapping[str, Any] | None = None, **inputs: Ref[Any] | None) -> Ref[K]:
        """Writes the manifest unless there is one, and returns the published artifact.

        If another attempt under the same identity was published first, its artifact is returned.

        Args:
            facts: Measurements and counts of the stage, JSON without NaN.
            **inputs: Refs of the identity's inputs, by role, for lineage.

        Raises:
            IdentityMismatchError: Another attempt was published under another identity in the meantime.
        """
        manifest = Manifest(
            format_version=FORMAT_VERSION,
            kind=self.address.kind.__name__,
            identity=self.identity,
            identity_digest=self.identity.digest,
            attempt=self.name,
            digest=content_digest(self.files),
            files=self.files,
            inputs={role: ref.as_json() for role, ref in inputs.items() if ref is not None},
            facts=dict(facts or {}),
            provenance={
                **provenance(self.address.refresh.since if self.address.refresh else None),
                "seconds": round(time.perf_counter() - self.started, 3),
                "spans": spans_since(self.started),
            },
        )
        for _ in range(2):  # the second time if `find` removed an outdated manifest
            if self.address.store.create_bytes(manifest_key(self.address.key), manifest.to_bytes()):
                return Ref(manifest.kind, self.address.key, manifest.digest)
            if winner := self.address.find_manifest(self.identity):
                # A file server whose reply was lost is asked again, and then says that our own manifest is in the way.
                is_ours = winner.attempt == self.name and not self._shared
                return Ref(winner.kind, self.address.key, winner.digest, reused=not is_ours)
        raise IdentityMismatchError(
            self.address.key, "a manifest that another process writes and deletes", "one writer", "run again"
        )


def _make_folder(folder: Path) -> None:
    for last in (False,) * 20 + (True,):  # another writer may remove an empty parent folder at the same time
        try:
            folder.mkdir(parents=True)
        except FileNotFoundError:
            if last:
                raise
        else:
            return


def _discard(folder: Path, key: str) -> None:
    """Removes a folder of a directory store, and each parent below the store's root that becomes empty."""
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):  # a folder that is not empty: others write there
        for _ in key.split("/")[1:]:
            folder = folder.parent
            folder.rmdir()


def _parquet_bytes(frame: pl.DataFrame, schema: TableSchema, where: str) -> bytes:
    buffer = io.BytesIO()
    validated(frame, schema, where).write_parquet(buffer, compression="zstd")
    return buffer.getvalue()


def _json_bytes(value: object) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


@doing("store")
def _measure(folder: Path) -> dict[str, StoredFile]:
    """Flushes the files of a folder to disk, before a manifest names them, and returns their digests."""
    paths = sorted(folder.rglob("*"))
    files = [path for path in paths if not path.is_dir()]
    digests = digests_of_files(files, flush=True)
    for path in (*(path for path in paths if path.is_dir()), folder):
        synchronise_folder(path)
    return {
        path.relative_to(folder).as_posix(): StoredFile(sha256=digest.sha256, size_bytes=digest.size_bytes)
        for path, digest in zip(files, digests, strict=True)
    }
