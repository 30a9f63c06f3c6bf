"""Real S3 servers for tests: rclone over a folder, and moto. Both listen on 127.0.0.1 and end with their context."""

import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from artifacts.store.store import S3Options

BUCKET = "contract"
"""Bucket of the stores that contract tests open."""
_START_LIMIT_S = 400.0
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


@dataclass
class S3Server:
    """A running server process.

    Attributes:
        url: Its endpoint.
        access_key, secret_key: Credentials it accepts.
        folder: Folder with its objects as files; None if it keeps them in memory.
    """

    url: str
    access_key: str
    secret_key: str
    process: subprocess.Popen[bytes] = field(repr=False)
    folder: Path | None = None

    def options(self, **changes: object) -> S3Options:
        """Returns the options that reach this server."""
        values: dict[str, object] = {
            "endpoint_url": self.url,
            "access_key": self.access_key,
            "secret_key": self.secret_key,
            "region": "us-east-1",
            **changes,
        }
        return S3Options(**values)  # type: ignore[arg-type]

    def environment(self) -> dict[str, str]:
        """Returns the variables with which a process reaches this server."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def create_bucket(self, name: str) -> None:
        """Creates a bucket; the store itself never does."""
        self.client().create_bucket(Bucket=name)

    def client(self) -> Any:
        """Returns a client of botocore, for what the store never does."""
        import botocore.session

        return botocore.session.get_session().create_client(
            "s3",
            endpoint_url=self.url,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            region_name="us-east-1",
        )

    def kill(self) -> None:
        """Ends the server at once, as a crash would."""
        self.process.kill()
        self.process.wait()


def free_port() -> int:
    """Returns a TCP port of 127.0.0.1 on which nobody listens.

    It is none of those that the kernel gives to connections and to listeners without a port of their own, so it stays
    free while a server starts, or starts again.
    """
    first = max(20_000, int(_EPHEMERAL.read_text().split()[0]))
    while True:
        port = 10_000 + secrets.randbelow(first - 10_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def start_rclone(folder: Path, *extra: str, port: int | None = None) -> S3Server:
    """Starts `rclone serve s3` over a folder: persistent, checks signatures, ignores If-None-Match.

    ETags are off because rclone otherwise reads the whole file again for each HEAD, ranged GET and listed entry. It
    deadlocks on deletes with a directory cache time of zero, so change its files through the server.
    """
    access, secret = "deerstalker-test-access", "deerstalker-test-" + "s" * 24
    port = port or free_port()
    program = str(Path(sys.executable).parent / "rclone")
    command = [program, "serve", "s3", "--addr", f"127.0.0.1:{port}", "--auth-key", f"{access},{secret}"]
    command += ["--config", os.devnull, "--etag-hash", "", *extra, str(folder)]
    return _started(command, port, access, secret, folder)


def start_moto(*, port: int | None = None, host: str = "127.0.0.1") -> S3Server:
    """Starts `moto_server`: in memory, honours If-None-Match (see `tests.support.atomic_moto`)."""
    port = port or free_port()
    program = str(Path(__file__).with_name("atomic_moto.py"))
    command = [sys.executable, "-P", program, "-H", host, "-p", str(port)]
    return _started(command, port, "test-" + secrets.token_hex(8), "test-" + secrets.token_hex(16), None, host)


@contextmanager
def rclone_server(folder: Path, *extra: str) -> Generator[S3Server]:
    """Runs `start_rclone` for the length of a with block."""
    server = start_rclone(folder, *extra)
    try:
        yield server
    finally:
        server.kill()


@contextmanager
def moto_server(host: str = "127.0.0.1") -> Generator[S3Server]:
    """Runs `start_moto` for the length of a with block."""
    server = start_moto(host=host)
    try:
        yield server
    finally:
        server.kill()


def _started(
    command: list[str], port: int, access: str, secret: str, folder: Path | None, host: str = "127.0.0.1"
) -> S3Server:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + _START_LIMIT_S
    while True:
        if process.poll() is not None:
            raise RuntimeError(f"{command[0]} ended with {process.returncode} before it listened")
        try:
            socket.create_connection((host, port), timeout=1).close()
            break
        except OSError:
            if time.monotonic() > deadline:
                process.kill()
                raise
            time.sleep(0.05)
    return S3Server(f"http://{host}:{port}", access, secret, process, folder)
