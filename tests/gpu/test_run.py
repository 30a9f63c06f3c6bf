"""A whole run on a GPU, whose flow is killed once: engine, trainer and their memory come back, and nothing is lost."""

import random
from pathlib import Path

import pytest
import torch

from stages.hardware.compute_type import engine_build
from tests.support.kills_run import Run
from tests.support.waiting import wait_until

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or engine_build()[0] != "vllm", reason="needs a CUDA device and vLLM's build for it"
)

SIZES = ("iterations=3", "puzzles.train=2600", "puzzles.test=64", "final.puzzles=64")
ROOM = ("engine.memory_share=0.2", "engine.kv_cache_gib=2")
"""Little of the card, so that these tests run side by side: pytest -n 4 tests/gpu."""
START_LIMIT_S = 240.0
"""Seconds without progress."""


@pytest.mark.parametrize("turns", [False, True], ids=["split", "turns"])
def test_a_run_whose_flow_is_killed_goes_on_where_it_was(tmp_path: Path, turns: bool) -> None:
    changes = [word for size in SIZES for word in ("--set", size)]
    changes += [word for setting in ROOM for word in ("--set-profile", setting)]
    if turns:
        changes += ["--set-profile", "engine.takes_turns=true"]
    run = Run(tmp_path, random.Random(1), ("--recipe", "answers_only", "--profile", "cuda", *changes))
    process = run.start()
    graded = tmp_path / "store/runs/answers_only/iterations/0001/grades"

    def graded_or_ended() -> bool:
        return any(graded.rglob("manifest.json")) or process.poll() is not None

    wait_until(graded_or_ended, START_LIMIT_S, run.tail, 0.1, run.progress)
    assert process.poll() is None, run.tail()
    run.kill("flow", process.pid)
    process.wait()
    run.nothing_is_left()
    run.disturb(0)
    run.check(run.digests())
    assert {f"runs/answers_only/iterations/{n:04}/decision" for n in (1, 2, 3)} <= run.manifests().keys()
