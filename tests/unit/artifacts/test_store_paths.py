"""What lies outside of a store is not touched, and an address that names none is refused in one line."""

import errno
import os
import shutil
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

from artifacts.address import ArtifactAddress
from artifacts.errors import BadInputError, DeerstalkerError, StoreError
from artifacts.identity import Identity
from artifacts.layout import MANIFEST_NAME
from artifacts.refs import Checkpoint, Decision, Grades
from artifacts.store.store import LeadsOutError, S3Options, Store
from artifacts.verification import verify
from flows.cli.console import output
from flows.upkeep.removal import unfinished_writes
from stages.models.source import local_folder


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder with somebody's files."""
    folder = tmp_path / "outside"
    (folder / "deep").mkdir(parents=True)
    (folder / "thesis.txt").write_text("years of work")
    (folder / "deep" / "manifest.json").write_text("{}")
    return folder


@pytest.fixture
def store(tmp_path: Path, outside: Path) -> Store:
    """A store in which a run, a file and a folder are symbolic links."""
    store = Store.open(str(tmp_path / "store"))
    store.write_bytes("runs/r/own", b"own")
    for link, target in (("runs/r/away", outside), ("runs/other", outside), ("runs/r/file", outside / "thesis.txt")):
        (tmp_path / "store" / link).symlink_to(target)
    return store


def _content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_nothing_behind_a_link_is_listed_or_deleted(store: Store, outside: Path) -> None:
    before = _content(outside)
    assert store.list() == ["runs/r/own"]
    assert store.delete("runs/r") == 1
    for key in ("runs/r/away", "runs/other/deep", "runs/r/file", "runs/r/away/thesis.txt"):
        with pytest.raises(LeadsOutError, match=r"a symbolic link to /.*; replace the link by its target"):
            store.delete(key)
    assert _content(outside) == before
    assert store.delete("runs") == 0


def test_a_link_that_comes_between_the_listing_and_the_removal_is_not_followed(tmp_path: Path, outside: Path) -> None:
    before = _content(outside)
    store = Store.open(str(tmp_path / "store"))
    store.write_bytes("runs/r/deep/manifest.json", b"ours")
    backend = store._backend  # pyright: ignore[reportPrivateUsage]
    keys = backend.keys("runs/r")
    shutil.rmtree(tmp_path / "store" / "runs" / "r")
    (tmp_path / "store" / "runs" / "r").symlink_to(outside)
    backend.remove(keys)
    assert _content(outside) == before


def test_nothing_is_written_or_read_through_a_link(store: Store, outside: Path, tmp_path: Path) -> None:
    before = _content(outside)
    source = tmp_path / "source"
    source.write_bytes(b"new")
    for key in ("runs/r/away/thesis.txt", "runs/other/new/file", "runs/r/file"):
        for operation in (store.read_bytes, store.size, store.exists, store.digest, store.local_path):
            with pytest.raises(LeadsOutError, match="is a symbolic link"):
                operation(key)
        with pytest.raises(LeadsOutError):
            store.write_bytes(key, b"new")
        with pytest.raises(LeadsOutError):
            store.create_bytes(key, b"new")
        with pytest.raises(LeadsOutError):
            store.upload(source, key)
    attempt = ArtifactAddress(store, "runs/other/checkpoint", Checkpoint).attempt(Identity.of("finetune", 1, {}))
    with pytest.raises(LeadsOutError), attempt.folder(tmp_path):
        pass
    assert _content(outside) == before and sorted(path.name for path in outside.iterdir()) == ["deep", "thesis.txt"]


def test_the_store_itself_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "store").symlink_to(tmp_path / "disk")
    store = Store.open(str(tmp_path / "store"))
    store.write_bytes("a/b", b"x")
    assert (tmp_path / "disk" / "a" / "b").read_bytes() == b"x"
    assert (store.list(), store.list_with_strays()[1], store.delete("a")) == (["a/b"], [], 1)
    assert list((tmp_path / "disk").iterdir()) == []


