"""Debian's PostgreSQL for tests: a cluster of its own, on 127.0.0.1, that ends with its context."""

import os
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.servers import free_port

_START_LIMIT_S = 400.0
_USER = "deerstalker"


def binaries() -> Path:
    """Returns the folder of the newest server's programs; skips the test, with a hint, if none is installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if not found:
        pytest.skip("no PostgreSQL here: apt-get install postgresql")
    return found[-1].parent


@contextmanager
def postgres_server() -> Generator[str]:
    """Runs a server; yields the address under which SQLAlchemy reaches an empty database."""
    programs, password, port = binaries(), secrets.token_hex(16), free_port()
    folder = Path(tempfile.mkdtemp(prefix="deerstalker-postgres-"))
    # PostgreSQL refuses to run as root; Debian's package makes a user for it.
    user = "postgres" if os.geteuid() == 0 else None
    try:
        (folder / "password").write_text(password)
        if user:
            for path in (folder, folder / "password"):
                shutil.chown(path, user, user)
        made = [str(programs / "initdb"), "-D", str(folder / "data"), "-U", _USER, "-A", "scram-sha-256", "--no-sync"]
        made += ["--pwfile", str(folder / "password"), "-E", "UTF8", "--locale", "C"]
        subprocess.run(made, check=True, capture_output=True, user=user, group=user, cwd=folder)
        command = [str(programs / "postgres"), "-D", str(folder / "data"), "-p", str(port), "-h", "127.0.0.1"]
        command += ["-c", "unix_socket_directories=", "-c", "fsync=off"]
        with (folder / "log.txt").open("wb") as log:
            server = subprocess.Popen(command, stdout=log, stderr=log, user=user, group=user, cwd=folder)
        try:
            _wait(programs, port, server, folder / "log.txt")
            yield f"postgresql+asyncpg://{_USER}:{password}@127.0.0.1:{port}/postgres"
        finally:
            server.terminate()
            server.wait()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def query(url: str, text: str) -> list[str]:
    """Rows of a query as psql prints them, unaligned."""
    plain = url.replace("+asyncpg", "")
    command = [str(binaries() / "psql"), "-X", "-A", "-t", "-d", plain, "-c", text]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def _wait(programs: Path, port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    asked = [str(programs / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(port)]
    deadline = time.monotonic() + _START_LIMIT_S
    while subprocess.run(asked, check=False).returncode != 0:
        assert server.poll() is None and time.monotonic() < deadline, log.read_text(errors="replace")[-2000:]
        time.sleep(0.1)
