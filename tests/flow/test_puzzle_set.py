"""`deerstalker puzzles make`, killed on the way: what was drawn is kept, and the puzzles are those of a quiet run."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from artifacts.address import ArtifactAddress
from artifacts.reading import Artifact
from artifacts.refs import Puzzles, Ref
from artifacts.schemas import PUZZLES
from artifacts.store.store import Store
from stages.environments.generate import TIERS
from stages.environments.tables import from_table
from stages.prepare import PrepareConfig, prepare
from tests.support.contexts import make_context
from tests.support.json_page import check_documented
from tests.support.processes import DEERSTALKER, marked
from tests.support.waiting import changes, output_of, wait_until

SET = PrepareConfig(puzzle=TIERS["small"], train=32, val=4, test=4, seed=2)
SIZES = ("--count", "32", "--val", "4", "--test", "4")
LIMIT_S = 400

MARK = "DEERSTALKER_TEST_STORE"


def start(out: Path, prefect_api_url: str, *sizes: str) -> subprocess.Popen[str]:
    command = [
        DEERSTALKER, "puzzles", "make", "--size", "small", *sizes,
        "--seed", "2", "--out", str(out), "--json",
    ]  # fmt: skip
    environment = {**os.environ, MARK: str(out), "PREFECT_API_URL": prefect_api_url}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment)


def drawn(store: Path) -> dict[str, int]:
    """Manifests of published stretches, with the time of their writing."""
    return {str(path): path.stat().st_mtime_ns for path in store.glob("puzzles/drawn/*/manifest.json")}


def wait_for_stretches(process: subprocess.Popen[str], store: Path, count: int) -> None:
    """Waits until a running command has published so many."""

    def reached() -> bool:
        assert process.poll() is None
        return len(drawn(store)) >= count

    wait_until(reached, LIMIT_S, poll_s=0.005, progress=lambda: changes(store))


def killed(out: Path, store: Path, prefect_api_url: str, *sizes: str) -> dict[str, int]:
    """What a command has published that was killed on its way, once all that it started is gone."""
    process = start(out, prefect_api_url, *sizes)
    wait_for_stretches(process, store, 3)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    wait_until(lambda: not marked(MARK, out), LIMIT_S, lambda: marked(MARK, out))
    return drawn(store)


@pytest.mark.release
def test_a_killed_command_is_continued_and_ends_the_same(tmp_path: Path, prefect_api_url: str) -> None:
    """`tests/unit/stages/test_prepare.py` interrupts the stage."""
    store = tmp_path / "store"
    before = killed(store, store, prefect_api_url, *SIZES)
    assert len(before) < len(SET.first_stretches())
    assert not list(store.glob("puzzles/set-*/manifest.json"))

    output, _ = output_of(start(store, prefect_api_url, *SIZES), LIMIT_S, store)
    made = json.loads(output)
    assert {path: written for path, written in drawn(store).items() if path in before} == before
    with make_context(Store.open("memory://undisturbed-set"), tmp_path / "scratch") as ctx:
        undisturbed = prepare(ctx, SET, out=ArtifactAddress(ctx.store, "set", Puzzles))
    assert made["artifact"]["digest"] == undisturbed.digest
    train = Artifact.open(Store.open(str(store)), Ref(**made["artifact"])).read_table("train.parquet", PUZZLES)
    assert len(train) == 32


@pytest.mark.release
def test_a_file_that_was_killed_on_the_way_goes_on_too(tmp_path: Path, prefect_api_url: str) -> None:
    path, folder = tmp_path / "made.json", tmp_path / ".made.json.drawn"
    before = killed(path, folder, prefect_api_url, "--count", "64")
    assert not path.exists()
    second = start(path, prefect_api_url, "--count", "64")
    wait_for_stretches(second, folder, len(before) + 1)
    assert {name: written for name, written in drawn(folder).items() if name in before} == before
    output, _ = output_of(second, LIMIT_S, folder)
    written = json.loads(output)
    assert written["puzzles"] == 64
    check_documented("puzzles make", written, unmet={"store", "train", "val", "test", "artifact", "report"})
    assert list(tmp_path.iterdir()) == [path]
    with make_context(Store.open("memory://undisturbed-file"), tmp_path / "scratch") as ctx:
        ref = prepare(
            ctx,
            SET.model_copy(update={"train": 64, "val": 0, "test": 0}),
            out=ArtifactAddress(ctx.store, "set", Puzzles),
        )
        rows = from_table(Artifact.open(ctx.store, ref).read_table("train.parquet", PUZZLES))
    assert [item["prompt"] for item in json.loads(path.read_text())] == [item.prompt for item in rows]
