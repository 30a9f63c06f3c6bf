"""What a store says when the world is against it."""

import random
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from pathlib import Path

import pytest

from artifacts.errors import BadInputError, DiskFullError, StoreError, TransientError
from artifacts.store.s3_faults import error_code
from artifacts.store.s3_requests import S3Requests, content_md5
from artifacts.store.store import MissingKeyError, S3Options, Store
from tests.support.fault_proxy import at_random, fault_proxy
from tests.support.servers import BUCKET, S3Server, moto_server, start_moto, start_rclone
from tests.support.serving import Replies, http_server

pytestmark = pytest.mark.long


@pytest.mark.parametrize("url", ["gopher://x/y", "http://bucket/x", "file://host/x", "s3:///x", "s3://bucket/../x"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(BadInputError):
        Store.open(url)


def test_credentials_in_an_address_are_refused_and_not_shown() -> None:
    with pytest.raises(BadInputError) as caught:
        Store.open("s3://AKIAEXAMPLE:hush@bucket/x")
    assert "hush" not in str(caught.value) and "AKIAEXAMPLE" not in str(caught.value)


def test_a_missing_bucket_is_named_and_not_created(s3_server: S3Server) -> None:
    for _ in range(2):
        with pytest.raises(StoreError, match="no such bucket") as caught:
            Store.open("s3://not-there/x", options=s3_server.options())
        assert not isinstance(caught.value, MissingKeyError)


@pytest.fixture
def website() -> Generator[str]:
    """Something that answers 200 to everything, in a language that is not S3's."""

    class Page(Replies):
        def do_GET(self) -> None:
            self.reply(b"<html><body>Welcome</body></html>")

    with http_server(Page) as url:
        yield url


def test_a_server_that_is_no_s3_is_not_taken_for_an_empty_store(website: str) -> None:
    with pytest.raises(StoreError):
        Store.open("s3://bucket/x", options=S3Options(website, "k" * 16, "s" * 32, region="us-east-1"))


def test_no_credentials(rclone: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    with pytest.raises(StoreError, match="AWS_ACCESS_KEY_ID"):
        Store.open(f"s3://{BUCKET}/x", options=S3Options(rclone.url, region="us-east-1"))


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(BadInputError, match="a folder"):
        Store.open(str(tmp_path / "file"))
    with pytest.raises(StoreError):
        Store.open(f"file://{tmp_path}/file/below")
    with pytest.raises(StoreError):
        Store.open("/proc/deerstalker")
    with pytest.raises(BadInputError, match="existing"):
        Store.open(str(tmp_path / "absent"), writable=False)
    assert not (tmp_path / "absent").exists()


def test_the_first_write_makes_the_folder(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path / "above" / "store"))
    assert store.list() == [] and not store.exists("a") and store.list_with_strays()[1] == []
    with pytest.raises(MissingKeyError):
        store.read_bytes("a")
    assert list(tmp_path.iterdir()) == []
    store.write_bytes("a", b"x")
    assert store.read_bytes("a") == b"x"


def test_a_folder_that_is_gone_is_not_an_empty_store(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path / "store"))
    store.write_bytes("a", b"x")
    (tmp_path / "store").rename(tmp_path / "elsewhere")
    for operation in (store.exists, store.read_bytes, store.list, lambda key: store.write_bytes(key, b"y")):
        with pytest.raises(StoreError) as caught:
            operation("a")
        assert not isinstance(caught.value, MissingKeyError)
    assert not (tmp_path / "store").exists()


def test_a_full_disk(small_disk: Path, tmp_path: Path) -> None:
    store = Store.open(str(small_disk / "store"))
    store.write_bytes("kept", b"old")
    (tmp_path / "large").write_bytes(bytes(2 << 20))
    for operation in (
        lambda: store.write_bytes("kept", bytes(2 << 20)),
        lambda: store.create_bytes("new", bytes(2 << 20)),
        lambda: store.upload(tmp_path / "large", "new"),
    ):
        with pytest.raises(DiskFullError, match=r"/store: no space left, 1\.\d MiB are free; expected room for 2\.0"):
            operation()
    assert store.list() == ["kept"]
    assert store.read_bytes("kept") == b"old"
    assert [path.name for path in (small_disk / "store").iterdir()] == ["kept"]
    large = Store.open("memory://large")
    digest = large.upload(tmp_path / "large", "large")
    with pytest.raises(DiskFullError, match=r"small: no space left, .* free; expected room for 2\.0 MiB"):
        large.download("large", small_disk / "large", digest)


def test_a_read_only_file_system(small_disk: Path) -> None:
    Store.open(str(small_disk)).write_bytes("a", b"x")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(StoreError, match="not writable"):
        Store.open(str(small_disk))
    store = Store.open(str(small_disk), writable=False)
    assert store.read_bytes("a") == b"x"
    with pytest.raises(StoreError, match="not writable"):
        store.write_bytes("a", b"y")


def test_a_server_that_dies_is_not_an_empty_store_and_may_come_back(tmp_path: Path) -> None:
    server = start_rclone(tmp_path / "objects")
    try:
        server.create_bucket(BUCKET)
        store = Store.open(f"s3://{BUCKET}/x", options=server.options(retry_for_s=0.5))
        patient = Store.open(f"s3://{BUCKET}/x", options=server.options(retry_for_s=300.0))
        store.write_bytes("a", b"kept")
        server.kill()
        for operation in (store.exists, store.read_bytes, store.size, store.list, store.delete, store.digest):
            with pytest.raises(TransientError):
                operation("a")
        with pytest.raises(TransientError):
            store.create_bytes("b", b"new")
        answers: list[bytes] = []
        waiting = threading.Thread(target=lambda: answers.append(patient.read_bytes("a")))
        waiting.start()
        time.sleep(0.5)
        server = start_rclone(tmp_path / "objects", port=int(server.url.rpartition(":")[2]))
        waiting.join()
        assert answers == [b"kept"]
        assert store.read_bytes("a") == b"kept"
        assert not store.exists("b")
    finally:
        server.kill()


def test_a_bucket_that_vanishes_is_not_an_empty_store(tmp_path: Path) -> None:
    with moto_server() as server:
        server.create_bucket(BUCKET)
        store = Store.open(f"s3://{BUCKET}", options=server.options(retry_for_s=0.5))
        server.kill()
        again = start_moto(port=int(server.url.rpartition(":")[2]))  # moto forgets everything, its buckets included
        try:
            for operation in (store.exists, store.read_bytes, store.size, store.list):
                with pytest.raises(StoreError, match="no such bucket"):
                    operation("a")
        finally:
            again.kill()


def test_a_bare_404_is_not_believed(rclone: S3Server) -> None:
    with fault_proxy(rclone.url, lambda method, path: None) as proxy:
        store = Store.open(f"s3://{BUCKET}/bare", options=rclone.options(endpoint_url=proxy.url, retry_for_s=0.5))
        store.write_bytes("a", b"x")
        proxy.choose = lambda method, path: "not_found" if path.endswith("/a") else None
        for operation in (store.exists, store.read_bytes, store.size):
            with pytest.raises(TransientError, match="404"):
                operation("a")


@pytest.mark.parametrize("seed", [1, 2])
def test_nothing_is_lost_or_half_done_behind_a_faulty_network(s3_server: S3Server, tmp_path: Path, seed: int) -> None:
    """A random history on a store behind faults, compared with a dictionary, then looked at without them."""
    generator = random.Random(seed)
    objects: dict[str, bytes] = {}
    (tmp_path / "large").write_bytes(generator.randbytes(11_000_000))
    with fault_proxy(s3_server.url, lambda method, path: None) as proxy:
        options = s3_server.options(endpoint_url=proxy.url, part_bytes=5 << 20, retry_for_s=60.0)
        prefix = f"s3://{BUCKET}/faulty-{seed}"
        store = Store.open(prefix, options=options)
        store.create_bytes("warm", b"up")
        objects["warm"] = b"up"
        proxy.choose = at_random(0.3, seed)
        for step in range(40):
            key, data = f"k/{generator.randrange(6)}", b"%d " % step * 3000
            match generator.randrange(5):
                case 0:
                    store.write_bytes(key, data)
                    objects[key] = data
                case 1 if s3_server.folder is None or key in objects:  # without conditions each create waits a while
                    assert store.create_bytes(key, data) == (key not in objects)
                    objects.setdefault(key, data)
                case 2:
                    assert store.exists(key) == (key in objects)
                case 3:
                    assert store.list("k") == sorted(objects.keys() - {"warm"})
                case _:
                    if key in objects:
                        assert store.read_bytes(key) == objects[key]
                    else:
                        with pytest.raises(MissingKeyError):
                            store.read_bytes(key)
        digest = store.upload(tmp_path / "large", "large")
        store.download("large", tmp_path / "copy", digest)
        assert (tmp_path / "copy").read_bytes() == (tmp_path / "large").read_bytes()
        assert sum(proxy.injected.values()) >= 10
    plain = Store.open(prefix, options=s3_server.options())
    assert plain.digest("large") == digest
    plain.delete("large")
    assert {key: plain.read_bytes(key) for key in plain.list()} == objects


def test_a_server_refuses_what_was_changed_on_the_way_up(rclone: S3Server) -> None:  # moto does not look
    requests = S3Requests(BUCKET, "changed/", rclone.options())
    start = requests.call("create_multipart_upload", Key="changed/b")
    for method, more in (("put_object", {}), ("upload_part", {"UploadId": start["UploadId"], "PartNumber": 1})):
        with pytest.raises(OSError) as caught:
            requests.call(method, Key="changed/b", Body=b"changed", ContentMD5=content_md5(b"meant"), **more)
        assert error_code(caught.value) == "BadDigest"
    assert requests.page("", 10) == ([], None)


def test_long_listings_are_complete(s3_server: S3Server) -> None:
    store = Store.open(f"s3://{BUCKET}/long", options=s3_server.options(listing_page_keys=3))
    keys = [f"p/{number:02}" for number in range(10)]
    for key in keys:
        store.write_bytes(key, b"")
    assert store.list("p") == keys
    assert store.list() == keys


def test_a_store_shows_no_credentials(rclone: S3Server) -> None:
    options = rclone.options()
    shown = repr(Store.open(f"s3://{BUCKET}/shown", options=options)) + repr(options)
    assert rclone.secret_key not in shown and rclone.access_key not in shown


def test_opening_a_folder_imports_no_s3_client(tmp_path: Path) -> None:
    code = (
        "import sys; from artifacts.store.store import Store; Store.open(sys.argv[1]).write_bytes('a', b'x'); "
        "print([name for name in ('s3fs', 'fsspec', 'botocore', 'aiohttp') if name in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"