def test_verify_names_links_sockets_and_impossible_names(store: Store, tmp_path: Path, outside: Path) -> None:
    os.mkfifo(tmp_path / "store" / "runs" / "pipe")
    (tmp_path / "store" / "runs" / "two words").write_bytes(b"")
    (tmp_path / "store" / "runs" / "line\nbreak").write_bytes(b"")
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/store/runs/\xff")).write_bytes(b"")
    (tmp_path / "store" / ".prefect").mkdir()
    (tmp_path / "store" / ".prefect" / "link").symlink_to(outside)
    named = {damage.file: damage.found for damage in verify(store).damaged}
    impossible = "a file whose name cannot be a key of a store"
    assert named == {
        "runs/other": f"a symbolic link to {outside}",
        "runs/r/away": f"a symbolic link to {outside}",
        "runs/r/file": f"a symbolic link to {outside}/thesis.txt",
        "runs/pipe": "neither a file nor a folder",
        "runs/two words": impossible,
        "runs/line\\nbreak": impossible,
        "runs/\\udcff": impossible,
    }
    with pytest.raises(StoreError, match="neither a file nor a folder"):
        store.read_bytes("runs/pipe")


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("", "address of a store: ''; expected a folder"),
        ("  ", "address of a store: '  '"),
        ("file://", "file://: no folder; expected file:///absolute/path"),
        ("file://localhost", "no folder"),
        ("file:///x%00", r"'/x\x00'; expected text without control characters"),
        ("file:///x%0Ay", r"'/x\ny'"),
        ("file:///x%FF", "escaped bytes that are not UTF-8"),
        ("file:folder", "no // after the scheme"),
        ("s3:/bucket", "no // after the scheme"),
        ("a\0b", r"'a\x00b'"),
        ("a\nerror: forged", r"'a\nerror: forged'"),
        ("a\udcff", r"'a\udcff'"),
        ("~nobody-of-this-name/x", "no user with a home folder called ~nobody-of-this-name"),
        ("~daemon-without-home/x", "no user with a home folder called ~daemon-without-home"),
        ("s3://[b", "'s3://[b': not an address (Invalid IPv6 URL)"),
        ("s3://", "no bucket"),
        ("x" * 300, "File name too long"),
        ("/proc/self/stat/x", "ENOTDIR"),
    ],
)
def test_an_address_that_names_no_store_is_one_clear_line(
    address: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    expanded = Path.expanduser
    monkeypatch.setattr(
        Path, "expanduser", lambda path: Path("/nonexistent") if str(path) == "~daemon-without-home" else expanded(path)
    )
    with pytest.raises(DeerstalkerError) as caught:
        Store.open(address)
    text = str(caught.value)
    assert words in text and text.isprintable()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("address", ["", "file://", "~nobody-of-this-name/model", "file:///x%00", "s3://[b"])
def test_so_is_that_of_a_model(address: str) -> None:
    with pytest.raises(BadInputError):
        local_folder(address)


@pytest.mark.parametrize(
    "address",
    ["garbage", "http://", "http://[::1", "http://[zz]", "http://host:port", "ftp://host", "http://a b", "http:///x"],
)
@pytest.mark.parametrize("name", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
def test_a_garbled_s3_server_is_named_with_its_variable(
    address: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, address)
    with pytest.raises(BadInputError, match=f"^{name}: .*; expected http:// or https:// and a host; correct it"):
        Store.open("s3://bucket/prefix")


@pytest.mark.parametrize("address", ["http://a..b", "http://under_score:9000", "garbage"])
def test_so_is_one_that_only_botocore_refuses(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "aws").write_text(f"[default]\nendpoint_url = {address}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "aws"))
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(
        BadInputError, match=f"address of the S3 server: '{address}'; expected .*; correct AWS_ENDPOINT"
    ):
        Store.open("s3://bucket/prefix")


def test_a_password_in_the_address_of_an_s3_server_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadInputError, match="endpoint_url: credentials in the address") as caught:
        Store.open("s3://bucket", options=S3Options(endpoint_url="http://me:secret@127.0.0.1:9"))
    assert "secret@" not in str(caught.value)


@pytest.mark.parametrize("failure", [BadInputError("model", "refused"), KeyboardInterrupt()])
def test_an_attempt_that_fails_leaves_no_folder(tmp_path: Path, failure: BaseException) -> None:
    store = Store.open(str(tmp_path / "store"))
    attempt = ArtifactAddress(store, "models/folder-0/x", Checkpoint).attempt(Identity.of("fetch", 1, {}))
    with pytest.raises(type(failure)), attempt.folder(tmp_path) as folder:
        (folder / "half").write_bytes(b"half")
        raise failure
    assert list((tmp_path / "store").iterdir()) == []


def test_an_attempt_that_fails_leaves_what_others_wrote(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path / "store"))
    address, identity = ArtifactAddress(store, "models/folder-0", Checkpoint), Identity.of("fetch", 1, {})
    winner = address.attempt(identity)
    with winner.folder(tmp_path) as folder:
        (folder / "config.json").write_bytes(b"{}")
    with pytest.raises(BadInputError), address.attempt(identity).folder(tmp_path) as folder:
        raise BadInputError("model", "refused")
    assert address.find(identity) is None and winner.publish() == address.find(identity)
    assert verify(store).damaged == [] and verify(store).unchecked == []


def test_a_manifest_that_names_files_outside_of_its_folder_is_damage(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path / "store"))
    address = ArtifactAddress(store, "runs/r/iterations/0001/grades", Grades)
    attempt = address.attempt(Identity.of("grade", 1, {}))
    attempt.write_bytes("a", b"a")
    attempt.files["../../../../../secret"] = attempt.files.pop("a")
    store.delete(attempt.prefix)
    attempt.publish()
    (damage,) = verify(store).damaged
    assert (damage.file, damage.expected) == (f"{address.key}/{MANIFEST_NAME}", "names of files in its folder")


