"""Verifies a store: hashes every file again, which finds every flipped bit."""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from artifacts.documents.checksums import SUMS_NAME, read_sums
from artifacts.documents.self_checksum import check_seal, checksum_in_name
from artifacts.errors import BadInputError, IntegrityError
from artifacts.layout import MANIFEST_NAME, is_sealed
from artifacts.local.input_files import LARGEST_TABLE
from artifacts.manifest import Manifest
from artifacts.store.keys import Stray, shown
from artifacts.store.store import LeadsOutError, MissingKeyError, Store

_PARALLEL_READS = 4


@dataclass(frozen=True)
class Damage:
    """A file that is missing or has changed since it was written.

    Attributes:
        file: Its key.
        found: Its present state, such as a checksum.
        expected: Its state when it was written.
    """

    file: str
    found: str
    expected: str


@contextmanager
def noted(damaged: list[Damage] | None, file: str) -> Generator[None]:
    """Returns a context manager that turns an error about a damaged artifact into an entry of `damaged`.

    Args:
        damaged: The list; None raises the error instead.
        file: Key of the artifact or of its file, for the entry.
    """
    try:
        yield
    except (IntegrityError, LeadsOutError) as error:
        if damaged is None:
            raise
        damaged.append(Damage(file, error.found, error.expected))


def listed(store: Store, prefix: str, damaged: list[Damage] | None) -> list[str]:
    """Returns the keys below a prefix; adds to `damaged` the links, sockets and files with impossible names there."""
    if damaged is None:
        return store.list(prefix)
    keys, strays = store.list_with_strays(prefix)
    damaged += stray_damages(strays)
    return keys


def stray_damages(strays: Iterable[Stray]) -> list[Damage]:
    """Returns an entry for each link, socket and file with an impossible name."""
    return [Damage(stray.path, stray.what, "files of the store") for stray in strays]


def damage_error(store: Store, damaged: Sequence[Damage]) -> IntegrityError:
    """Returns one error for all damaged files; it names the first one and counts the others."""
    first, more = damaged[0], f"; {len(damaged) - 1} more" if len(damaged) > 1 else ""
    return IntegrityError(
        f"{store.url}/{first.file}", first.found + more, first.expected,
        "restore it, or delete it and run again; `deerstalker verify` lists all damaged files",
    )  # fmt: skip


@dataclass
class Verification:
    """The result of a verification.

    Attributes:
        artifacts: Number of intact manifests.
        pruned: Number of intact manifests whose artifacts were pruned.
        files: Number of files that were read, manifests included.
        size_bytes: Total size of these files.
        damaged: Files that are missing or changed, and entries that do not belong in a store: symbolic links, sockets,
            impossible names.
        unchecked: Keys of files whose checksum is stated nowhere, such as those of unpublished attempts.
    """

    artifacts: int = 0
    pruned: int = 0
    files: int = 0
    size_bytes: int = 0
    damaged: list[Damage] = field(default_factory=list[Damage])
    unchecked: list[str] = field(default_factory=list[str])


@dataclass(frozen=True)
class _Stated:
    """The expected content of a file: its SHA-256 (hex), or the first digits of it, and its largest size in bytes."""

    sha256: str
    most_bytes: int


def verify(store: Store, progress: Callable[[int, int], None] | None = None) -> Verification:
    """Reads every file of a store and compares it with the checksum in its manifest, list of checksums or own name.

    Others may use the store at the same time: files that they remove or replace meanwhile do not count as damaged.

    Args:
        store: The store.
        progress: Called with the number of files that have been read and the total number.

    Raises:
        StoreError: The store cannot be read.
    """
    # Keys that begin with a dot belong to Prefect's database, which may be beside a directory store.
    result = Verification()
    keys = {key for key in listed(store, "", result.damaged) if not key.startswith(".")}
    result.damaged = [damage for damage in result.damaged if not (damage.file.startswith(".") and "/" in damage.file)]
    listings = sorted(key for key in keys if key.endswith((f"/{MANIFEST_NAME}", f"/{SUMS_NAME}")))
    stated: dict[str, _Stated] = {}
    stated_in: dict[str, str] = {}
    for listing in listings:
        checksums = _stated_by(store, listing, result)
        stated |= checksums
        stated_in |= dict.fromkeys(checksums, listing)
    for key in sorted(keys.difference(listings, stated)):
        if checksum := checksum_in_name(key):
            stated[key] = _Stated(checksum, LARGEST_TABLE)
        elif is_sealed(key):
            _check_sealed(store, key, result)
        else:
            result.unchecked.append(key)
    _check_content(store, stated, result, progress)
    result.damaged = [
        damage
        for damage in result.damaged
        if damage.file not in stated or _is_stated(store, damage.file, stated[damage.file], stated_in.get(damage.file))
    ]
    result.damaged.sort(key=lambda damage: damage.file)
    return result


