"""One tiny run whose flow or trainer is killed while an optimizer state is being saved beside other stages."""

import os
import re
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.kills_run import RUN_LIMIT_S, TINY_RUN, VICTIMS, Run
from tests.support.waiting import wait_until

LONGEST_DELAY_S = 0.15
_SIZE = (
    "model.hidden=256",
    "model.heads=8",
    "model.kv_heads=8",
    "model.layers=4",
    "model.intermediate=1024",
    "iterations=6",
    "evaluate.puzzles=2",
)
"""A state of 50 MB, which takes a while to write, and iterations enough for several kills."""
_TRAINED = re.compile(r"^finetune-(\d+) +[0-9.]+ s", re.MULTILINE)


@dataclass
class SavingRun(Run):
    """A run that is killed between the publication of a checkpoint and that of its optimizer state."""

    arguments: tuple[str, ...] = (*TINY_RUN, *(part for setting in _SIZE for part in ("--set", setting)))
    awaited: set[Path] = field(default_factory=set[Path])
    repeated: int = 0

    def disturb(self, kills: int) -> None:
        """Kills the flow or the trainer, each time while another state is being saved, and lets the run finish.

        Raises:
            AssertionError: The run does not finish, or leaves a process behind.
        """
        process = self.start()
        while sum(self.kills.values()) < kills:
            if state := self._being_saved(process):
                self._kill_while_saving(process, state)
            if process.poll() is not None:
                self.nothing_is_left()
                if process.returncode == 0:
                    return
                process = self.start()
        self.let_finish(process)

    def _being_saved(self, process: subprocess.Popen[bytes]) -> Path | None:
        """Waits for a checkpoint without a state, and returns the manifest that its state will have."""
        found: list[Path] = []

        def looked() -> bool:
            if process.poll() is not None:
                return True
            for checkpoint in self.store.glob("runs/tiny/iterations/*/checkpoint/manifest.json"):
                state = checkpoint.parent.parent / "optimizer_state" / "manifest.json"
                if checkpoint not in self.awaited and not state.exists():
                    self.awaited.add(checkpoint)
                    found.append(state)
                    return True
            return False

        wait_until(looked, RUN_LIMIT_S, self.tail, 0.002, self.progress)
        return next(iter(found), None)

    def _kill_while_saving(self, flow: subprocess.Popen[bytes], state: Path) -> None:
        name = self.generator.choice(["flow", "trainer rank"])
        victim = flow.pid
        if name != "flow":
            victim = next(pid for pid, line in self.processes().items() if VICTIMS[name] in line)
        time.sleep(self.generator.uniform(0, LONGEST_DELAY_S))
        if not state.exists():
            os.kill(victim, signal.SIGKILL)
            self.kills[f"{name}, state unpublished"] += 1
        self.remember()

    def check(self, undisturbed: dict[str, str]) -> None:
        """Checks also that states belong to their checkpoints, and that a kill repeated one training at most."""
        super().check(undisturbed)
        made = self.manifests()
        for key in [key for key, one in made.items() if one.kind == "OptimizerState"]:
            checkpoint = made[key.replace("/optimizer_state", "/checkpoint")]
            assert made[key].inputs["checkpoint"]["digest"] == checkpoint.digest, f"{key} is another one's"
        log = (self.folder / "log.txt").read_text(errors="replace")
        numbers = _TRAINED.findall(log)
        repeated = len(numbers) - len(set(numbers))
        assert repeated <= sum(self.kills.values()), f"a finetune was made again without need: {numbers}"
        self.repeated = repeated
