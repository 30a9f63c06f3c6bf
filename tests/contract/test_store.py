"""What every store promises, whichever kind it is."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from artifacts.errors import BadInputError, IntegrityError, StoreError
from artifacts.store.store import FileDigest, MissingKeyError, Store
from tests.support.servers import BUCKET, S3Server

OpenStore = Callable[[], Store]
HELLO = FileDigest("2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824", 5)  # sha256sum of "hello"


def test_content_comes_back_and_is_replaced(store: Store) -> None:
    store.write_bytes("run/a.json", b"first")
    store.write_bytes("run/a.json", b"the second is longer")
    store.write_bytes("run/empty", b"")
    assert store.read_bytes("run/a.json") == b"the second is longer"
    assert (store.size("run/a.json"), store.size("run/empty")) == (20, 0)
    assert store.read_bytes("run/empty") == b""
    assert store.exists("run/empty")


def test_no_more_is_read_than_asked_for(store: Store) -> None:
    store.write_bytes("runs/large.json", b"12345")
    assert store.read_bytes("runs/large.json", 5) == b"12345"
    with pytest.raises(IntegrityError, match=r"runs/large\.json in .*: 5 bytes.*at most 4"):
        store.read_bytes("runs/large.json", 4)


def test_a_folder_that_a_console_made_is_no_stray(moto: S3Server) -> None:
    """It is an empty object; that of the store's own folder has no name below the store."""
    store = Store.open(f"s3://{BUCKET}/made/here", options=moto.options())
    client = moto.client()
    for folder in ("", "runs/"):
        client.put_object(Bucket=BUCKET, Key=f"made/here/{folder}", Body=b"")
    assert store.list_with_strays()[1] == [] and store.list() == []


def test_content_is_there_for_whoever_opens_the_store_again(open_store: OpenStore) -> None:
    open_store().write_bytes("a/b/c", b"kept")
    assert open_store().read_bytes("a/b/c") == b"kept"


@pytest.mark.parametrize("key", ["nothing", "a/nothing", "a/file/below", "a"])
def test_absence_has_its_own_error(store: Store, key: str, tmp_path: Path) -> None:
    store.write_bytes("a/file", b"x")
    assert not store.exists(key)
    for operation in (store.read_bytes, store.size, store.digest):
        with pytest.raises(MissingKeyError, match="no such key"):
            operation(key)
    with pytest.raises(MissingKeyError):
        store.download(key, tmp_path / "out", HELLO)
    assert not (tmp_path / "out").exists()


def test_create_keeps_the_first(open_store: OpenStore) -> None:
    assert open_store().create_bytes("a/manifest.json", b"attempt 1")
    assert not open_store().create_bytes("a/manifest.json", b"attempt 2")
    assert open_store().read_bytes("a/manifest.json") == b"attempt 1"
    assert open_store().list() == ["a/manifest.json"]


def test_conditional_puts_are_used_where_the_server_honours_them(moto: S3Server, rclone: S3Server) -> None:
    for server, honours in ((moto, True), (rclone, False)):
        assert Store.open(f"s3://{BUCKET}", options=server.options()).refuses_second_create() == honours


def test_list_is_sorted_recursive_and_of_whole_segments(store: Store) -> None:
    for key in ("b/2", "b/10", "b/deep/er/x", "bb/1", "b.json", "a"):
        store.write_bytes(key, b"x")
    assert store.list() == ["a", "b.json", "b/10", "b/2", "b/deep/er/x", "bb/1"]
    assert store.list("b") == store.list("b/") == ["b/10", "b/2", "b/deep/er/x"]
    assert store.list("a") == ["a"]
    assert store.list("b/deep/e") == store.list("zzz") == store.list("a/below") == []


def test_folders_are_those_directly_below(store: Store) -> None:
    for key in ("a/file", "a/10/x", "a/10/y", "a/9/deep/er/x", "a/.hidden/x", "ab/c/x"):
        store.write_bytes(key, b"")
    assert store.folders("a") == store.folders("a/") == ([".hidden", "10", "9"], [])
    assert store.folders("") == (["a", "ab"], [])
    for prefix in ("a/file", "a/1", "nothing"):
        assert store.folders(prefix) == ([], [])


def test_list_does_not_show_a_key_after_its_deletion(store: Store) -> None:
    assert store.list("x") == []
    store.write_bytes("x/y", b"")
    assert store.list("x") == ["x/y"]
    store.delete("x")
    assert store.list("x") == []


def test_delete_takes_whole_segments_only(store: Store) -> None:
    for key in ("run/a", "run/deep/b", "run-2/a", "other"):
        store.write_bytes(key, b"x")
    assert store.delete("run") == 2
    assert store.list() == ["other", "run-2/a"]
    assert store.delete("run") == 0
    assert store.delete("other") == 1
    with pytest.raises(BadInputError):
        store.delete("")
    assert store.list() == ["run-2/a"]
    store.write_bytes("run", b"a key where a prefix was")
    assert store.read_bytes("run") == b"a key where a prefix was"


