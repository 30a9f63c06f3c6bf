"""`deerstalker doctor` as a command: its pages, its document and its exit status."""

import json
import os
import subprocess
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from artifacts.store.store import Store
from flows.cli.app import run_command
from tests.support.servers import S3Server, free_port, moto_server


def _run(arguments: list[str], folder: Path, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    unset = ("PREFECT_API_URL", "PREFECT_HOME")
    inherited = {name: value for name, value in os.environ.items() if name not in unset}
    command = [str(Path(sys.executable).parent / "deerstalker"), "doctor", *arguments]
    environment = {**inherited, **environment}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_the_command_on_an_imitated_older_cpu(tmp_path: Path) -> None:
    older = {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}
    done = _run(["--set-profile", "engine.kv_cache_gib=1.0"], tmp_path, older)
    assert "internal" not in done.stderr
    assert done.returncode == (1 if "\nproblem" in f"\n{done.stdout}" else 0)
    lines = {line[9:28].strip(): line for line in done.stdout.splitlines() if line[:9].strip()}
    assert lines["CPU"].startswith("ok") and "amx" not in lines["CPU"]
    assert lines["Prefect"].startswith("ok") and lines["store"].startswith("ok")
    assert "fp32 (the CPU has neither avx512_bf16 nor amx_bf16)" in lines["trainer type"]
    assert "in bf16" in lines["trainer type"] and "float32" in lines["engine type"]
    assert list(tmp_path.iterdir()) == []


@contextmanager
def _bucket() -> Generator[S3Server]:
    with moto_server() as server:
        server.create_bucket("bucket")
        yield server


@pytest.mark.long
def test_the_command_on_a_bucket_with_a_recipe_that_does_not_fit(tmp_path: Path) -> None:
    api = f"http://127.0.0.1:{free_port()}/api"
    with _bucket() as server:
        environment = {**server.environment(), "PREFECT_API_URL": api}
        arguments = ["--store", "s3://bucket/prefix", "--recipe", "openpipe_32b", "--set", "iterations=7", "--json"]
        done = _run(arguments, tmp_path, environment)
        assert Store.open("s3://bucket", options=server.options()).list() == []
    assert done.returncode == 1
    page = json.loads(done.stdout)
    checks = {check["name"]: check for check in page["checks"]}
    assert page["status"] == "problem" and page["recipe"] == "openpipe_32b"
    assert checks["conditional puts"]["status"] == "ok" and checks["store"]["status"] == "ok"
    assert checks["Prefect"]["status"] == "problem" and api in checks["Prefect"]["found"]
    assert "by its published config.json" in checks["model"]["found"]
    assert checks["recipe memory"]["status"] == "problem"
    assert "7 iterations" in checks["recipe disk"]["found"]
    assert "an iteration, estimated" in checks["recipe time"]["found"]
    assert all(check["remedy"] for check in page["checks"] if check["status"] != "ok")
    assert "error: doctor:" in done.stderr and "recipe memory" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--profile", "nope"], "profile 'nope'"),
        (["--set-profile", "trainer.nope=1"], "trainer.nope"),
        (["--recipe", "nope"], "recipe 'nope': unknown"),
        (["--set", "iterations=3"], "--set: no --recipe"),
        (["--store", "ftp://x"], "scheme 'ftp'"),
    ],
)
def test_bad_usage(
    arguments: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_command(["doctor", *arguments]) == 2
    assert words in capsys.readouterr().err
