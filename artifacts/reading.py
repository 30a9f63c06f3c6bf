"""Reads published artifacts. Every file is checked against its manifest before it is used."""

import hashlib
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from artifacts.activity import doing
from artifacts.errors import BadInputError, IntegrityError, NotPublishedError
from artifacts.layout import manifest_key
from artifacts.manifest import Manifest
from artifacts.refs import Kind, Ref
from artifacts.schemas import TableSchema, validated
from artifacts.store.keys import shown
from artifacts.store.store import FileDigest, MissingKeyError, StartProgress, Store
from artifacts.store.transfer import digests_of_files

_verified: dict[tuple[str, str, str, Path | None], tuple[Path, list[tuple[int, int, int]]]] = {}
"""Local folders that this process has verified, with the stamps of their files, by store, key, digest and cache."""


def is_published(store: Store, key: str) -> bool:
    """Returns whether an artifact is published under a key."""
    return store.exists(manifest_key(key))


class Artifact:
    """A published artifact, opened for reading."""

    def __init__(self, store: Store, key: str, manifest: Manifest) -> None:
        self.store, self.key, self.manifest = store, key, manifest

    @classmethod
    def open(cls, store: Store, ref: Ref[Any]) -> "Artifact":
        """Opens the artifact that a ref names.

        Raises:
            BadInputError: No artifact is published under the ref's key.
            IntegrityError: The manifest is damaged, or the artifact's digest is not the ref's.
        """
        artifact = cls.at(store, ref.key)
        if artifact.manifest.digest != ref.digest:
            raise IntegrityError(
                f"{store.url}/{ref.key}", f"content {artifact.manifest.digest}", ref.digest, "the artifact was replaced"
            )
        return artifact

    @classmethod
    def at(cls, store: Store, key: str, kind: type[Kind] | None = None) -> "Artifact":
        """Opens the artifact that is published under a key.

        Args:
            store: The store.
            key: Folder of the artifact in the store.
            kind: Kind that the artifact must have; None for any kind.

        Raises:
            NotPublishedError: No artifact is published under the key.
            IntegrityError: The manifest is damaged, or belongs to an artifact of another kind.
        """
        try:
            data = store.read_bytes(manifest_key(key))
        except MissingKeyError as error:
            raise NotPublishedError(
                f"{store.url}/{key}", "no manifest", "a published artifact", "check the address with `deerstalker show`"
            ) from error
        manifest = Manifest.from_bytes(data, f"{store.url}/{manifest_key(key)}")
        if kind is not None and manifest.kind != kind.__name__:
            raise IntegrityError(
                f"{store.url}/{key}", f"the manifest of a {shown(manifest.kind)}", f"that of a {kind.__name__}",
                "the manifest of another artifact was copied here: restore it, or delete the folder and run again",
            )  # fmt: skip
        return cls(store, key, manifest)

    @property
    def ref(self) -> Ref[Any]:
        """The ref that names this artifact."""
        return Ref(self.manifest.kind, self.key, self.manifest.digest)

    def names(self, suffix: str = "") -> list[str]:
        """Returns the names of the artifact's files that end in `suffix`, sorted."""
        return sorted(name for name in self.manifest.files if name.endswith(suffix))

    def read_bytes(self, name: str) -> bytes:
        """Returns the content of one file.

        Raises:
            BadInputError: The artifact's files were pruned.
            IntegrityError: The artifact has no such file, or the file's checksum fails.
        """
        self.check_not_pruned()
        where = f"{self.store.url}/{self.key}/{self.manifest.attempt}/{name}"
        stated = self.manifest.files.get(name)
        if stated is None:
            raise IntegrityError(where, "no such file in the manifest", ", ".join(self.names()))
        try:
            data = self.store.read_bytes(f"{self.key}/{self.manifest.attempt}/{name}", stated.size_bytes)
        except MissingKeyError as error:
            raise IntegrityError(where, "the file is missing", f"{stated.size_bytes} bytes", "restore it") from error
        actual = hashlib.sha256(data).hexdigest()
        if actual != stated.sha256:
            raise IntegrityError(where, f"SHA-256 {actual}", stated.sha256, "the file is damaged; restore or remake it")
        return data

    def read_json(self, name: str) -> Any:
        """Returns the value of one JSON file; errors are those of `read_bytes`."""
        return json.loads(self.read_bytes(name))

    def read_table(self, name: str, schema: TableSchema) -> pl.DataFrame:
        """Returns one table that obeys a schema.

        Raises:
            BadInputError: The artifact's files were pruned.
            IntegrityError: There is no such file, its checksum fails, or the table breaks the schema.
        """
        return validated(pl.read_parquet(io.BytesIO(self.read_bytes(name))), schema, f"{self.key}/{name}")

    def read_tables(self, schema: TableSchema) -> pl.DataFrame:
        """Returns all Parquet files of the artifact as one validated table; errors are those of `read_table`."""
        frames = [pl.read_parquet(io.BytesIO(self.read_bytes(name))) for name in self.names(".parquet")]
        if not frames:
            raise IntegrityError(f"{self.store.url}/{self.key}", "no tables", "at least one Parquet file")
        return validated(pl.concat(frames), schema, self.key)

    def local_folder(self, cache: Path, watch: StartProgress | None = None) -> Path:
        """Returns a local folder with all files of the artifact, verified.

        On a directory store it is the artifact's own folder, otherwise a copy under `cache`: the files that were
        uploaded from here, or a download. A process verifies each file once, and again if its inode, size or
        modification time differs.

        Args:
            cache: Parent folder of the copies, which are named by content digest.
            watch: Called with the size of a download in bytes when it begins. It returns a function that is called with
                the size of each part.

        Raises:
            BadInputError: The artifact's files were pruned.
            IntegrityError: A file is missing or its checksum fails.
        """
        self.check_not_pruned()
        prefix = f"{self.key}/{self.manifest.attempt}"
        folder = self.store.local_path(prefix)
        # Who copies removes its copies, so one that another context has made is not used.
        name = (self.store.url, self.key, self.manifest.digest, cache if folder is None else None)
        if name in _verified and _verified[name][1] == self._stamps(_verified[name][0]):
            return _verified[name][0]
        if folder is not None:
            self._check_local(folder)
        else:
            folder = cache / self.manifest.digest
            digests = {n: FileDigest(f.sha256, f.size_bytes) for n, f in self.manifest.files.items()}
            if not _holds(folder, digests):  # `Attempt.folder` may have kept the uploaded files
                progress = watch(sum(digest.size_bytes for digest in digests.values())) if watch else None
                self.store.download_tree(prefix, folder, digests, progress)
        _verified[name] = (folder, self._stamps(folder))
        return folder

    def _stamps(self, folder: Path) -> list[tuple[int, int, int]]:
        """Returns inode, size and modification time of each file that exists; a write changes them."""
        statuses = [(folder / name).stat() for name in self.names() if (folder / name).is_file()]
        return [(status.st_ino, status.st_size, status.st_mtime_ns) for status in statuses]

    def check_not_pruned(self) -> None:
        """Checks that the artifact still has its files.

        Raises:
            BadInputError: They were pruned.
        """
        if pruned := self.manifest.pruned:
            raise BadInputError(
                f"{self.store.url}/{self.key}",
                f"its files were pruned on {pruned.at[:10]} ({pruned.rule})",
                "an artifact with files",
                "use an artifact that was kept (see `deerstalker show`), or train again under another --run name",
            )

    @doing("store")
    def _check_local(self, folder: Path) -> None:
        stated = self.manifest.files
        for name in self.names():
            path, size_bytes = folder / name, stated[name].size_bytes
            if not path.is_file():
                raise IntegrityError(str(path), "the file is missing", f"{size_bytes} bytes", "restore it")
            if (found := path.stat().st_size) != size_bytes:  # found at once, even for an endless file
                raise IntegrityError(str(path), f"{found} bytes", f"{size_bytes} bytes", "restore it")
        for name, actual in zip(self.names(), digests_of_files([folder / name for name in self.names()]), strict=True):
            if actual.sha256 != stated[name].sha256:
                where, problem = str(folder / name), f"SHA-256 {actual.sha256}"
                raise IntegrityError(where, problem, stated[name].sha256, "the file is damaged; restore it")


@doing("store")
def _holds(folder: Path, digests: Mapping[str, FileDigest]) -> bool:
    """Returns whether a folder has all files with the content that their digests state."""
    paths = [folder / name for name in digests]
    return all(path.is_file() for path in paths) and digests_of_files(paths) == list(digests.values())
