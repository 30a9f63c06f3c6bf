"""A sample of the campaign of bad inputs (`tests.faults.inputs`), in a process of its own: it changes much.

The seed is fixed, so that a change fails by what it does and not by chance. The campaign itself draws new ones.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.bad_inputs.classes import CLASSES
from tests.support.bad_inputs.command_lines import commands, only_looks, refused
from tests.support.bad_inputs.ground import Ground
from tests.support.bad_inputs.trial import Case
from tests.support.bad_inputs.worker import MEMORY_BYTES, tried


@pytest.mark.parametrize("count", [60, pytest.param(200, marks=pytest.mark.release)])
def test_no_bad_input_breaks_the_rule(count: int) -> None:
    command = [sys.executable, "-m", "tests.faults.inputs", "--count", str(count), "--seed", "1", "--json"]
    done = subprocess.run(command, cwd=Path(__file__).parents[3], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    document = json.loads(done.stdout)
    assert document["count"] == count
    assert document["violating"] == []
    assert {bar["name"]: bar["value"] for bar in document["bars"]} == {f"violations, {name}": 0 for name in CLASSES}
    assert sum(figures["refused"] for figures in document["classes"].values()) > count / 2


def test_each_command_is_one_that_looks_or_one_that_is_refused() -> None:
    classed = {path for path, _ in commands() if only_looks(path) or refused(path) != ("--no-such-option",)}
    assert {path for path, _ in commands()} - classed == {("doctor",), ("puzzles", "solve")}


def _takes_memory(folder: Path) -> None:
    bytearray(2 * MEMORY_BYTES)  # never written to, so that it takes none where there is no limit


def _does_not_end(folder: Path) -> None:
    time.sleep(1000)


def _harmful(ground: Ground) -> Iterator[Case]:
    """Two inputs that no limit inside the process stops, between inputs that are refused."""
    for prepare in (_takes_memory, _does_not_end):
        yield Case("harmful", ("recipes", "show", "nothing"))
        yield Case("harmful", ("recipes", "show", "nothing"), prepare)
    yield Case("harmful", ("recipes", "show", "nothing"))


@pytest.mark.release
def test_a_case_without_an_end_is_ended_and_the_others_are_tried(tmp_path: Path) -> None:
    outcomes = [one.outcome for one in tried(_harmful, 5, tmp_path, wall_limit_s=30.0)]
    rules = [(), ("the process died",), (), ("no end",), ()]
    assert [one.violations for one in outcomes] == rules
    assert [one.status for one in outcomes] == [2, None, 2, None, 2]
    assert max(one.seconds for one in outcomes) < 300
