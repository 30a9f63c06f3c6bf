"""The notebook of the docs: what it holds, and that its code does what its text says."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest

NOTEBOOK = Path(__file__).parents[2] / "docs" / "notebooks" / "rollouts.ipynb"
LIMIT_S = 1700


def cells(kind: str) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == kind]


def test_it_holds_no_outputs_and_no_place_of_a_machine() -> None:
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells("code"))
    assert not re.search(r"/(home|root|tmp|work|Users)/", NOTEBOOK.read_text())


@pytest.mark.release
def test_its_code_runs_from_the_first_cell_to_the_last(tmp_path: Path, prefect_api_url: str) -> None:
    script = tmp_path / "cells.py"
    parts = [f'print("cell {number}")\n' + "".join(cell["source"]) for number, cell in enumerate(cells("code"))]
    code = "\n".join(parts).replace("\n", "\n    ")
    script.write_text(f'if __name__ == "__main__":\n    {code}\n')
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, env={**os.environ, "PREFECT_API_URL": prefect_api_url},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=LIMIT_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:]
    shown = re.split(r"^cell \d\n", done.stdout, flags=re.M)[1:]
    assert len(shown) == len(cells("code"))
    assert "interrupted, status 130" in shown[0]
    assert re.search(r"^sample-0001 +cached$", shown[1], re.M), "the completions were not sampled again"
    assert "'reward'" in shown[2]
    assert "groups without a signal: " in shown[3]
    assert "groups with a signal, old" in shown[4]
    rows = pl.read_parquet(tmp_path / "rollouts.parquet")
    assert rows["step"].unique().sort().to_list() == [1, 2]
    assert len(rows) == 2 * 16 * 16
