"""Credentials stay in the environment: whatever a command writes anywhere, they are not in it."""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.processes import DEERSTALKER
from tests.support.secrets import holders_of
from tests.support.servers import start_rclone

LIMIT_S = 900


@pytest.fixture
def short_folder() -> Generator[Path]:
    """Sockets are made in the folder for temporary files, and their paths may not be long."""
    with tempfile.TemporaryDirectory(prefix="ds-", dir="/tmp") as folder:
        yield Path(folder)


@pytest.mark.long
def test_no_credential_is_written_anywhere(tmp_path: Path, short_folder: Path) -> None:
    """Neither where they are refused nor where a flow runs; `tests/contract` has servers that are dead or empty."""
    places = {name: tmp_path / name for name in ("home", "work", "served")}
    for place in places.values():
        place.mkdir()
    places["temporary"] = short_folder
    # The new home gets the machine's template of Prefect's database, if there is one: it saves 5 s of migrations.
    with suppress(FileNotFoundError):
        shutil.copytree(Path.home() / ".cache" / "deerstalker", places["home"] / ".cache" / "deerstalker")
    server = start_rclone(places["served"])
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "PREFECT_"))}
    environment = inherited | server.environment() | {
        "HOME": str(places["home"]), "TMPDIR": str(places["temporary"]), "AWS_EC2_METADATA_DISABLED": "true",
        "PREFECT_LOGGING_LEVEL": "DEBUG", "AWS_SESSION_TOKEN": "",
    }  # fmt: skip

    def make(**changes: str) -> subprocess.CompletedProcess[str]:
        command = [
            DEERSTALKER, "puzzles", "make", "--size", "reduced", "--count", "3",
            "--val", "0", "--test", "0", "--out", "s3://secretive/here", "--json", "--debug",
        ]  # fmt: skip
        return subprocess.run(
            command, env=environment | changes, cwd=places["work"], capture_output=True, text=True, timeout=LIMIT_S,
            check=False,
        )  # fmt: skip

    wrong = "a-secret-that-is-wrong-but-still-one"
    try:
        server.create_bucket("secretive")
        refused = make(AWS_SECRET_ACCESS_KEY=wrong)
        done = make()
    finally:
        server.kill()
    assert refused.returncode != 0 and refused.stdout == ""
    assert "refused" in refused.stderr
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout)["artifact"]["kind"] == "Puzzles"
    secrets = [server.access_key, server.secret_key, wrong]
    for attempt in (refused, done):
        assert not any(secret in attempt.stdout + attempt.stderr for secret in secrets)
    assert holders_of(secrets, list(places.values())) == []
