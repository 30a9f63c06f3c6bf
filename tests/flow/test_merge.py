"""`deerstalker merge` as a user runs it: its document, a kill, and what a killed merge leaves."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from artifacts.store.store import Store
from artifacts.verification import verify
from tests.support.json_page import check_documented
from tests.support.processes import DEERSTALKER, marked
from tests.support.specialists import SHAPE, publish_specialist, write_specialist
from tests.support.waiting import wait_until

MARK = "DEERSTALKER_MERGE_TEST"
DEEP = SHAPE.model_copy(update={"layers": 400})
"""Enough tensors that a kill meets a merge at work."""
LIMIT_S = 600.0


def merge_command(store: Path) -> list[str]:
    models = ["--model", "models/seed1", "--base", "models/seed0"]
    return [DEERSTALKER, "merge", *models, "--store", str(store), "--json"]


def merged(store: Path, environment: dict[str, str]) -> dict[str, object]:
    done = subprocess.run(merge_command(store), capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.release
def test_a_merge_that_is_killed_leaves_nothing_and_begins_again(tmp_path: Path, prefect_api_url: str) -> None:
    stores = [tmp_path / "killed", tmp_path / "undisturbed"]
    for seed in (0, 1):
        folder = write_specialist(tmp_path / f"seed{seed}", seed, shape=DEEP)
        for store in stores:
            publish_specialist(Store.open(str(store)), folder)
    killed, _ = stores
    environment = {**os.environ, MARK: str(tmp_path), "PREFECT_API_URL": prefect_api_url}
    owner = subprocess.Popen(
        merge_command(killed), env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )

    def written() -> list[Path]:
        return [path for path in killed.glob("models/merged-*/*/model.safetensors") if path.stat().st_size > 0]

    wait_until(lambda: written() or owner.poll() is not None, LIMIT_S, lambda: "the merge has written no weights")
    assert owner.poll() is None
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    wait_until(lambda: not marked(MARK, tmp_path), LIMIT_S, lambda: f"still alive: {marked(MARK, tmp_path)}")
    assert not list(killed.glob("models/merged-*/manifest.json"))
    again, other = (merged(store, environment) for store in stores)
    assert again["checkpoint"] == other["checkpoint"]
    assert merged(killed, environment) == again
    assert not verify(Store.open(str(killed))).damaged
    check_documented("merge", again)
