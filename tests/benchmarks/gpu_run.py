"""A whole run on a GPU, watched from outside: `python -m tests.benchmarks.gpu_run [--device cpu] [--json]`.

Two iterations of a random model (1.3 billion weights; on a CPU a tiny one) with 1,024 long completions each. The
second one is measured: tokens a second of `sample`, the share of its time in which the card is busy (`nvidia-smi`
every 0.2 s), the parts of `finetune`, and the largest memory beside `deerstalker plan`. The time from the command to
the end of the first evaluation tells of the start of the engine. With `--turns`, engine and trainer use the memory
alternately.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from artifacts.layout import RunLayout
from flows.plan.cluster import gpu_of
from stages.hardware.compute_type import cuda_devices
from tests.support.bars import Bar, parser_of, progress, tell
from tests.support.gpu import lacks_gpu

TASK = Path(__file__).parents[1] / "support" / "noise_task.py"
TOKENS_BAR, BUSY_BAR, MEMORY_BAR = 45_000.0, 0.6, 0.1
SAMPLE_S = 0.2
LARGE = {
    "model": {
        "source": "scratch", "hidden": 1536, "layers": 28, "heads": 12, "kv_heads": 2, "head_dim": 128,
        "intermediate": 8960, "init_std": 0.02, "max_positions": 4096,
    },
    "prompts": 32, "samples": 32, "tokens": 1024,
}  # fmt: skip
SMALL = {
    "model": {"source": "scratch", "hidden": 64, "layers": 2, "max_positions": 4096},
    "prompts": 4, "samples": 4, "tokens": 32,
}  # fmt: skip


def recipe_text(size: dict[str, Any], task: Path) -> str:
    """The recipe, as TOML."""
    model = "\n".join(f"{name} = {json.dumps(value)}" for name, value in size["model"].items())
    shown = "puzzles = 4\nsampled.samples_per_prompt = 2\n"
    return (
        f'title = "A random model with long completions"\niterations = 2\n[model]\n{model}\n'
        f'[puzzles]\ntrain = {2 * size["prompts"]}\nval = 16\ntest = 16\npuzzle.environment = "{task.name}:Noise"\n'
        f"[sample]\npuzzles_per_iteration = {size['prompts']}\n"
        f"[sample.sampling]\nsamples_per_prompt = {size['samples']}\nmax_tokens = {size['tokens']}\n"
        "[grade.reward]\ntruncation_penalty = 0.0\n[pack]\nupdates = 2\n[finetune]\nlearning_rate = 1e-6\n"
        f"[evaluate]\n{shown}[final]\n{shown}"
    )


class Card:
    """What `nvidia-smi` says of the first GPU, every 0.2 s: seconds, share of time busy, bytes in use."""

    QUERY = ("nvidia-smi", "--query-gpu=utilization.gpu,memory.used", "--format=csv,noheader,nounits", "-i", "0")

    def __init__(self) -> None:
        self.seen: list[tuple[float, float, int]] = []
        command = [*self.QUERY, "-lms", str(int(1000 * SAMPLE_S))]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            busy, used = line.split(",")
            self.seen.append((time.monotonic(), float(busy) / 100, int(used) << 20))

    def end(self) -> None:
        """Ends the watch."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait()
        self._thread.join()

    def busy(self, begin: float, end: float) -> float:
        """Mean share of the time in which the card was busy."""
        shares = [busy for seconds, busy, _ in self.seen if begin <= seconds <= end]
        return sum(shares) / len(shares)

    def peak_bytes(self) -> int:
        """Most bytes in use at once, less those in use before."""
        return max(used for *_, used in self.seen) - self.seen[0][2]


def run(command: list[str], folder: Path) -> dict[str, tuple[float, float]]:
    """Runs `train`; returns begin and end of each stage, seconds since the command, by its name."""
    stages: dict[str, tuple[float, float]] = {}
    started = time.monotonic()
    process = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        progress(line.rstrip())
        if shown := re.match(r"(\S+) +(\d+\.\d) s$", line):
            end = time.monotonic()
            stages[shown[1]] = (end - float(shown[2]) - started, end - started)
    if process.wait():
        sys.exit(f"the run ended with status {process.returncode}")
    stages["command"] = (started, time.monotonic())
    return stages


