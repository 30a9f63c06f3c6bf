"""Hashing everything a store holds again, so that no flipped bit goes unnoticed."""

import re
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from artifacts.errors import BadInputError, IntegrityError
from artifacts.manifest import MANIFEST_NAME, Manifest
from artifacts.seal import check_seal
from artifacts.store import LeadsOutError, MissingKeyError, Store
from artifacts.store_keys import shown
from artifacts.sums import SUMS_NAME, read_sums

_PARALLEL_READS = 4
_SHARD = re.compile(r".*-([0-9a-f]{16})\.(?:parquet|json)")


@dataclass(frozen=True)
class Damage:
    """A file that is not what it was when it was written.

    Attributes:
        file: Its key.
        found: What is there now.
        expected: What was there.
    """

    file: str
    found: str
    expected: str


@contextmanager
def noted(damaged: list[Damage] | None, file: str) -> Generator[None]:
    """Adds an artifact to `damaged` where the block finds it damaged; with None the error goes on.

    Args:
        file: The artifact's key, or that of its file.
    """
    try:
        yield
    except (IntegrityError, LeadsOutError) as error:
        if damaged is None:
            raise
        damaged.append(Damage(file, error.found, error.expected))


def noted_strays(store: Store, prefix: str, damaged: list[Damage]) -> None:
    """Adds what stands below a prefix and is no file of the store: symbolic links, sockets, impossible names."""
    damaged += [Damage(stray.path, stray.what, "files of the store") for stray in store.strays(prefix)]


def damage_error(store: Store, damaged: Sequence[Damage]) -> IntegrityError:
    """One error for all that is damaged, which names the first of it."""
    first, more = damaged[0], f"; {len(damaged) - 1} more" if len(damaged) > 1 else ""
    return IntegrityError(
        f"{store.url}/{first.file}", first.found + more, first.expected,
        "restore it, or delete it and run again; `deerstalker verify` names all that is damaged",
    )  # fmt: skip


@dataclass
class Verification:
    """What was found.

    Attributes:
        artifacts: Manifests that are intact.
        pruned: How many of them belong to artifacts whose files were removed on purpose.
        files: Files that were read, manifests included.
        size_bytes: Their size.
        damaged: Files that are gone or changed, and what no store has: symbolic links, sockets, impossible names.
        unchecked: Files for which nothing states a checksum: attempts that have not been published.
    """

    artifacts: int = 0
    pruned: int = 0
    files: int = 0
    size_bytes: int = 0
    damaged: list[Damage] = field(default_factory=list[Damage])
    unchecked: list[str] = field(default_factory=list[str])


def verify(store: Store, progress: Callable[[int, int], None] | None = None) -> Verification:
    """Reads every file of a store and compares it with what its manifest, list of checksums or own name states.

    Args:
        progress: Told how many of how many files have been read.

    Raises:
        StoreError: The store cannot be read.
    """
    # Keys that begin with a dot are no artifacts: Prefect's database beside a directory store.
    keys = {key for key in store.list() if not key.startswith(".")}
    found = Verification()
    noted_strays(store, "", found.damaged)
    found.damaged = [damage for damage in found.damaged if not (damage.file.startswith(".") and "/" in damage.file)]
    stated: dict[str, str] = {}
    for key in sorted(keys):
        match key.rpartition("/")[2]:
            case name if name == MANIFEST_NAME:
                stated |= _of_manifest(store, key, found)
            case name if name == SUMS_NAME:
                stated |= _of_sums(store, key, found)
            case _:
                pass
    books = {key for key in keys if key.endswith((f"/{MANIFEST_NAME}", f"/{SUMS_NAME}"))}
    for key in sorted(keys - books - stated.keys()):
        if shard := _SHARD.fullmatch(key):
            stated[key] = shard[1]
        elif key.endswith("/promoted.json") or "/renewals/" in key:
            _check_pointer(store, key, found)
        else:
            found.unchecked.append(key)
    _check_content(store, stated, found, progress)
    found.damaged.sort(key=lambda damage: damage.file)
    return found


def _of_manifest(store: Store, key: str, found: Verification) -> dict[str, str]:
    data = _counted(store.read_bytes(key), found)
    try:
        manifest = Manifest.from_bytes(data, key)
    except IntegrityError as error:
        found.damaged.append(Damage(key, error.found, error.expected))
        return {}
    found.artifacts += 1
    if manifest.pruned:
        found.pruned += 1
        return {}
    folder = f"{key.removesuffix(MANIFEST_NAME)}{manifest.attempt}"
    return {f"{folder}/{name}": file.sha256 for name, file in manifest.files.items()}


def _of_sums(store: Store, key: str, found: Verification) -> dict[str, str]:
    data = _counted(store.read_bytes(key), found)
    try:
        sums = read_sums(data, key)
    except IntegrityError as error:
        found.damaged.append(Damage(key, error.found, error.expected))
        return {}
    return {f"{key.removesuffix(SUMS_NAME)}{name}": sha256 for name, sha256 in sums.items()}


def _check_pointer(store: Store, key: str, found: Verification) -> None:
    """What is written over carries its checksum itself: a pointer, a request that is done."""
    try:
        check_seal(_counted(store.read_bytes(key), found), key)
    except IntegrityError as error:
        found.damaged.append(Damage(key, error.found, error.expected))


def _check_content(
    store: Store, stated: Mapping[str, str], found: Verification, progress: Callable[[int, int], None] | None
) -> None:
    with ThreadPoolExecutor(_PARALLEL_READS, thread_name_prefix="verify") as pool:
        checked = pool.map(partial(_check, store), stated, stated.values())
        for number, (size_bytes, damage) in enumerate(checked, 1):
            found.files += 1
            found.size_bytes += size_bytes
            found.damaged += damage
            if progress:
                progress(number, len(stated))


def _check(store: Store, key: str, sha256: str) -> tuple[int, list[Damage]]:
    try:
        actual = store.digest(key)
    except MissingKeyError:
        return 0, [Damage(key, "the file is gone", f"SHA-256 {sha256}")]
    except (BadInputError, LeadsOutError) as error:
        return 0, [Damage(shown(key), error.found, f"SHA-256 {sha256}")]
    intact = actual.sha256.startswith(sha256)
    return actual.size_bytes, [] if intact else [Damage(key, f"SHA-256 {actual.sha256}", sha256)]


def _counted(data: bytes, found: Verification) -> bytes:
    found.files += 1
    found.size_bytes += len(data)
    return data