@pytest.mark.parametrize("size_bytes", [0, 5, 12_000_001])
def test_files_go_up_and_come_down_verified(store: Store, tmp_path: Path, size_bytes: int) -> None:
    content = (b"hello" * (size_bytes // 5 + 1))[:size_bytes]
    (tmp_path / "local").write_bytes(content)
    moved: list[int] = []
    digest = store.upload(tmp_path / "local", "files/one", moved.append)
    assert digest == FileDigest(hashlib.sha256(content).hexdigest(), size_bytes)
    assert size_bytes != 5 or digest == HELLO
    assert sum(moved) == size_bytes
    assert store.size("files/one") == size_bytes
    assert store.digest("files/one") == digest
    moved.clear()
    store.download("files/one", tmp_path / "new" / "copy", digest, moved.append)
    assert (tmp_path / "new" / "copy").read_bytes() == content
    assert sum(moved) == size_bytes
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["copy"]


@pytest.mark.parametrize("damage", [b"hellp", b"hell", b"hello!", b""])
def test_damage_is_named_with_both_digests_and_leaves_no_file(store: Store, tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "local").write_bytes(b"hello")
    assert store.upload(tmp_path / "local", "a/f") == HELLO
    store.write_bytes("a/f", damage)
    with pytest.raises(IntegrityError) as caught:
        store.download("a/f", tmp_path / "out" / "f", HELLO)
    assert HELLO.sha256 in str(caught.value) and hashlib.sha256(damage).hexdigest() in str(caught.value)
    assert "a/f" in str(caught.value) and store.url in str(caught.value)
    assert list((tmp_path / "out").iterdir()) == []


def test_folders_go_up_and_come_down(store: Store, tmp_path: Path) -> None:
    files = {f"shard-{number:02}.bin": bytes([number]) * number for number in range(20)} | {"deep/er/x.json": b"{}"}
    for name, content in files.items():
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_bytes(content)
    digests = store.upload_tree(tmp_path / "in", "ckpt")
    assert list(digests) == sorted(files)
    assert store.list("ckpt") == sorted(f"ckpt/{name}" for name in files)
    store.download_tree("ckpt", tmp_path / "out", digests)
    copies = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert {path.relative_to(tmp_path / "out").as_posix(): path.read_bytes() for path in copies} == files
    store.delete("ckpt/shard-07.bin")
    with pytest.raises(MissingKeyError, match=r"shard-07\.bin"):
        store.download_tree("ckpt", tmp_path / "again", digests)


def test_a_folder_that_another_thread_makes_meanwhile_has_not_vanished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, is_dir, looks = tmp_path / "store", Path.is_dir, list[Path]()
    store = Store.open(str(root))

    def looked(path: Path) -> bool:
        found = is_dir(path)
        if path == root and not looks:
            looks.append(path)
            store.write_bytes("by-another", b"x")
        return found

    monkeypatch.setattr(Path, "is_dir", looked)
    store.write_bytes("a/b", b"y")
    assert looks and store.list() == ["a/b", "by-another"]


def test_a_key_cannot_be_a_file_and_a_folder_at_once(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path / "store"))
    store.write_bytes("a/b", b"x")
    for operation in (store.write_bytes, store.create_bytes):
        for key in ("a", "a/b/c"):
            with pytest.raises(StoreError) as caught:
                operation(key, b"y")
            assert not isinstance(caught.value, MissingKeyError)
    assert store.list() == ["a/b"]


def test_a_local_file_that_is_absent_is_the_callers_fault(store: Store, tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="no such file"):
        store.upload(tmp_path / "nothing", "a/b")
    with pytest.raises(BadInputError, match="no such folder"):
        store.upload_tree(tmp_path / "nothing", "a")


BAD_KEYS = ["", "/a", "a/", "a//b", "..", "a/../b", "./a", "a b", "a\\b", "a\nb", "é", ".tmp-1", "x" * 201]


@pytest.mark.parametrize("key", BAD_KEYS)
def test_keys_that_not_every_store_can_hold_are_refused(key: str) -> None:
    store = Store.open("memory://refused")
    for operation in (store.read_bytes, store.exists, store.size, lambda key: store.write_bytes(key, b"")):
        with pytest.raises(BadInputError):
            operation(key)
    assert store.list() == []


SEGMENTS = st.text("abzAZ09._=+@,-", min_size=1, max_size=12).filter(
    lambda segment: segment not in (".", "..") and not segment.startswith(".tmp-")
)
KEYS = st.lists(SEGMENTS, min_size=1, max_size=3).map(lambda segments: "/".join(["k", *segments]))


@settings(max_examples=50)
@given(st.dictionaries(KEYS, st.binary(max_size=40), max_size=6))
def test_a_folder_and_memory_hold_the_same(tmp_path_factory: pytest.TempPathFactory, content: dict[str, bytes]) -> None:
    folder, memory = Store.open(str(tmp_path_factory.mktemp("same"))), Store.open("memory://same")
    content = {key: data for key, data in content.items() if not any(other.startswith(f"{key}/") for other in content)}
    for store in (folder, memory):
        for key, data in content.items():
            assert store.create_bytes(key, data)
        assert store.list() == sorted(content)
        assert {key: store.read_bytes(key) for key in store.list("k")} == content
        assert store.delete("k") == len(content)
        assert store.list() == []
