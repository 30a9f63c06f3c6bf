"""What this pipeline does on a GPU, one document: `python -m tests.benchmarks.gpu [--part NAME ...] [--json]`, 12 min.

Each part is a benchmark of its own, in a process with a limit of its own; one that fails or takes too long leaves the
others their time, and the document says how it ended. The parts, in this order:

* `trainer-0.5b`, `trainer-7b`: shapes of Qwen2.5, eager and compiled, in shares of the card's matmul peak
  (`trainer_gpu`);
* `run`, `run-turns`: tokens a second and the card's busy share in `sample`, the parts of `finetune`, memory beside
  `plan`, with a static split of the memory and with `engine.takes_turns` (`gpu_run`);
* `start`: the engine's cold start in parts, and its start with a warm compile cache (`gpu_start`);
* `trl`, `trl-generate`, `trl-server`: an iteration of SmolLM2 beside TRL's, with vLLM in TRL's process, without it, and
  in a process of its own, which refuses where there is no second card (`versus_trl`); `--trl-python` names a Python
  that has TRL, where there is no network.

`--device cpu` runs the parts in their smallest form, to see that they run; it has no bars.
"""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.bars import Bar, parser_of, progress, tell
from tests.support.gpu import gpu_is_in_use, lacks_gpu

HERE = Path(__file__).parents[2]
END_S = 20.0
UTILISATION_BARS = {"qwen2.5-0.5b": 0.40, "qwen2.5-7b": 0.55}


@dataclass(frozen=True)
class Part:
    """A benchmark and its arguments by device; a device without arguments leaves it out.

    Attributes:
        module: Name in `tests.benchmarks`.
        limit_s: Seconds after which it is ended.
    """

    module: str
    limit_s: float
    cuda: tuple[str, ...]
    cpu: tuple[str, ...] | None = None


def trainer(shape: str, repeats: int) -> Part:
    """A shape, eager and compiled, under the mask that runs have."""
    words = ("--mask", "tree", "--compile", "both", "--repeats")
    tiny = ("--shape", "tiny", *words, "1", "--device", "cpu")
    return Part("trainer_gpu", 150, ("--shape", shape, *words, str(repeats)), tiny)


PARTS = {
    "trainer-0.5b": trainer("qwen2.5-0.5b", 3),
    "trainer-7b": trainer("qwen2.5-7b", 2),
    "run": Part("gpu_run", 300, (), ("--device", "cpu")),
    "run-turns": Part("gpu_run", 300, ("--turns",)),
    "start": Part("gpu_start", 240, (), ("--device", "cpu")),
    "trl": Part("versus_trl", 200, ("--device", "cuda")),
    "trl-generate": Part("versus_trl", 200, ("--device", "cuda", "--trl-generate")),
    "trl-server": Part("versus_trl", 260, ("--device", "cuda", "--trl-server")),
}


def measured(part: Part, arguments: tuple[str, ...]) -> dict[str, Any]:
    """How a part ended, and its document."""
    command = [sys.executable, "-m", f"tests.benchmarks.{part.module}", *arguments, "--json"]
    started = time.monotonic()
    process = subprocess.Popen(command, cwd=HERE, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        output, _ = process.communicate(timeout=part.limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGINT)
        try:
            process.communicate(timeout=END_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        output = ""
    status = process.returncode
    document = json.loads(output) if status == 0 and output else None
    return {"status": status, "seconds": time.monotonic() - started, "document": document}


def utilisation_bars(document: dict[str, Any]) -> list[Bar]:
    """The best of each shape, eager or compiled."""
    best: dict[str, float] = {}
    for row in document.get("rows", []):
        best[row["shape"]] = max(row["utilisation"], best.get(row["shape"], 0.0))
    return [
        Bar.at_least(f"{shape}: share of the matmul peak", share, UTILISATION_BARS[shape])
        for shape, share in best.items()
        if shape in UTILISATION_BARS
    ]


def card() -> str:
    """Name and driver of the first GPU."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader", "-i", "0"]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--part", nargs="+", choices=PARTS, help="only these parts")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--trl-python", metavar="PATH", help="a Python that has TRL")
    options = parser.parse_args()
    if lacks_gpu(options.device, "runs the parts in their smallest form"):
        return 2
    if options.device == "cuda" and gpu_is_in_use():
        return 2
    parts, bars = dict[str, Any](), list[Bar]()
    for name, part in PARTS.items():
        arguments = part.cuda if options.device == "cuda" else part.cpu
        if arguments is None or (options.part and name not in options.part):
            continue
        if options.trl_python and part.module == "versus_trl":
            arguments = (*arguments, "--trl-python", options.trl_python)
        progress(f"{name} ...")
        parts[name] = measured(part, arguments)
        if document := parts[name]["document"]:
            bars += [Bar(f"{name}: {bar['name']}", bar["value"], bar["bar"], bar["met"]) for bar in document["bars"]]
            bars += utilisation_bars(document)
    revision = subprocess.run(["git", "rev-parse", "HEAD"], cwd=HERE, stdout=subprocess.PIPE, text=True, check=False)
    report = {
        "device": card() if options.device == "cuda" else "CPU",
        "commit": revision.stdout.strip() or None,
        "date": time.strftime("%Y-%m-%d"),
        "parts": parts,
    }
    tell(report, bars, as_json=options.json)
    return 0 if any(part["document"] for part in parts.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
