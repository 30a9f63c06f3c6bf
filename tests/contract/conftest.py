"""Stores of every kind, on real servers."""

import secrets
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from artifacts.store.store import S3Options, Store
from tests.support.servers import BUCKET, S3Server, moto_server, rclone_server

KINDS = ("directory", "memory", "rclone", "moto")
OpenStore = Callable[[], Store]


@pytest.fixture(scope="session")
def rclone(tmp_path_factory: pytest.TempPathFactory) -> Generator[S3Server]:
    """A server without conditional puts."""
    with rclone_server(tmp_path_factory.mktemp("rclone")) as server:
        server.create_bucket(BUCKET)
        yield server


@pytest.fixture(scope="session")
def moto() -> Generator[S3Server]:
    """A server with conditional puts."""
    with moto_server() as server:
        server.create_bucket(BUCKET)
        yield server


@pytest.fixture(params=KINDS)
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> OpenStore:
    """Opens the same fresh store again at each call, as another process would."""
    name = secrets.token_hex(8)
    if request.param == "directory":
        return lambda: Store.open(str(tmp_path / "store"))
    if request.param == "memory":
        return lambda: Store.open(f"memory://{name}")
    options: S3Options = request.getfixturevalue(request.param).options(part_bytes=5 << 20)
    return lambda: Store.open(f"s3://{BUCKET}/some/{name}", options=options)


@pytest.fixture
def store(open_store: OpenStore) -> Store:
    """A fresh store of each kind."""
    return open_store()


@pytest.fixture(params=["rclone", "moto"])
def s3_server(request: pytest.FixtureRequest) -> S3Server:
    """Each of the S3 servers."""
    return request.getfixturevalue(request.param)
