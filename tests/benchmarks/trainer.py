"""The trainer on the CPU: model FLOP utilisation, cost of larger groups, start-up.

python -m tests.benchmarks.trainer [--small] [--only PART ...] [--threads N] [--json]

A random model of SmolLM2-135M's shape; groups of a 440-token prompt and completions of 64 tokens. Utilisation is of
forward and backward, the best of several, against the machine's bf16 matmul peak, the best of several with as many
threads before, between and after: a shared machine's speed changes by a fifth within minutes. Medians are printed, too.
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from stages.training.worker_group.agent import worker_environment
from tests.support.bars import Bar, parser_of, progress, tell
from tests.support.trees import SMOLLM2

if TYPE_CHECKING:
    from tests.support.trainer_work import Bench

QUICKSTART = {
    "vocab_size": 400, "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 4,
}  # fmt: skip
PARTS = ("utilisation", "groups", "start")
GROUP_SIZES = (4, 16, 64)
UTILISATION_BAR, PROPORTION_BAR, START_BAR_S = 0.50, 0.10, 8.0


class Sizes:
    """Tokens of a prompt and of a completion, the model, and how often a step is measured."""

    def __init__(self, options: argparse.Namespace) -> None:
        small = options.small
        self.model = QUICKSTART if small else SMOLLM2
        self.prompt, self.completion = (44, 8) if small else (440, 64)
        self.repeats = options.repeats or (2 if small else 5)


def utilisation(bench: "Bench", sizes: Sizes, folder: Path) -> dict[str, Any]:
    """One packed row and four: rate of forward and backward, as a share of the matmul peak."""
    from tests.support.trainer_work import draw_groups, matmul_peak, needed_flops, save_batch

    peaks, rows = [matmul_peak()], dict[str, Any]()
    for count in (1, 4):
        groups = draw_groups(count, sizes.prompt, 16, sizes.completion, bench.shape.vocab_size)
        batch = save_batch(groups, folder / f"rows-{count}.safetensors")
        flops = needed_flops(bench.shape, groups)
        rows[str(count)] = {"flops": flops, **bench.measure(batch, sizes.repeats)}
        peaks.append(matmul_peak())
    for row in rows.values():
        row["utilisation"] = row["flops"] / row["best_forward_backward_s"] / max(peaks)
        row["median_utilisation"] = row["flops"] / row["forward_backward_s"] / median(peaks)
    return {"peaks": peaks, "rows": rows}


def group_cost(bench: "Bench", sizes: Sizes, folder: Path) -> dict[str, Any]:
    """Groups of more completions: cost of forward and backward a completion, and a unique token."""
    from tests.support.trainer_work import draw_groups, needed_flops, save_batch

    rows: dict[str, Any] = {}
    for size in GROUP_SIZES:
        groups = draw_groups(1, sizes.prompt, size, sizes.completion, bench.shape.vocab_size)
        row = bench.measure(save_batch(groups, folder / f"group-{size}.safetensors"), sizes.repeats)
        seconds = row["forward_backward_s"]
        row |= {"completion_s": seconds / size, "token_s": seconds / row["tokens"]}
        rows[str(size)] = row | {"token_flops": needed_flops(bench.shape, groups) / row["tokens"]}
    for name in ("token_s", "token_flops"):
        mean = fmean(row[name] for row in rows.values())
        for row in rows.values():
            row[f"{name}_over_mean"] = row[name] / mean
    worst = max(abs(row["token_s_over_mean"] - 1) for row in rows.values())
    return {"rows": rows, "worst": worst}


def start(folder: Path, repeats: int) -> dict[str, Any]:
    """From the start of the group's processes to the end of the first step of a small model, seconds."""
    from stages.training.worker_group.group import WorkerGroup
    from tests.support.trainer_work import Bench, draw_groups, save_batch, save_random_model

    model = save_random_model(folder / "answers_only", **QUICKSTART)
    groups = draw_groups(4, 80, 16, 8, QUICKSTART["vocab_size"])
    bench, batch = Bench(model), save_batch(groups, folder / "small.safetensors")
    ready, stepped = list[float](), list[float]()
    for number in range(repeats):
        scratch = folder / f"start-{number}"
        scratch.mkdir()
        began, steps = time.time(), list[float]()
        with WorkerGroup(bench.hardware, scratch) as group:
            group.start()
            group.wait_until_ready()
            ready.append(time.time() - began)
            job = bench.job(batch, scratch)
            group.run(
                job, lambda event, steps=steps: steps.append(event["time_s"]) if event["event"] == "step" else None
            )
        stepped.append(steps[0] - began)
    return {"ready_s": median(ready), "first_step_s": median(stepped)}


def bars(report: dict[str, Any]) -> list[Bar]:
    """What was promised, and what was measured, of the parts that were measured."""
    rows: list[Bar] = []
    if part := report.get("utilisation"):
        shares = {count: row["utilisation"] for count, row in part["rows"].items()}
        rows += [Bar.at_least(f"share of the matmul peak, {n} groups", x, UTILISATION_BAR) for n, x in shares.items()]
    if part := report.get("groups"):
        rows.append(Bar.at_most("cost a token, farthest from proportional, share", part["worst"], PROPORTION_BAR))
    if part := report.get("start"):
        rows.append(Bar.at_most("start to the end of the first step, s", part["first_step_s"], START_BAR_S))
    return rows


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--small", action="store_true", help="a tiny model and tiny groups: shows that it runs")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--repeats", type=int, help="measured steps, of which the median counts")
    options = parser.parse_args()
    environment = worker_environment(options.threads)
    if environment != os.environ:  # which some libraries read once, when they are loaded
        os.execve(sys.executable, [sys.executable, "-m", "tests.benchmarks.trainer", *sys.argv[1:]], environment)
    import torch

    from tests.support.trainer_work import Bench, save_random_model

    torch.set_num_threads(options.threads)
    report: dict[str, Any] = {"threads": options.threads}
    with tempfile.TemporaryDirectory(prefix="bench-trainer-") as name:
        folder, sizes = Path(name), Sizes(options)
        store = f"file://{folder}/rendezvous"
        torch.distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
        bench = Bench(save_random_model(folder / "model", **sizes.model))
        parts = {
            "utilisation": lambda: utilisation(bench, sizes, folder),
            "groups": lambda: group_cost(bench, sizes, folder),
            "start": lambda: start(folder, sizes.repeats),
        }
        for part in options.only:
            progress(f"{part} ...")
            report[part] = parts[part]()
        torch.distributed.destroy_process_group()
    tell(report, bars(report), as_json=options.json)


if __name__ == "__main__":
    main()
