"""Publishing when the world is against it: a clear error, nothing half-published, and the next try works."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from artifacts.address import ArtifactAddress
from artifacts.errors import BadInputError, DeerstalkerError, StoreError, TransientError
from artifacts.identity import Identity
from artifacts.reading import Artifact
from artifacts.refs import Checkpoint, Ref
from artifacts.store.store import Store
from tests.support.fault_proxy import fault_proxy
from tests.support.servers import BUCKET, S3Server, free_port, rclone_server, start_rclone

pytestmark = pytest.mark.long

FILES = {"config.json": b"{}", "model.safetensors": bytes(range(256)) * (23 << 10)}  # 5.75 MB: two parts


def publish(store: Store, scratch: Path) -> Ref[Checkpoint]:
    address, identity = (
        ArtifactAddress(store, "runs/r/iterations/0001/checkpoint", Checkpoint),
        Identity.of("finetune", 1, {}),
    )
    if published := address.find(identity):
        return published
    attempt = address.attempt(identity)
    with attempt.folder(scratch) as folder:
        for name, data in FILES.items():
            try:
                (folder / name).write_bytes(data)
            except OSError as error:  # the trainer writes these itself, and says so
                raise StoreError(str(folder / name), f"no space left or not writable: {error.strerror}") from error
    return attempt.publish()


def refused(store: Store, scratch: Path, kind: type[DeerstalkerError], words: str) -> None:
    """A try that ends in one clear line and leaves nothing that could be taken for an artifact."""
    with pytest.raises(kind, match=words) as caught:
        publish(store, scratch)
    assert len(str(caught.value).splitlines()) == 1
    assert list(scratch.glob("upload-*")) == []


def succeeds(store: Store, scratch: Path) -> None:
    artifact = Artifact.open(store, publish(store, scratch))
    assert {name: artifact.read_bytes(name) for name in artifact.names()} == FILES


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    (tmp_path / "scratch").mkdir()
    return tmp_path / "scratch"


def remount(place: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", str(place)], check=True)


def test_a_disk_that_fills_up(small_disk: Path, scratch: Path) -> None:
    store = Store.open(str(small_disk / "store"))
    refused(store, scratch, StoreError, "no space left")
    assert not [key for key in store.list() if key.endswith("manifest.json")]
    remount(small_disk, "size=32m")
    succeeds(store, scratch)


def test_a_disk_without_room_for_the_manifest(small_disk: Path, tmp_path: Path) -> None:
    store = Store.open(str(small_disk / "store"))
    address = ArtifactAddress(store, "runs/r/iterations/0001/checkpoint", Checkpoint)
    attempt = address.attempt(Identity.of("finetune", 1, {}))
    attempt.write_bytes("config.json", b"{}")
    with (small_disk / "filler").open("wb", buffering=0) as filler, pytest.raises(OSError, match="No space left"):
        while True:
            filler.write(bytes(4096))
    with pytest.raises(StoreError, match="no space left"):
        attempt.publish()
    assert address.find(attempt.identity) is None
    (small_disk / "filler").unlink()
    assert Artifact.open(store, attempt.publish()).read_bytes("config.json") == b"{}"


def test_a_server_whose_disk_fills_up(small_disk: Path, scratch: Path) -> None:
    with rclone_server(small_disk) as server:
        server.create_bucket(BUCKET)
        store = Store.open(f"s3://{BUCKET}", options=server.options(retry_for_s=0.5, part_bytes=5 << 20))
        refused(store, scratch, TransientError, r"HTTP 500|IncompleteBody|closed")
        assert (
            ArtifactAddress(store, "runs/r/iterations/0001/checkpoint", Checkpoint).find(Identity.of("finetune", 1, {}))
            is None
        )
        remount(small_disk, "size=64m")
        succeeds(store, scratch)


def test_credentials_that_expire_midway(s3_server: S3Server, scratch: Path) -> None:
    with fault_proxy(s3_server.url, lambda method, path: None) as proxy:
        options = s3_server.options(endpoint_url=proxy.url, part_bytes=5 << 20)
        store = Store.open(f"s3://{BUCKET}/expired", options=options)
        for moment in ("uploads", "partNumber=2", "uploadId", "manifest.json"):
            proxy.choose = lambda method, path, moment=moment: "expired" if moment in path else None
            refused(store, scratch, StoreError, "refused: ExpiredToken.*renew them")
        with pytest.raises(StoreError, match="refused"):
            Store.open(f"s3://{BUCKET}/expired", options=s3_server.options(endpoint_url=proxy.url)).exists(
                "manifest.json"
            )
        proxy.choose = lambda method, path: None
        succeeds(store, scratch)


def test_credentials_that_are_wrong(rclone: S3Server, scratch: Path) -> None:
    url = f"s3://{BUCKET}/wrong"
    for changes in ({"secret_key": "not-the-secret" * 3}, {"access_key": "nobody-we-know-of"}):
        with pytest.raises(StoreError, match="refused") as caught:
            Store.open(url, options=rclone.options(**changes))
        assert not any(value in str(caught.value) for value in changes.values())
    succeeds(Store.open(url, options=rclone.options(part_bytes=5 << 20)), scratch)


@pytest.mark.parametrize("moment", ["uploads", "partNumber=2", "uploadId", "manifest.json"])
def test_a_server_that_dies_midway(tmp_path: Path, scratch: Path, moment: str) -> None:
    server = start_rclone(tmp_path / "served")
    try:
        server.create_bucket(BUCKET)
        with fault_proxy(server.url, lambda method, path: None) as proxy:
            options = server.options(endpoint_url=proxy.url, part_bytes=5 << 20, retry_for_s=0.5)
            store = Store.open(f"s3://{BUCKET}", options=options)
            store.create_bytes("warm", b"up")

            def kill_at(method: str, path: str) -> str | None:
                if moment in path and (moment != "manifest.json" or method == "PUT"):
                    server.kill()
                return "reset" if server.process.poll() is not None else None

            proxy.choose = kill_at
            refused(store, scratch, TransientError, "retry when it answers again")
            server = start_rclone(tmp_path / "served", port=int(server.url.rpartition(":")[2]))
            proxy.choose = lambda method, path: None
            assert not [key for key in store.list() if key.endswith("manifest.json")]
            succeeds(store, scratch)
    finally:
        server.kill()


def test_a_server_that_is_not_there_yet(tmp_path: Path, scratch: Path) -> None:
    port = free_port()
    absent = S3Server(f"http://127.0.0.1:{port}", "k" * 16, "s" * 32, subprocess.Popen(["true"]))
    with pytest.raises(StoreError, match="AWS_ENDPOINT_URL"):
        Store.open(f"s3://{BUCKET}", options=absent.options(open_retry_for_s=0.2))
    server = start_rclone(tmp_path / "served", port=port)
    try:
        with pytest.raises(StoreError, match=r"no such bucket.*create it"):
            Store.open(f"s3://{BUCKET}", options=server.options())
        server.create_bucket(BUCKET)
        succeeds(Store.open(f"s3://{BUCKET}", options=server.options(part_bytes=5 << 20)), scratch)
    finally:
        server.kill()
        absent.process.wait()


@pytest.mark.parametrize("url", ["gs://bucket/x", "abfs://container/x", "az://container/x"])
def test_another_cloud_is_refused_with_what_is_supported(url: str) -> None:
    with pytest.raises(BadInputError, match=r"s3://.*AWS_ENDPOINT_URL.*folder"):
        Store.open(url)


def test_a_large_upload_and_download_can_be_watched(open_store: Callable[[], Store], scratch: Path) -> None:
    store = open_store()
    begun: list[int] = []
    moved: list[int] = []

    def watch(total_bytes: int) -> Callable[[int], None]:
        begun.append(total_bytes)
        return moved.append

    attempt = ArtifactAddress(store, "runs/r/iterations/0001/checkpoint", Checkpoint).attempt(
        Identity.of("finetune", 1, {})
    )
    with attempt.folder(scratch, watch) as folder:
        for name, data in FILES.items():
            (folder / name).write_bytes(data)
    ref = attempt.publish()
    Artifact.open(store, ref).local_folder(scratch / "down", watch)
    size_bytes = sum(map(len, FILES.values()))
    times = 0 if store.local_path("x") else 2  # in a folder nothing has to move
    assert begun == [size_bytes] * times and sum(moved) == size_bytes * times
