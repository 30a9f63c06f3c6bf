"""Publishing and reading: what has no manifest does not exist, and what is damaged is named."""

import hashlib
import os
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path

import polars as pl
import pytest
from pydantic import BaseModel

from artifacts import activity
from artifacts.activity import Activity, doing, note
from artifacts.address import ArtifactAddress
from artifacts.errors import BadInputError, IdentityMismatchError, IntegrityError
from artifacts.identity import Identity
from artifacts.reading import Artifact
from artifacts.refs import Batch, Grades, Puzzles, Ref
from artifacts.schemas import GRADES, as_table
from artifacts.store.directory import DirectoryBackend
from artifacts.store.store import MissingKeyError, Store


class Settings(BaseModel):
    size: int = 3


def identity(size: int = 3, **inputs: Ref[Puzzles]) -> Identity:
    return Identity.of("grade", 1, Settings(size=size), **inputs)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(str(tmp_path / "store"))


@pytest.fixture
def address(store: Store) -> ArtifactAddress[Grades]:
    return ArtifactAddress(store, "runs/r/iterations/0001/grades", Grades)


def grades_table(reward: float = 0.5, accuracy: float = 0.5) -> pl.DataFrame:
    row = {
        "prompt_id": "p",
        "group": 0,
        "sample": 0,
        "accuracy": accuracy,
        "exact": False,
        "truncated": False,
        "reward": reward,
        "advantage": 0.0,
        "answers": "{}",
        "grader": "strict",
    }
    return as_table([row], GRADES)


def publish(address: ArtifactAddress[Grades], reward: float = 0.5, size: int = 3) -> Ref[Grades]:
    attempt = address.attempt(identity(size))
    attempt.write_table("grades.parquet", grades_table(reward), GRADES)
    return attempt.publish({"reward/mean": reward})


def test_a_published_artifact_is_found_and_read_back(store: Store, address: ArtifactAddress[Grades]) -> None:
    assert address.find(identity()) is None
    made = publish(address)
    again = address.find(identity())
    assert again == made
    assert again is not None and again.reused and not made.reused
    assert Artifact.open(store, again).read_tables(GRADES)["reward"].to_list() == [0.5]
    assert Artifact.open(store, again).manifest.facts == {"reward/mean": 0.5}


def test_files_without_a_manifest_do_not_exist(store: Store, address: ArtifactAddress[Grades]) -> None:
    address.attempt(identity()).write_table("grades.parquet", grades_table(), GRADES)
    assert address.find(identity()) is None
    with pytest.raises(BadInputError, match="no manifest"):
        Artifact.at(store, address.key)


def test_another_config_at_the_same_address_is_refused_with_the_difference(address: ArtifactAddress[Grades]) -> None:
    publish(address)
    with pytest.raises(IdentityMismatchError, match=r"config.size: 3 -> 4.*another run name"):
        address.find(identity(size=4))


def test_the_digest_covers_content_only(store: Store, address: ArtifactAddress[Grades]) -> None:
    elsewhere = ArtifactAddress(store, "runs/other/grades", Grades)
    assert publish(address).digest == publish(elsewhere, size=9).digest
    assert (
        publish(ArtifactAddress(store, "runs/third/grades", Grades), reward=0.25).digest
        != publish(elsewhere, size=9).digest
    )


def test_identity_follows_config_and_inputs_and_nothing_else() -> None:
    first, second = Ref[Puzzles]("Puzzles", "a", "0" * 64), Ref[Puzzles]("Puzzles", "b", "0" * 64)
    other = Ref[Puzzles]("Puzzles", "a", "1" * 64)
    assert identity(puzzles=first).digest == identity(puzzles=second).digest  # an address is not content
    assert (
        len({identity().digest, identity(4).digest, identity(puzzles=first).digest, identity(puzzles=other).digest})
        == 4
    )
    # SHA-256 of {"config":{"size":3},"inputs":{},"revision":1,"stage":"grade"}, from the command line's sha256sum
    assert identity().digest == "cfa3ba20324d7e698a0b77a4c2fe594e47b99bd1d13b5080f674b92061ac3028"


