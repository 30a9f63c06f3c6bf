"""What `deerstalker doctor` says of stores, and how an error of a store names it."""

import errno
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from artifacts.errors import SEE_DOCTOR, BadInputError, StoreError
from artifacts.store.store import S3Options, Store
from flows.cli.doctor import page_line
from flows.doctor.checks import (
    creates_check,
    space_check,
    store_check,
)
from flows.doctor.store_facts import StoreFacts, folder_facts, nearest_folder, object_facts
from flows.orchestration.server.backend import explain_no_answer
from stages.hardware.compute_type import engine_build
from stages.training.worker_group.group import memory_remedy
from stages.training.worker_group.hardware import TrainHardware
from tests.support.doctor import FOLDER, GIB, says
from tests.support.servers import free_port, rclone_server


def test_stores() -> None:
    says(store_check(FOLDER), "ok", "/data, writes 286 MiB/s")
    says(store_check(replace(FOLDER, write_bytes_s=5e6)), "warning", "--store")
    says(store_check(replace(FOLDER, exists=False, place=Path("/"))), "ok", "not created yet, in /")
    full = StoreError("file:///data", "no space left", "", f"free space; {SEE_DOCTOR}")
    line = store_check(replace(FOLDER, error=full))
    says(line, "problem", "file:///data: no space left", "-> free space\n")
    assert "doctor" not in page_line(line)
    says(space_check(FOLDER), "ok", "100.0 GiB of 200.0 GiB free")
    says(space_check(replace(FOLDER, free_bytes=GIB)), "warning", "deerstalker prune")
    says(space_check(replace(FOLDER, free_bytes=0)), "problem", "0 MiB", "deerstalker prune")
    assert space_check(replace(FOLDER, free_bytes=None)) is None
    says(creates_check(FOLDER), "ok", "hard links")
    says(creates_check(replace(FOLDER, creates=False)), "problem", "file system")
    bucket = StoreFacts("s3://b/x", "s3", write_bytes_s=1e6, creates=False)
    says(creates_check(bucket), "warning", "If-None-Match is ignored", "one machine")
    says(creates_check(replace(bucket, creates=True)), "ok", "honoured")
    assert creates_check(replace(bucket, creates=None)) is None


def test_a_folder_is_tried_and_left_as_it_was(tmp_path: Path) -> None:
    facts = folder_facts(tmp_path / "absent" / "store")
    assert not facts.exists and facts.place == tmp_path and facts.creates and facts.error is None
    assert facts.write_bytes_s and facts.free_bytes
    store = tmp_path / "store"
    store.mkdir()
    (store / "kept").write_text("x")
    assert folder_facts(store).exists
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["kept", "store"]
    with pytest.raises(BadInputError, match="a file"):
        folder_facts(store / "kept")
    assert folder_facts(Path("/proc/absent/store")).error is not None


def test_a_folder_below_one_that_may_not_be_searched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stat, statvfs, closed = os.stat, os.statvfs, tmp_path / "closed"
    closed.mkdir()

    def refused(path: Any, *arguments: Any, **settings: Any) -> os.stat_result:
        if closed in Path(os.fsdecode(path)).parents:
            raise PermissionError(errno.EACCES, "Permission denied")
        return stat(path, *arguments, **settings)

    monkeypatch.setattr(os, "stat", refused)
    assert nearest_folder(closed / "a" / "store") == closed

    def without_room(path: Any) -> os.statvfs_result:
        if path == closed:
            raise PermissionError(errno.EACCES, "Permission denied")
        return statvfs(path)

    monkeypatch.setattr(os, "statvfs", without_room)
    facts = folder_facts(closed / "a" / "store")
    says(store_check(facts), "problem", "cannot be written: Permission denied")
    assert space_check(facts) is None


def test_a_full_disk_is_a_problem(small_disk: Path) -> None:
    (small_disk / "fill").write_bytes(b"x" * (1 << 20))
    facts = folder_facts(small_disk)
    says(space_check(facts), "problem", "deerstalker prune")
    with pytest.raises(StoreError, match=r"no space left.*free some space"):
        Store.open(str(small_disk)).write_bytes("more", b"x" * (1 << 20))


def test_buckets_with_and_without_conditional_puts(tmp_path: Path) -> None:
    (tmp_path / "bucket").mkdir()
    with rclone_server(tmp_path) as server:
        facts = object_facts("s3://bucket/prefix", server.options())
        assert facts.error is None and facts.write_bytes_s
        says(creates_check(facts), "warning", "If-None-Match is ignored")
        assert Store.open("s3://bucket", options=server.options()).list() == []
        absent = object_facts("s3://nobody/prefix", server.options())
        says(store_check(absent), "problem", "check its name or create it")
        assert not (tmp_path / "nobody").exists()


def test_errors_for_want_of_what_is_checked_name_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    silent = f"http://127.0.0.1:{free_port()}"
    options = S3Options(endpoint_url=silent, access_key="a", secret_key="b", region="us-east-1", open_retry_for_s=0)
    with pytest.raises(StoreError, match=SEE_DOCTOR):
        Store.open("s3://bucket/x", options=options)
    monkeypatch.setenv("PREFECT_API_URL", f"{silent}/api")
    with pytest.raises(Exception, match=f"Prefect API.*{SEE_DOCTOR}"), explain_no_answer("start it"):
        httpx.get(silent)
    assert SEE_DOCTOR in memory_remedy(TrainHardware())
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(BadInputError, match=f"vLLM is not installed.*{SEE_DOCTOR}"):
        engine_build()


def test_a_store_that_may_not_be_written_names_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refused(*arguments: object, **settings: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    store = Store.open(str(tmp_path))
    monkeypatch.setattr(os, "link", refused)
    with pytest.raises(StoreError, match=f"not writable.*{SEE_DOCTOR}"):
        store.create_bytes("key", b"x")
    says(creates_check(folder_facts(tmp_path)), "problem", "hard links")


@pytest.mark.parametrize("number", [errno.EPERM, errno.EACCES, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP])
def test_file_systems_without_hard_links(number: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refused(*arguments: object, **settings: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", refused)
    facts = folder_facts(tmp_path)
    says(store_check(facts), "ok")
    says(creates_check(facts), "problem", "no hard links")
    assert list(tmp_path.iterdir()) == []


def test_a_link_that_fails_for_another_reason_is_no_want_of_hard_links(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def failed(*arguments: object, **settings: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "link", failed)
    facts = folder_facts(tmp_path)
    says(store_check(facts), "problem", "cannot be written: Input/output error")
    assert creates_check(facts) is None