def _stated_by(store: Store, listing: str, result: Verification) -> dict[str, _Stated]:
    """Returns the checksums that a manifest or a list of checksums states, by key; none if it is damaged or gone."""
    of_manifest = listing.endswith(f"/{MANIFEST_NAME}")
    try:
        data = _counted(store.read_bytes(listing), result)
        return _of_manifest(data, listing, result) if of_manifest else _of_sums(data, listing)
    except MissingKeyError:  # removed since the store was listed
        return {}
    except IntegrityError as error:
        result.damaged.append(Damage(listing, error.found, error.expected))
        return {}


def _of_manifest(data: bytes, key: str, result: Verification) -> dict[str, _Stated]:
    manifest = Manifest.from_bytes(data, key)
    result.artifacts += 1
    if manifest.pruned:
        result.pruned += 1
        return {}
    folder = f"{key.removesuffix(MANIFEST_NAME)}{manifest.attempt}"
    return {f"{folder}/{name}": _Stated(file.sha256, file.size_bytes) for name, file in manifest.files.items()}


def _of_sums(data: bytes, key: str) -> dict[str, _Stated]:
    folder, checksums = key.removesuffix(SUMS_NAME), read_sums(data, key)
    return {f"{folder}{name}": _Stated(sha256, LARGEST_TABLE) for name, sha256 in checksums.items()}


def _is_stated(store: Store, key: str, stated: _Stated, listing: str | None) -> bool:
    """Returns whether a file should still have a checksum, which a listing or (if it is None) its own name states."""
    return store.exists(key) if listing is None else _stated_by(store, listing, Verification()).get(key) == stated


def _check_sealed(store: Store, key: str, result: Verification) -> None:
    """Checks a file that carries its own checksum, because it may be overwritten."""
    try:
        check_seal(_counted(store.read_bytes(key), result), key)
    except MissingKeyError:  # removed since the store was listed
        return
    except IntegrityError as error:
        result.damaged.append(Damage(key, error.found, error.expected))


def _check_content(
    store: Store, stated: Mapping[str, _Stated], result: Verification, progress: Callable[[int, int], None] | None
) -> None:
    with ThreadPoolExecutor(_PARALLEL_READS, thread_name_prefix="verify") as pool:
        checked = pool.map(partial(_check, store), stated, stated.values())
        for number, (size_bytes, damage) in enumerate(checked, 1):
            result.files += 1
            result.size_bytes += size_bytes
            result.damaged += damage
            if progress:
                progress(number, len(stated))


def _check(store: Store, key: str, stated: _Stated) -> tuple[int, list[Damage]]:
    sha256 = stated.sha256
    try:
        actual = store.digest(key, stated.most_bytes)
    except MissingKeyError:
        return 0, [Damage(key, "the file is missing", f"SHA-256 {sha256}")]
    except (BadInputError, IntegrityError, LeadsOutError) as error:
        return 0, [Damage(shown(key), error.found, f"SHA-256 {sha256}")]
    if actual.size_bytes > stated.most_bytes:
        return actual.size_bytes, [Damage(key, f"more than {stated.most_bytes} bytes", f"SHA-256 {sha256}")]
    intact = actual.sha256.startswith(sha256)
    return actual.size_bytes, [] if intact else [Damage(key, f"SHA-256 {actual.sha256}", sha256)]


def _counted(data: bytes, result: Verification) -> bytes:
    result.files += 1
    result.size_bytes += len(data)
    return data
