"""`deerstalker puzzles make`, killed on the way: what was drawn is kept, and the set is that of a quiet run."""

import json
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from artifacts.reading import Artifact
from artifacts.refs import Puzzles, Ref
from artifacts.schemas import PUZZLES
from artifacts.slot import Slot
from artifacts.store import Store
from stages.context import Profile, StageContext
from stages.prepare import PrepareConfig, prepare
from stages.puzzles.generate import TIERS
from tests.processes import marked

SET = PrepareConfig(puzzle=TIERS["small"], train=40, val=8, test=8, seed=2)
LIMIT_S = 120
MARK = "DEERSTALKER_TEST_STORE"


def start(store: Path) -> subprocess.Popen[str]:
    command = [
        str(Path(sys.executable).with_name("deerstalker")), "puzzles", "make", "--size", "small", "--count", "40",
        "--val", "8", "--test", "8", "--seed", "2", "--out", str(store), "--json",
    ]  # fmt: skip
    environment = {**os.environ, MARK: str(store)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment)


def drawn(store: Path) -> dict[str, int]:
    """Manifests of published stretches, with the time of their writing."""
    return {str(path): path.stat().st_mtime_ns for path in store.glob("puzzles/drawn/*/manifest.json")}


def test_a_killed_command_is_continued_and_ends_the_same(tmp_path: Path) -> None:
    store = tmp_path / "store"
    process = start(store)
    deadline = time.monotonic() + LIMIT_S
    while len(drawn(store)) < 3:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    before = drawn(store)
    assert len(before) < len(SET.first_stretches())
    assert not list(store.glob("puzzles/set-*/manifest.json"))
    while left := marked(MARK, store):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)

    output, _ = start(store).communicate(timeout=LIMIT_S)
    made = json.loads(output)
    assert {path: written for path, written in drawn(store).items() if path in before} == before
    with StageContext(
        Store.open("memory://undisturbed-set"), tmp_path / "scratch", Profile(), lambda *_: None, logging.getLogger()
    ) as ctx:
        undisturbed = prepare(SET, out=Slot(ctx.store, "set", Puzzles), ctx=ctx)
    assert made["artifact"]["digest"] == undisturbed.digest
    train = Artifact.open(Store.open(str(store)), Ref(**made["artifact"])).read_table("train.parquet", PUZZLES)
    assert len(train) == 40
    page = Path(made["report"].removeprefix("file://"))
    facts = json.loads(page.with_name("report.json").read_text())
    assert (facts["splits"], facts["different"]) == ({"train": 40, "val": 8, "test": 8}, 56)
    assert sum(facts["clue_kinds"].values()) == sum(facts["clues"])
    assert page.read_text().count("data:image/png") == 5