def facts(store: Path, part: str) -> dict[str, Any]:
    """Facts of an artifact of the measured iteration."""
    layout = RunLayout("measured")
    (manifest,) = (store / layout.iteration(2, part)).rglob("manifest.json")
    return json.loads(manifest.read_bytes())["facts"]


def planned(recipe: Path, changes: Sequence[str]) -> dict[str, float]:
    """Bytes that `plan` expects on this card at the fullest moment, and of the trainer alone; none of unknown kinds."""
    card = cuda_devices()[0]
    gpu = gpu_of(card.name, card.memory_bytes)
    if gpu is None:
        return {}
    command = [sys.executable, "-c", "from flows.cli.app import main; main()", "plan", "--recipe", recipe.name]
    command += ["--gpus", f"1x{gpu.name}", "--profile", "cuda", *changes, "--json"]
    done = subprocess.run(command, cwd=recipe.parent, capture_output=True, text=True, check=True)
    memory = json.loads(done.stdout)["given"]["memory"]
    return {"card": max(memory[moment] for moment in ("sample", "train", "save")), "trainer": memory["trainer"]["peak"]}


def measure(device: str, turns: bool, folder: Path) -> dict[str, Any]:
    """The figures of one run."""
    size = LARGE if device == "cuda" else SMALL
    changes = ["--set-profile", "engine.takes_turns=true"] if turns else []
    recipe = folder / "measured.toml"
    recipe.write_text(recipe_text(size, TASK))
    shutil.copy(TASK, folder)
    card = Card() if device == "cuda" else None
    command = [sys.executable, "-c", "from flows.cli.app import main; main()", "train", "--recipe", recipe.name]
    command += ["--run", "measured", "--profile", device, "--store", str(folder / "store"), *changes]
    try:
        stages = run(command, folder)
    finally:
        if card:
            card.end()
    rollouts, checkpoint = facts(folder / "store", "rollouts"), facts(folder / "store", "checkpoint")
    first = next(begin_end for name, begin_end in stages.items() if name.startswith("evaluate"))
    origin = stages["command"][0]
    sampled = [origin + seconds for seconds in stages["sample-0002"]]
    return {
        "tokens": rollouts["completion_tokens"],
        "tokens_per_s": rollouts["tokens_per_s"],
        "stage_s": {name: end - begin for name, (begin, end) in stages.items() if name.endswith("-0002")},
        "finetune_s": checkpoint["totals"],
        "first_evaluation_ends_s": first[1],
        "busy_while_sampling": card and card.busy(*sampled),
        "peak_bytes": card and {"card": card.peak_bytes(), "trainer": checkpoint["totals"]["peak_memory_bytes"]},
        "planned_bytes": card and planned(recipe, changes),
    }


def bars(figures: dict[str, Any]) -> list[Bar]:
    """What was aimed for on an H100; nothing on a CPU."""
    if figures["peak_bytes"] is None:
        return []
    peaks, plan = figures["peak_bytes"], figures["planned_bytes"]
    memory = [
        Bar.at_most(f"peak memory of the {name}, off the plan", abs(peaks[name] / plan[name] - 1), MEMORY_BAR)
        for name in plan
    ]
    return [
        Bar.at_least("sample, tokens/s", figures["tokens_per_s"], TOKENS_BAR),
        Bar.at_least("sample, share of its time in which the card is busy", figures["busy_while_sampling"], BUSY_BAR),
        *memory,
    ]


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--turns", action="store_true", help="with engine.takes_turns")
    options = parser.parse_args()
    if lacks_gpu(options.device, "runs the same code"):
        return 2
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory(prefix="bench-gpu-run-") as folder:
        figures = measure(options.device, options.turns, Path(folder))
    tell(figures, bars(figures), as_json=options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
