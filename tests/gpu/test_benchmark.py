"""The benchmark of a GPU, where there is none: it refuses in one line, and its parts run in their smallest form."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-W", "ignore", "-m", "tests.benchmarks.gpu"]
HERE = Path(__file__).parents[2]


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="there is a GPU")
def test_without_a_gpu_it_refuses_in_one_line() -> None:
    done = subprocess.run(COMMAND, cwd=HERE, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert "--device cpu" in done.stderr


@pytest.mark.long
def test_each_part_runs_in_its_smallest_form() -> None:
    done = subprocess.run(
        [*COMMAND, "--device", "cpu", "--json"], cwd=HERE, capture_output=True, text=True, check=False
    )
    parts = json.loads(done.stdout)["parts"]
    assert {name: part["status"] for name, part in parts.items()} == dict.fromkeys(
        ("trainer-0.5b", "trainer-7b", "run"), 0
    ), done.stderr[-3000:]
    assert {row["compiled"] for row in parts["trainer-7b"]["document"]["rows"]} == {False, True}
    assert parts["run"]["document"]["tokens_per_s"] > 0