def test_the_loser_of_a_race_returns_the_winners_artifact(address: ArtifactAddress[Grades]) -> None:
    attempts = [address.attempt(identity()) for _ in range(8)]
    refs: list[Ref[Grades]] = []
    for number, attempt in enumerate(attempts):
        attempt.write_table("grades.parquet", grades_table(number / 8), GRADES)
    threads = [threading.Thread(target=lambda a=attempt: refs.append(a.publish())) for attempt in attempts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({ref.digest for ref in refs}) == 1
    assert sum(not ref.reused for ref in refs) == 1


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove"])
def test_a_damaged_file_is_named(store: Store, address: ArtifactAddress[Grades], damage: str) -> None:
    ref = publish(address)
    (key,) = [key for key in store.list(address.key) if key.endswith(".parquet")]
    path = store.local_path(key)
    assert path is not None
    data = path.read_bytes()
    if damage == "remove":
        path.unlink()
    else:
        path.write_bytes(data[:-10] if damage == "truncate" else data[:50] + bytes([data[50] ^ 1]) + data[51:])
    with pytest.raises(IntegrityError, match=r"grades\.parquet"):
        Artifact.open(store, ref).read_tables(GRADES)
    with pytest.raises(IntegrityError, match=r"grades\.parquet"):
        Artifact.open(store, ref).local_folder(path.parent)


def test_a_table_that_breaks_its_schema_is_not_written(address: ArtifactAddress[Grades]) -> None:
    with pytest.raises(IntegrityError, match="accuracy"):
        address.attempt(identity()).write_table("grades.parquet", grades_table(accuracy=1.5), GRADES)
    with pytest.raises(IntegrityError, match="reward"):
        address.attempt(identity()).write_table("grades.parquet", grades_table().drop("reward"), GRADES)


def test_an_altered_manifest_is_refused(store: Store, address: ArtifactAddress[Grades]) -> None:
    publish(address)
    key = f"{address.key}/manifest.json"
    store.write_bytes(key, store.read_bytes(key).replace(b'"size": 3', b'"size": 4'))
    with pytest.raises(IntegrityError, match="identity_digest"):
        address.find(identity(size=4))


def test_a_resumed_attempt_keeps_intact_shards_only(store: Store, address: ArtifactAddress[Grades]) -> None:
    first = address.attempt(identity(), resumable=True)
    first.write_shard("part", grades_table(0.25), GRADES)
    first.write_shard("part", grades_table(0.75), GRADES)
    key = next(key for key in store.list(address.key) if store.read_bytes(key).count(b"PAR1"))
    path = store.local_path(key)
    assert path is not None
    path.write_bytes(path.read_bytes()[:-1] + b"X")
    second = address.attempt(identity(), resumable=True)
    kept = second.adopt_shards("part", GRADES, by="prompt_id", rows=1)
    assert kept is not None and len(kept) == 1
    assert len(second.files) == 1


def test_what_is_written_in_place_is_on_the_disk_before_a_manifest_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synchronised: list[Path] = []
    fsync = os.fsync

    def noting(descriptor: int) -> None:
        fsync(descriptor)
        synchronised.append(Path(f"/proc/self/fd/{descriptor}").readlink())

    monkeypatch.setattr(os, "fsync", noting)
    address = ArtifactAddress(Store.open(str(tmp_path)), "a/b", Batch)
    attempt = address.attempt(Identity.of("pack", 1, {}))
    with attempt.folder(tmp_path / "scratch") as folder:
        (folder / "inner").mkdir()
        (folder / "inner" / "large").write_bytes(b"content")
    attempt.publish()
    *before, _, slot_folder = synchronised  # the last: the manifest under its first name, and where it was linked to
    assert {folder, folder / "inner", folder / "inner" / "large"} <= set(before)
    assert slot_folder == tmp_path / "a/b"


def test_each_of_many_files_has_its_own_checksum(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path / "store"))
    content = {f"layer-{n}/part": bytes([n]) * size for n, size in enumerate((0, 1, 300_000, 262_144, 5, 5))}
    attempt = ArtifactAddress(store, "a/b", Batch).attempt(Identity.of("pack", 1, {}))
    with attempt.folder(tmp_path) as folder:
        for name, data in content.items():
            (folder / name).parent.mkdir()
            (folder / name).write_bytes(data)
    artifact = Artifact.open(store, attempt.publish())
    stated = {name: (file.sha256, file.size_bytes) for name, file in artifact.manifest.files.items()}
    assert stated == {name: (hashlib.sha256(data).hexdigest(), len(data)) for name, data in content.items()}
    assert artifact.local_folder(tmp_path) == folder
    for name in ("layer-2/part", "layer-5/part"):
        (folder / name).write_bytes(content[name][:-1] + b"X")
        with pytest.raises(IntegrityError, match=rf"{name}: SHA-256"):
            artifact.local_folder(tmp_path)
        (folder / name).write_bytes(content[name])


def test_shards_that_overlap_are_adopted_so_that_each_group_counts_once(
    store: Store, address: ArtifactAddress[Grades]
) -> None:
    """Groups p, q and r of two rows in shards p q, q r, r p, and half of s: whichever comes first."""
    rows = pl.concat(
        grades_table().with_columns(prompt_id=pl.lit(name), sample=pl.lit(sample, pl.Int32))
        for name in "pqrs"
        for sample in range(2)
    )
    first = address.attempt(identity(), resumable=True)
    for letters in ("pq", "qr", "rps"):
        whole = rows.filter(pl.col("prompt_id").is_in(list(letters)))
        first.write_shard("part", whole.filter((pl.col("prompt_id") != "s") | (pl.col("sample") == 0)), GRADES)
    for attempt in (first, address.attempt(identity(), resumable=True)):  # what the first stored anew is there, too
        kept = attempt.adopt_shards("part", GRADES, by="prompt_id", rows=2)
        assert kept is not None
        assert kept.sort("prompt_id", "sample").equals(rows.filter(pl.col("prompt_id") != "s"))
    published = Artifact.open(store, attempt.publish()).read_tables(GRADES)
    assert published.sort("prompt_id", "sample").equals(rows.filter(pl.col("prompt_id") != "s"))
    assert attempt.adopt_shards("other", GRADES, by="prompt_id", rows=2) is None