NOBODY = 65534


@pytest.fixture
def of_root() -> Generator[Path]:
    """A folder that everybody may use, with folders that only root may; the test is not root."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another account")
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o777)
    Store.open(str(folder)).write_bytes("runs/a/file", b"1")
    for name in (".prefect", "lost+found"):
        (folder / name).mkdir(mode=0o700)
    os.seteuid(NOBODY)
    try:
        yield folder
    finally:
        os.seteuid(0)
        shutil.rmtree(folder)


def test_what_others_keep_in_a_store_does_not_hide_the_artifacts(
    of_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.open(str(of_root))
    assert list(store.list("")) == ["runs/a/file"]
    assert verify(store).damaged == [] and unfinished_writes(store) == []
    monkeypatch.delenv("PREFECT_HOME", raising=False)
    with pytest.raises(StoreError, match=r"\.prefect: a folder that may not be read; .*PREFECT_HOME name another"):
        output.local_folder(store)
    monkeypatch.setenv("PREFECT_HOME", "/tmp/mine")
    assert output.local_folder(store) == Path("/tmp/mine")


def test_an_unreadable_folder_of_runs_is_an_error(of_root: Path) -> None:
    os.seteuid(0)
    (of_root / "runs").chmod(0o700)
    os.seteuid(NOBODY)
    store = Store.open(str(of_root))
    with pytest.raises(StoreError, match="not readable"):
        list(store.list(""))


def test_a_link_that_was_made_though_the_file_system_says_that_it_was_there_is_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS may answer so if its server ends before it has answered; see link(2)."""
    link = os.link

    def made_before(source: Path, target: Path) -> None:
        if not target.exists():
            link(source, target)
        raise FileExistsError(errno.EEXIST, "exists", str(target))

    monkeypatch.setattr(os, "link", made_before)
    store = Store.open(str(tmp_path))
    assert store._backend.create("a/manifest.json", b"ours")
    assert not store._backend.create("a/manifest.json", b"another's")
    assert store.read_bytes("a/manifest.json") == b"ours"


def test_a_manifest_that_is_ours_though_the_store_says_that_it_was_there_is_not_anothers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stages delete the files of an attempt that another one has preceded."""
    store = Store.open(str(tmp_path))
    create = store.create_bytes
    monkeypatch.setattr(store, "create_bytes", lambda key, data: create(key, data) and False)
    address, identity = ArtifactAddress(store, "runs/a/decision", Decision), Identity.of("promote", 1, {})
    first, second = address.attempt(identity), address.attempt(identity)
    assert not first.publish().reused
    assert second.publish().reused
