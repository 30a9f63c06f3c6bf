"""Every flipped bit of a store is found, and named by its file; what was removed on purpose is no damage."""

import random
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from artifacts.address import ArtifactAddress
from artifacts.documents.checksums import read_sums, sums_of, write_files
from artifacts.documents.self_checksum import check_seal, checksum_in_name, sealed, sealed_json, shard_name
from artifacts.errors import BadInputError, IntegrityError
from artifacts.identity import Identity
from artifacts.layout import MANIFEST_NAME, RunLayout
from artifacts.local.input_files import LARGEST_WEIGHTS
from artifacts.manifest import Manifest, Pruned
from artifacts.reading import Artifact
from artifacts.refs import Grades
from artifacts.store.store import Store
from artifacts.store.transfer import FileDigest
from artifacts.verification import verify
from flows.upkeep.removal import Removal, remove
from tests.support.made_run import make_run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory store with one run of two iterations and its report."""
    folder = tmp_path_factory.mktemp("verified")
    store = Store.open(str(folder / "store"))
    layout = make_run(store, iterations=2)
    write_files(store, layout.summary, {"report.html": b"<p>made</p>", "summary.json": b"{}\n"})
    return folder / "store"


def test_a_store_as_it_was_written_is_whole(folder: Path) -> None:
    result = verify(Store.open(str(folder)))
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert (result.damaged, result.unchecked) == ([], [])
    assert result.files == len(files)
    assert result.size_bytes == sum(path.stat().st_size for path in files)
    assert result.artifacts == len(list(folder.rglob(MANIFEST_NAME))) > 10


def test_every_flipped_bit_is_found_and_its_file_named(folder: Path) -> None:
    """One bit in each file in turn, and several in small files: manifests, tables, recipe, pointer and report."""
    store, chance = Store.open(str(folder)), random.Random(7)
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    names = {path.name for path in paths}
    assert {"manifest.json", "recipe.json", "promoted.json", "SHA256SUMS", "report.html", "config.json"} <= names
    for path in paths:
        whole = path.read_bytes()
        for _ in range(3):
            place, bit = chance.randrange(len(whole)), chance.randrange(8)
            flipped = bytearray(whole)
            flipped[place] ^= 1 << bit
            path.write_bytes(flipped)
            damaged = [damage.file for damage in verify(store).damaged]
            assert path.relative_to(folder).as_posix() in damaged, (path.name, place, bit)
        path.write_bytes(whole)
    assert verify(store).damaged == []


@pytest.mark.parametrize("name", ["promoted.json", "SHA256SUMS", "manifest.json"])
def test_every_single_bit_of_the_files_that_vouch_for_others(folder: Path, name: str) -> None:
    path = next(iter(sorted(folder.rglob(name))))
    whole = path.read_bytes()

    def intact(data: bytes) -> bool:
        try:
            match name:
                case "promoted.json":
                    check_seal(data, "here")
                case "SHA256SUMS":
                    read_sums(data, "here")
                case _:
                    Manifest.from_bytes(data, "here")
            return True
        except IntegrityError:
            return False

    assert intact(whole)
    for place in range(min(len(whole), 4000)):
        for bit in range(8):
            flipped = bytearray(whole)
            flipped[place] ^= 1 << bit
            assert not intact(bytes(flipped)), (place, bit, whole[max(0, place - 20) : place + 20])


@pytest.mark.long
def test_a_report_beyond_64_mib_is_written_and_verified(tmp_path: Path) -> None:
    """A page of 40,000 iterations, or the list of a million puzzles."""
    store = Store.open(str(tmp_path / "store"))
    write_files(store, "puzzles/large", {"report.json": bytes((64 << 20) + 1)})
    assert verify(store).damaged == []


@pytest.mark.timeout(600)
def test_files_that_are_too_large_are_damage_and_not_read_to_their_end(folder: Path, tmp_path: Path) -> None:
    """A terabyte would be hashed for half an hour."""
    shutil.copytree(folder, tmp_path / "store")
    store, layout = Store.open(str(tmp_path / "store")), RunLayout("made")
    weights = Artifact.at(store, layout.iteration(2, "checkpoint"))
    large = [f"{weights.key}/{weights.manifest.attempt}/{weights.names()[0]}", layout.recipe, layout.promoted]
    large.append(f"{layout.iteration(1, 'rollouts')}/{MANIFEST_NAME}")
    for key in large:
        with (tmp_path / "store" / key).open("r+b") as file:
            file.truncate(1 << 40)
    named = {damage.file: damage.found for damage in verify(store).damaged}
    assert {key: named.get(key, "")[:9] for key in large} == {
        large[0]: "more than", large[1]: "more than", large[2]: "1,099,511", large[3]: "1,099,511",
    }  # fmt: skip
    with pytest.raises(IntegrityError, match="1099511627776 bytes; expected"):
        weights.local_folder(tmp_path)
    with pytest.raises(IntegrityError, match="1,099,511,627,776 bytes or more"):
        weights.read_bytes(weights.names()[0])


def test_a_missing_file_is_damage_and_a_pruned_one_is_not(folder: Path, tmp_path: Path) -> None:
    store = Store.open(str(tmp_path))
    address = ArtifactAddress(store, "runs/r/iterations/0001/grades", Grades)
    attempt = address.attempt(Identity.of("grade", 1, {}))
    attempt.write_bytes("a.bin", b"a")
    ref = attempt.publish({"mean": 0.5})
    store.delete(f"{attempt.prefix}/a.bin")
    (damage,) = verify(store).damaged
    assert (damage.file, damage.found) == (f"{attempt.prefix}/a.bin", "the file is missing")

    artifact = Artifact.at(store, ref.key)
    pruned = artifact.manifest.model_copy(update={"pruned": Pruned(at="2026-11-20T00:00:00Z", rule="keep last 2")})
    store.write_bytes(f"{ref.key}/{MANIFEST_NAME}", pruned.to_bytes())
    result = verify(store)
    assert (result.damaged, result.pruned, result.artifacts) == ([], 1, 1)
    assert address.find(Identity.of("grade", 1, {})) == ref, "a pruned artifact keeps its name"
    with pytest.raises(BadInputError, match=r"pruned on 2026-11-20 \(keep last 2\).*train again"):
        Artifact.open(store, ref).read_bytes("a.bin")
    with pytest.raises(BadInputError, match="pruned"):
        Artifact.open(store, ref).local_folder(tmp_path)


def test_unpublished_attempts_are_named_as_unchecked_except_shards(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path))
    store.write_bytes("runs/r/iterations/0001/rollouts/progress-0/rollouts-0123456789abcdef.parquet", b"not this")
    store.write_bytes("runs/r/iterations/0001/batch/attempt-1/batch.safetensors", b"whatever")
    result = verify(store)
    assert [damage.file[-24:] for damage in result.damaged] == ["0123456789abcdef.parquet"]
    assert result.unchecked == ["runs/r/iterations/0001/batch/attempt-1/batch.safetensors"]


def test_a_run_may_be_called_refreshes(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path))
    store.write_bytes("runs/refreshes/iterations/0001/batch/attempt-1/batch.safetensors", b"whatever")
    assert verify(store).damaged == []
    store.write_bytes("runs/r/refreshes/20260101T000000000000.json", b"{}")
    assert [damage.file for damage in verify(store).damaged] == ["runs/r/refreshes/20260101T000000000000.json"]


def test_sums_are_those_of_sha256sum() -> None:
    data = sums_of({"b": b"2", "a": b"1"})
    assert data.startswith(b"6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b  a\n")
    assert list(read_sums(data, "here")) == ["a", "b"]
    check_seal(sealed_json({"score": 0.1, "where": "\u00e9"}), "here")


def test_the_checksums_of_files_written_before_still_hold() -> None:
    """The bytes of the three places of a checksum: the last field, the last line, and the name."""
    assert sealed_json({"a": 1}) == (
        b'{\n  "a": 1,\n  "checksum": "0a10b984a68946c8a6125d8aa47b89c605a7c0f6f54d53709b28190dbd4602e3"\n}\n'
    )
    assert sums_of({"a": b"1"}).splitlines()[1] == (
        b"# SHA-256 of the lines above: fc5b2781bc65746b95c7f8f9f0265d76a070b77c7006e2b4964c7ebddf193d36"
    )
    name = shard_name("rollouts", ".parquet", b"1")
    assert name == "rollouts-6b86b273ff34fce1.parquet"
    assert checksum_in_name(f"runs/r/{name}") == "6b86b273ff34fce1"
    assert checksum_in_name("batch.safetensors") is None
    with pytest.raises(ValueError, match="no blank checksum"):
        sealed(b'{"a": 1}\n')


def test_a_file_without_its_checksum_is_refused() -> None:
    with pytest.raises(IntegrityError, match=r"checksum none.*restore it"):
        check_seal(b'{"a": 1}\n', "here")
    with pytest.raises(IntegrityError, match="checksum none"):
        read_sums(b"", "here")


def test_suite_names_are_folders() -> None:
    assert RunLayout("r").suite("harder", 3) == "runs/r/suites/harder/0003"
    with pytest.raises(BadInputError, match="suite name"):
        RunLayout("r").suite("a/b", 1)


class Busy(Store):
    """A store that others change after it was listed, just before its first file is read."""

    changes: Callable[[], None] | None = None

    def digest(self, key: str, most_bytes: int = LARGEST_WEIGHTS) -> FileDigest:
        with _CHANGING:
            if changes := self.changes:
                self.changes = None
                changes()
        return super().digest(key, most_bytes)


_CHANGING = threading.Lock()


def test_what_others_remove_or_replace_meanwhile_is_no_damage(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "store")
    store, other = Busy.open(str(tmp_path / "store")), Store.open(str(tmp_path / "store"))
    layout = RunLayout("made")
    state, step = Artifact.at(other, layout.iteration(2, "checkpoint")), layout.iteration(2, "report")
    shard = f"{step}/progress-00ff/{shard_name('rollouts', '.parquet', b'shard')}"
    other.write_bytes(shard, b"shard")
    lost = Artifact.at(other, layout.iteration(1, "checkpoint"))

    def changes() -> None:
        remove(
            other, [Removal(state.key, "Checkpoint", 0, f"{state.key}/{state.manifest.attempt}", state.manifest)], ""
        )
        other.delete(shard)
        write_files(other, layout.summary, {"report.html": b"<p>again</p>", "summary.json": b"{}\n"})
        other.delete(f"{lost.key}/{lost.manifest.attempt}/config.json")

    store.changes = changes
    assert [damage.file for damage in verify(store).damaged] == [f"{lost.key}/{lost.manifest.attempt}/config.json"]
    assert store.changes is None