def test_what_was_uploaded_is_not_downloaded_again(tmp_path: Path) -> None:
    """The local copy is read as long as its checksums hold; a damaged one is replaced from the store."""
    store, cache = Store.open("memory://kept"), tmp_path / "cache"
    cache.mkdir()
    address = ArtifactAddress(store, "runs/r/iterations/0001/grades", Grades)
    attempt = address.attempt(identity())
    with attempt.folder(tmp_path, keep=cache) as folder:
        (folder / "deep").mkdir()
        (folder / "deep" / "a").write_bytes(b"weights")
    ref = attempt.publish()
    assert [path.name for path in tmp_path.iterdir()] == ["cache"] and [path.name for path in cache.iterdir()] == [
        ref.digest
    ]
    key, artifact = f"{attempt.prefix}/deep/a", Artifact.open(store, ref)
    store.delete(key)
    local = artifact.local_folder(cache)
    assert (local / "deep" / "a").read_bytes() == b"weights"
    (local / "deep" / "a").write_bytes(b"damaged")
    with pytest.raises(MissingKeyError):
        artifact.local_folder(cache)
    store.create_bytes(key, b"weights")
    assert (artifact.local_folder(cache) / "deep" / "a").read_bytes() == b"weights"
    with address.attempt(identity()).folder(tmp_path, keep=cache) as folder:  # the same content once more
        (folder / "deep").mkdir()
        (folder / "deep" / "a").write_bytes(b"weights")
    assert [path.name for path in tmp_path.iterdir()] == ["cache"] and len(list(cache.iterdir())) == 1
    other = artifact.local_folder(tmp_path / "other")
    assert other.parent == tmp_path / "other", "another context removes its own copies"


def test_a_manifest_says_what_its_thread_spent_its_time_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("artifacts.activity.time.perf_counter", clock := Clock())
    store = Store.open(str(tmp_path / "store"))
    write = DirectoryBackend.write

    def slow_write(backend: DirectoryBackend, key: str, data: bytes) -> None:
        clock.now += 4.0
        write(backend, key, data)

    monkeypatch.setattr(DirectoryBackend, "write", slow_write)

    def beside() -> None:
        with doing("trainer"):
            store.write_bytes("other", b"x")

    def stage() -> Ref[Grades]:
        with doing("engine"):
            clock.now += 50.0  # before the stage
        address = ArtifactAddress(store, "runs/r/iterations/0001/grades", Grades)
        with doing("engine"):
            clock.now += 2.0
        with ThreadPoolExecutor(1) as other:
            other.submit(beside).result()
        attempt = address.attempt(identity())
        for name in ("a", "b"):
            attempt.write_bytes(name, b"x")
        note("trainer", clock.now - 1.5, clock.now)
        return attempt.publish({})

    with ThreadPoolExecutor(1) as thread:
        manifest = Artifact.open(store, thread.submit(stage).result()).manifest
    assert manifest.provenance["seconds"] == 14.0
    assert manifest.provenance["spans"] == {"engine": [[0.0, 2.0]], "store": [[6.0, 14.0]], "trainer": [[12.5, 14.0]]}
    assert datetime.fromisoformat(manifest.provenance["process_began"]) < manifest.made_at


class Counted(deque[tuple[Activity, float, float]]):
    """Spans that count how many of them were looked at, from the newest on; they hold the same as a deque."""

    looks = 0

    def __reversed__(self) -> Iterator[tuple[Activity, float, float]]:
        for span in super().__reversed__():
            self.looks += 1
            yield span


def test_a_manifest_costs_no_more_after_a_thousand_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each publication sorted the ten thousand spans that its thread had noted: 10 ms on a slow machine."""
    noted = Counted(("store", float(number), number + 0.5) for number in range(10_000))
    monkeypatch.setattr(activity._record, "spans", noted)
    note("engine", 10_000.0, 10_001.0)
    note("store", 10_001.0, 10_002.0)
    assert activity.spans_since(10_000.5) == {"engine": [(0.0, 0.5)], "store": [(0.5, 1.5)]}
    assert noted.looks == 3, "two of this stage, and the one before it"


class Clock:
    """A clock that only the test moves."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_new_setting_that_is_null_counts_as_missing(address: ArtifactAddress[Grades]) -> None:
    """So a run goes on with a release that has the setting (ARCHITECTURE.md)."""
    made = publish(address)
    assert address.find(Identity.of("grade", 1, {"size": 3, "new": None})) == made
    with pytest.raises(IdentityMismatchError, match="new: None -> 1"):
        address.find(Identity.of("grade", 1, {"size": 3, "new": 1}))
