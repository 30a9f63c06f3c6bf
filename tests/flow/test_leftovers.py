"""Flows that are refused leave nothing behind: no scratch folder, no empty attempt in the store."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from artifacts.store.store import Store
from tests.support.made_run import make_run

pytestmark = pytest.mark.long

_COMMAND = [sys.executable, "-c", "from flows.cli.app import main; main()"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the run `made`, and a model folder that is none."""
    folder = tmp_path_factory.mktemp("refused")
    make_run(Store.open(str(folder / "store")), iterations=1)
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text(json.dumps({"architectures": ["NobodyForCausalLM"]}))
    (folder / "temporary").mkdir()
    return folder


def _paths(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if ".prefect" not in path.parts}


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["evaluate", "--checkpoint", "./model", "--puzzles", "made:test"], "model"),
        (["evaluate", "--checkpoint", "made", "--puzzles", "nobody:test"], "run 'nobody': not in"),
        (["backfill", "made", "--suite", "harder", "--puzzles", "nobody:test"], "run 'nobody': not in"),
    ],
)
def test_a_refused_flow_leaves_nothing(folder: Path, command: list[str], words: str) -> None:
    before = _paths(folder / "store")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    done = subprocess.run(
        [*_COMMAND, *command, "--store", str(folder / "store")],
        cwd=folder,
        env={**environment, "TMPDIR": str(folder / "temporary")},
        capture_output=True,
        text=True,
        check=False,
    )
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert done.returncode == 2 and len(errors) == 1 and words in errors[0], done.stderr
    assert _paths(folder / "store") == before
    assert list((folder / "temporary").iterdir()) == []
