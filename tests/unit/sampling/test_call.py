"""The threads of a call: how many wake for a prompt."""

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from stages.sampling.client import Prompt, ReadyEngine
from stages.sampling.config import SamplingConfig
from stages.sampling.endpoint import Endpoint
from stages.sampling.replicas.call import Call, EngineLoss
from tests.support.waiting import wait_until


class Counted(threading.Condition):
    """A condition that counts its waits, begun and ended."""

    def __init__(self, lock: Any = None) -> None:
        super().__init__(lock)
        self.begun = self.ended = 0

    def wait(self, timeout: float | None = None) -> bool:
        """Waits as its base class does."""
        self.begun += 1
        woken = super().wait(timeout)
        self.ended += 1
        return woken


def test_a_further_turn_wakes_one_thread(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """When all threads woke for each turn, `sample` of the game in docs/episodes.md took 7.2 s instead of 3.0 s."""
    made: list[Counted] = []

    def condition(lock: Any = None) -> Counted:
        made.append(Counted(lock))
        return made[-1]

    monkeypatch.setattr(threading, "Condition", condition)
    config, prompts = SamplingConfig(samples_per_prompt=16), [Prompt(str(i), [1]) for i in range(4)]
    with Call(prompts, config, (), engines=1, max_num_seqs=64, stall_timeout_s=60.0, turns=True) as call:
        call.join(ReadyEngine(Endpoint(tmp_path / "no-engine.sock"), "w", "0", 0))
        for _ in prompts:
            assert isinstance(call.next(120.0), EngineLoss)
        wait_until(lambda: max(one.begun - one.ended for one in made) >= 60, 120.0, poll_s=0.01)
        waited_for = max(made, key=lambda one: one.begun - one.ended)
        before = waited_for.ended
        call.put_first([Prompt("again", [1])])
        assert isinstance(call.next(120.0), EngineLoss)
        time.sleep(0.2)  # for those that wake in vain
        assert waited_for.ended - before == 1
