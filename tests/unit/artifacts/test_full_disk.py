"""However a writer fails on a full disk, the error names the folder; errors with another reason stay as they are."""

import errno
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from artifacts.errors import BadInputError, DeerstalkerError, DiskFullError, IntegrityError, StoreError, TransientError
from artifacts.local.full_disk import DiskWatch, free_bytes

MAPPED = """
import mmap, os, sys
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.ftruncate(file, 1 << 16)
mmap.mmap(file, 1 << 16).write(bytes(1 << 16))
"""
"""A process that writes through the page cache: a full disk ends it with SIGBUS, without a word."""


def fill(disk: Path, left_bytes: int = 0) -> None:
    with (disk / "filler").open("ab") as filler:
        os.posix_fallocate(filler.fileno(), 0, free_bytes(disk) - left_bytes)


def plain_file(disk: Path) -> None:
    (disk / "file").write_bytes(bytes(1 << 16))


def database(disk: Path) -> None:
    with closing(sqlite3.connect(disk / "database")) as connection:
        connection.execute("create table t as select zeroblob(65536)")


def tensors(disk: Path) -> None:
    save_file({"weights": np.zeros(1 << 16, np.uint8)}, disk / "tensors")


def copy(disk: Path) -> None:
    """The error names both files, and first the one that is read."""
    shutil.copyfile(sys.executable, disk / "copy")


def silent_child(disk: Path) -> None:
    child = subprocess.run([sys.executable, "-c", MAPPED, str(disk / "mapped")], check=False, capture_output=True)
    assert child.returncode < 0 and not child.stderr
    raise TransientError("trainer", "the workers died", "", "last lines of log.txt:\n")


@pytest.mark.parametrize("writer", [plain_file, database, tensors, copy, silent_child])
@pytest.mark.parametrize("left_bytes", [0, 12 << 10])
def test_a_full_disk_is_named(
    small_disk: Path, tmp_path: Path, writer: Callable[[Path], None], left_bytes: int
) -> None:
    fill(small_disk, left_bytes)
    words = r"small: no space left, 0\.0 MiB are free; expected room for .*free some space.*then the same command"
    with pytest.raises(DiskFullError, match=words) as caught, DiskWatch([tmp_path, small_disk]).explaining():
        writer(small_disk)
    assert len(str(caught.value).splitlines()) == 1 and caught.value.__cause__ is not None


def test_a_disk_that_was_full_a_moment_ago_is_named(small_disk: Path, tmp_path: Path) -> None:
    """The guard of a child that died has removed its files by the time of the report."""
    (small_disk.parent / "x").mkdir()
    watch = DiskWatch([tmp_path, small_disk])
    fill(small_disk)
    watch.look()
    (small_disk / "filler").unlink()
    found = watch.full(BadInputError("engine", "ended with status 1 before it was ready"))
    assert found is not None and found.where == str(small_disk) and found.found.startswith("no space left, 0.0 MiB")


def test_a_full_folder_for_temporary_files_is_refused_though_python_passes_over_it(
    small_disk: Path, tmp_path: Path
) -> None:
    """`tempfile` would use /tmp without a word, and child processes this folder."""
    fill(small_disk)
    environment = {**os.environ, "TMPDIR": str(small_disk), "PREFECT_HOME": str(tmp_path / "prefect")}
    environment.pop("PREFECT_API_URL", None)
    command = [sys.executable, "-c", "from flows.cli.app import main; main()", "train", "--store", "store"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and f"error: {small_disk}: no space left, 0.0 MiB" in done.stderr, done.stderr


def test_errors_with_another_reason_stay(small_disk: Path, tmp_path: Path) -> None:
    roomy = DiskWatch([tmp_path])
    assert roomy.full(TransientError("trainer", "the workers died")) is None
    assert roomy.full(RuntimeError("unforeseen")) is None
    fill(small_disk)
    full = DiskWatch([small_disk])
    errors = (BadInputError("mine.toml", "no number"), IntegrityError("a", "another checksum"), StoreError("s3", "no"))
    assert [full.full(error) for error in errors] == [None] * 3
    assert full.full(DeerstalkerError("local Prefect server", "ended with 3")) is not None


def test_a_quota_is_named_however_much_is_free(tmp_path: Path) -> None:
    """Quotas do not bind root, so the error is the kernel's own, made here."""
    error = OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), str(tmp_path / "file"))
    found = DiskWatch([]).full(error)
    assert found is not None and str(found).startswith(f"{tmp_path}: no space left: the user's quota is used up; ")
