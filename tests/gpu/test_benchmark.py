"""The benchmark of a GPU, where there is none: it refuses in one line, and its parts run in their smallest form."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-W", "ignore", "-m", "tests.benchmarks.gpu"]
OTHERS = {"gpu_run": (), "gpu_start": (), "versus_trl": ("--device", "cuda", "--trl-server")}
HERE = Path(__file__).parents[2]


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="there is a GPU")
def test_without_a_gpu_it_refuses_in_one_line() -> None:
    done = subprocess.run(COMMAND, cwd=HERE, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert "--device cpu" in done.stderr


@pytest.mark.long
@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="there is a GPU")
@pytest.mark.parametrize("module", OTHERS)
def test_without_a_gpu_each_part_refuses_in_one_line(module: str) -> None:
    command = [*COMMAND[:-1], f"tests.benchmarks.{module}", *OTHERS[module]]
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1), done.stderr


@pytest.mark.long
def test_each_part_runs_in_its_smallest_form() -> None:
    done = subprocess.run(
        [*COMMAND, "--device", "cpu", "--json"], cwd=HERE, capture_output=True, text=True, check=False
    )
    parts = json.loads(done.stdout)["parts"]
    assert {name: part["status"] for name, part in parts.items()} == dict.fromkeys(
        ("trainer-0.5b", "trainer-7b", "run", "start"), 0
    ), done.stderr[-3000:]
    assert {row["compiled"] for row in parts["trainer-7b"]["document"]["rows"]} == {False, True}
    assert parts["run"]["document"]["tokens_per_s"] > 0
    starts = [parts["start"]["document"][name] for name in ("cold", "warm")]
    # The benchmark finds vLLM's lines. Of some forty starts, the logs of two had no line of the core; why is not known.
    logged = [start for start in starts if None not in (start["parts_s"]["imports"], start["parts_s"]["load"])]
    assert logged, done.stderr[-30000:]
    assert all(0 < start["parts_s"]["imports"] < start["ready_s"] for start in logged)
