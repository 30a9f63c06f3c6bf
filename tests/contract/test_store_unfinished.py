"""Writes of processes that were killed leave bytes behind: they are listed, and removed once they are a day old."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from artifacts.documents.run_files import recipe_bytes
from artifacts.store.s3_requests import S3Requests
from artifacts.store.store import Store
from flows.cli.app import run_command
from flows.config.recipes import load_recipe
from flows.upkeep.removal import LOST_AFTER_S, lost, unfinished_writes
from tests.support.fault_proxy import fault_proxy
from tests.support.servers import BUCKET, S3Server

pytestmark = pytest.mark.long

PART_BYTES, PARTS, SENT = 5 << 20, 5, 2
KEY = "runs/killed/iterations/0001/checkpoint/attempt-00ff/model.safetensors"
RECIPE = recipe_bytes(load_recipe("answers_only").model_dump(mode="json"))
UPLOAD = """
import os, signal, sys
from itertools import count
from pathlib import Path
from artifacts.store.store import S3Options, Store

store = Store.open(sys.argv[1], options=S3Options(part_bytes=int(sys.argv[2]), parallel_transfers=1))
parts = count(1)
store.upload(Path(sys.argv[3]), sys.argv[4], lambda n: next(parts) < int(sys.argv[5]) or os.kill(0, signal.SIGKILL))
"""
"""A process that kills itself after so many parts."""


def killed_upload(server: S3Server, url: str, folder: Path) -> None:
    large = folder / "large"
    large.write_bytes(bytes(PARTS * PART_BYTES))
    command = [sys.executable, "-c", UPLOAD, url, str(PART_BYTES), str(large), KEY, str(SENT)]
    process = subprocess.run(command, check=False, env={**os.environ, **server.environment()}, start_new_session=True)
    assert process.returncode == -9


@pytest.fixture
def killed(s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of a store in which an upload was killed after two of five parts; a clean retry followed."""
    for name, value in s3_server.environment().items():
        monkeypatch.setenv(name, value)
    url = f"s3://{BUCKET}/orphans/{tmp_path.name}"
    store = Store.open(url)
    store.write_bytes("runs/killed/recipe.json", RECIPE)
    killed_upload(s3_server, url, tmp_path)
    store.upload(tmp_path / "large", KEY)
    foreign = S3Requests(BUCKET, "", s3_server.options())  # beside the store, and below it in a folder that is not ours
    for key in (f"orphans/{tmp_path.name}-other/runs/x", f"orphans/{tmp_path.name}/photos/x"):
        foreign.call("create_multipart_upload", Key=key)
    return url


def test_a_killed_upload_is_listed_and_removed_once_it_is_old(
    killed: str, s3_server: S3Server, capsys: pytest.CaptureFixture[str]
) -> None:
    """moto says that every upload began in 2010, rclone when it did."""
    store, old = Store.open(killed), s3_server.folder is None
    assert run_command(["verify", killed, "--json"]) == 0
    (orphan,) = json.loads(capsys.readouterr().out)["unfinished"]
    assert orphan["key"] == KEY and orphan["size_bytes"] == SENT * PART_BYTES
    assert orphan["age_s"] > LOST_AFTER_S if old else orphan["age_s"] < 600
    assert run_command(["verify", killed]) == 0
    assert f"unfinished upload: {KEY}: 10.0 MiB, " in capsys.readouterr().out
    listed = [{"key": KEY, "what": "unfinished upload", "size_bytes": SENT * PART_BYTES}] if old else []
    for more in ([], ["--yes"]):
        assert run_command(["prune", "--store", killed, "--json", *more]) == 0
        assert json.loads(capsys.readouterr().out)["removals"] == listed
        assert len(unfinished_writes(store)) == (0 if old and more else 1)
    assert lost(unfinished_writes(store, ["another"]), 0) == []
    for write in lost(unfinished_writes(store, ["killed"]), 0):
        store.remove_unfinished(write)
        store.remove_unfinished(write)  # the second time it has ended
    assert unfinished_writes(store) == [] and store.size(KEY) == PARTS * PART_BYTES
    requests = S3Requests(BUCKET, "", s3_server.options())
    left = requests.call("list_multipart_uploads", Prefix=killed.removeprefix(f"s3://{BUCKET}/"))
    assert len(left["Uploads"]) == 2, "uploads of others stay"


def test_files_that_killed_writers_left_in_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = Store.open(str(tmp_path / "store"))
    store.write_bytes("runs/killed/recipe.json", RECIPE)
    names = [f"runs/killed/.tmp-{number}-0123456789abcdef" for number in (1, 2)]
    for name in (*names, ".tmp-3-0123456789abcdef"):
        (tmp_path / "store" / name).write_bytes(bytes(1000))
    day_ago = time.time() - LOST_AFTER_S - 60
    os.utime(tmp_path / "store" / names[0], (day_ago, day_ago))
    assert run_command(["verify", store.url, "--json"]) == 0
    assert [write["key"] for write in json.loads(capsys.readouterr().out)["unfinished"]] == names
    assert run_command(["prune", "--store", store.url, "--yes"]) == 0
    assert "0 artifacts, 1 unfinished writes, 1000 B, removed" in capsys.readouterr().out
    assert [write.key for write in unfinished_writes(store)] == names[1:]
    assert store.list() == ["runs/killed/recipe.json"]


def test_a_server_that_does_not_list_uploads(
    killed: str, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A policy may allow to list keys but not uploads: the rest of `verify` works, and a line says what is missing."""
    with fault_proxy(s3_server.url, lambda method, path: "expired" if "uploads" in path else None) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        assert run_command(["verify", killed, "--json"]) == 0
        printed = capsys.readouterr()
        assert json.loads(printed.out)["unfinished"] is None
        assert "unfinished uploads are not listed: refused: ExpiredToken" in printed.err
        assert "s3:ListBucketMultipartUploads" in printed.err
