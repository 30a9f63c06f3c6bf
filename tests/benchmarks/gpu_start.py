"""The start of an engine in parts, cold and warm: `python -m tests.benchmarks.gpu_start [--device cpu] [--json]`.

One engine for a random model (1.3 billion weights; on a CPU a tiny one) starts twice: with an empty compile cache, and
with the cache that the first start has left. The parts are seconds that vLLM's log states: `imports` up to the line
with which the engine's core begins, `load` of the weights, `compile`, and `graphs`; the rest is `other`. A start on a
CPU compiles nothing and captures no graphs, so these parts are null.
"""

import os
import re
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from flows.config.recipes import load_profile
from stages.models.from_scratch import ScratchModel, make_scratch
from stages.sampling.engine import Engine
from tests.benchmarks.gpu_run import LARGE, SMALL
from tests.support.bars import Bar, parser_of, progress, tell
from tests.support.gpu import lacks_gpu

BEGUN = "Initializing a V1 LLM engine"
SECONDS = {
    "load": re.compile(r"Loading weights took ([\d.]+) seconds"),
    "compile": re.compile(r"torch\.compile took ([\d.]+) s in total"),
    "graphs": re.compile(r"Graph capturing finished in ([\d.]+) secs"),
}
TEXTS = ["Who was it? The cook, in the hall, with the rope, at nine."]
WARM_BAR = 0.5


def start(device: str, model: Path, folder: Path) -> dict[str, Any]:
    """Starts an engine and ends it; returns the seconds until it has the weights, and those of each part."""
    folder.mkdir()
    began, begun = time.monotonic(), list[float]()
    with Engine(load_profile(device).engine, folder) as engine:
        ready = threading.Event()

        def wait_for_core() -> None:
            while not ready.wait(0.05) and not begun:
                if engine.log_path.exists() and BEGUN in engine.log_path.read_text(errors="replace"):
                    begun.append(time.monotonic() - began)

        watch = threading.Thread(target=wait_for_core)
        watch.start()
        try:
            engine.ensure(model, "random")
            ready_s = time.monotonic() - began
        finally:
            ready.set()
            watch.join()
        log = engine.log_path.read_text(errors="replace")
    parts: dict[str, float | None] = {"imports": begun[0] if begun else None}
    for name, pattern in SECONDS.items():
        parts[name] = float(found[1]) if (found := pattern.search(log)) else None
    if missing := [name for name in ("imports", "load") if parts[name] is None]:
        progress(f"the log does not say {' and '.join(missing)}:\n{log}")
    return {"ready_s": ready_s, "parts_s": {**parts, "other": ready_s - sum(part or 0.0 for part in parts.values())}}


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    options = parser.parse_args()
    if lacks_gpu(options.device, "starts an engine for a tiny model"):
        return 2
    size = LARGE if options.device == "cuda" else SMALL
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="bench-gpu-start-") as folder:
        model = Path(folder) / "model"
        model.mkdir()
        make_scratch(ScratchModel.model_validate(size["model"]), TEXTS, model)
        os.environ["VLLM_CACHE_ROOT"] = str(Path(folder) / "cache")
        for name in ("cold", "warm"):
            figures[name] = start(options.device, model, Path(folder) / name)
            progress(f"{name}: {figures[name]}")
    ratio = figures["warm"]["ready_s"] / figures["cold"]["ready_s"]
    on_gpu = options.device == "cuda"
    tell(figures, [Bar.at_most("warm start over a cold one", ratio, WARM_BAR)] if on_gpu else [], as_json=options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
