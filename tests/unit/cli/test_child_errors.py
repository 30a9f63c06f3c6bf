"""Errors of child processes: one line, then the child's own lines as an indented block."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from artifacts.errors import TransientError
from tests.support.prefect_server import without_prefect

_LIMIT_S = 600


@pytest.mark.long
def test_a_server_that_cannot_start_is_a_line_and_a_block(tmp_path: Path) -> None:
    """The server's own words are the reason, without the frames of its traceback."""
    command = [sys.executable, "-c", "from flows.cli.app import main; main()", "train", "--store", str(tmp_path)]
    environment = {**without_prefect(), "PREFECT_SERVER_DATABASE_CONNECTION_URL": "nonsense://"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=_LIMIT_S, check=False)
    line, *block = done.stderr.splitlines()
    assert done.returncode == 1
    assert line.startswith("error: local Prefect server: ended with 1; expected a server that starts; see ")
    assert "u000a" not in done.stderr and len(line) < 400
    assert 1 <= len(block) <= 10 and all(text.startswith("    ") for text in block)
    assert not any(text.lstrip().startswith(("File ", "Traceback")) for text in block)
    assert "nonsense" in done.stderr


_RAISING = """
from artifacts.errors import TransientError
from flows.cli import app
def fail():
    raise TransientError("engine", "ended\\nerror: forged", "one", "see LOG", ("a\\x1b[2Jb", "error: c\\u202e\\nd"))
app.app.command(fail)
app.main()
"""


def test_no_line_of_a_child_steers_the_terminal_or_looks_like_ours() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _RAISING, "fail"], capture_output=True, text=True, env=dict(os.environ), check=False
    )
    assert done.stderr.splitlines() == [
        "error: engine: ended\\u000aerror: forged; expected one; see LOG",
        "    a\\u001b[2Jb",
        "    error: c\\u202e\\u000ad",
    ]


def test_an_error_keeps_its_tail_between_processes_and_in_prefect() -> None:
    error = TransientError("engine", "ended", "one", "see LOG", ["a", "b"])
    copied = pickle.loads(pickle.dumps(error))
    assert (str(copied), copied.tail) == ("engine: ended; expected one; see LOG\n    a\n    b", ("a", "b"))
