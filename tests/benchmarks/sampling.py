"""The stage `sample` beside vLLM by itself, both in one run: `python -m tests.benchmarks.sampling [--quick] [--json]`.

Each case has one model, one set of prompts and one set of sampling parameters (temperature 1, the sampled token's
log-probability):

* **quickstart**: the recipe's own model, untrained, puzzles and stage: 128 puzzles x 16 samples x 12 tokens.
* **long prompts**: SmolLM2-135M, 4 prompts of 1,300 tokens x 16 samples x 64 tokens.
* **long answers**: SmolLM2-135M, 32 prompts of 300 tokens x 16 samples x 200 tokens.

There are three sides. `stage` is the real `stages.sample.sample` on a folder store with one engine (`engine.replicas =
1`). `auto` is the same with `engine.replicas = auto` (quickstart only). `raw` is `vllm.LLM.generate` in a child process
with the arguments and the environment that the stage gives its engine, and as many OpenMP threads.

The time of `stage` and `auto` is the whole call: reading puzzles and tokenising them, requests, decoding, storing
shards, publishing. The time of `raw` is `generate` alone, whose prompts are token ids. Starting an engine and a warm-up
are not counted. Sides take turns (A B A B), each turn with prompts that no engine has seen; medians of tokens a second
are compared. Lengths differ a little, because a completion may end before its limit. A greedy completion of each prompt
is compared token by token; with `--set-profile engine.dtype=float32` all must be equal.

Each side also takes requests of one token (`max_tokens = 1`). Their median time is **prefill**; **decode** is the time
of whole requests less that. The fixed cost of a call is therefore part of prefill. A phase's rate is its least work, by
`tests/support/engine_work.py`, over its time:

* prefill FLOPs = 2 x (tokens x layer weights + prompts x head weights) + 4 x channels x pairs that attend, for prompt
  tokens that the prefix cache does not have;
* prefill bytes = (all weights + tokens x keys and values of a token) x bytes of a number;
* decode FLOPs = 2 x tokens x all weights + 4 x channels x tokens looked at;
* decode bytes = (steps x all weights + tokens looked at x keys and values of a token) x bytes of a number.

Shares are of the whole machine's speed: matrix products in the engine's compute type and STREAM's triad, on all cores
(`tests/benchmarks/machine_speed.py`). An engine for a small model runs on one core. Weights and keys that stay in the
CPU's cache may take the share of the bandwidth over 100%.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from flows.config.recipes import load_recipe
from stages.sampling.replicas.threads import cpu_threads
from tests.benchmarks.machine_speed import measured_machine
from tests.benchmarks.sampling_sides import WARM_UP, Bench, Case, RawSide, Run, Side, StageSide
from tests.support.bars import Bar, parser_of, progress, tell
from tests.support.engine_work import Work, decode_work, prefill_work, prefix_blocks

TYPES = {"bfloat16": ("bf16", 2), "float32": ("fp32", 4)}
"""By vLLM's name of a compute type, ours and the bytes of a number."""
RAW_BAR = 1.0
AUTO_BAR = 1.5
CASES = ("quickstart", "long prompts", "long answers")


def cases(options: argparse.Namespace) -> list[Case]:
    """The cases that were asked for, in their full or their quick size."""
    own = load_recipe("quickstart").sample
    group, limit = own.sampling.samples_per_prompt, own.sampling.max_tokens
    every = [
        Case("quickstart", "quickstart", own.puzzles_per_iteration, group, limit, None, 7, ("raw", "auto")),
        Case("long prompts", "smollm2", 4, 16, 64, 1300, 5),
        Case("long answers", "smollm2", 32, 16, 200, 300, 3),
    ]
    if options.quick:
        every = [
            Case("quickstart", "quickstart", 32, group, limit, None, 2, ("raw", "auto")),
            Case("long prompts", "smollm2", 2, 4, 8, 1300, 1),
            Case("long answers", "smollm2", 4, 4, 16, 300, 1),
        ]
    repeats = {} if options.repeats is None else {"repeats": options.repeats}
    return [replace(case, **repeats) for case in every if case.name in options.only]


@dataclass
class Runs:
    """All calls of a side: to the token limit, and for one token."""

    full: list[Run] = field(default_factory=list)
    first_token: list[Run] = field(default_factory=list)


def measure(case: Case, options: argparse.Namespace) -> dict[str, Any]:
    """All sides of a case, in turns."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sampling-")))
        bench = Bench(case, options, folder)
        sides: dict[str, Side] = {"stage": stack.enter_context(StageSide(bench, "stage", 1))}
        if "raw" in case.sides:
            sides["raw"] = stack.enter_context(RawSide(bench))
        if "auto" in case.sides and not options.no_auto:
            sides["auto"] = stack.enter_context(StageSide(bench, "auto", "auto"))
        for side in sides.values():
            side.run(WARM_UP, min(4, case.tokens))
        greedy = {name: side.greedy(WARM_UP) for name, side in sides.items()}
        runs = {name: Runs() for name in sides}
        call = WARM_UP
        for repeat in range(case.repeats):
            for max_tokens, kind in ((case.tokens, "full"), (1, "first_token")):
                call += 1
                for name, side in sides.items():
                    run = side.run(call, max_tokens)
                    getattr(runs[name], kind).append(run)
                    told = f"{case.name} {repeat + 1}/{case.repeats} {name}, {max_tokens} tokens: {run.seconds:.2f} s"
                    progress(f"{told}, {run.tokens / run.seconds:.0f} tokens/s")
        equal = [mine == raw for mine, raw in zip(greedy["stage"], greedy["raw"], strict=True)]
        return {**report(bench, runs), "equal_greedy_completions": sum(equal) / len(equal)}


def report(bench: Bench, runs: dict[str, Runs]) -> dict[str, Any]:
    """Figures of a case: each side's medians, work and rates, and its speed over that of `raw` and of `stage`."""
    case, arguments = bench.case, bench.engine_arguments()
    name = arguments[arguments.index("--dtype") + 1]
    if name not in TYPES:
        sys.exit(f"engine.dtype {name}: expected one of {', '.join(TYPES)}")
    kind, number_bytes = TYPES[name]
    sides = {side: figures(bench, side_runs, number_bytes) for side, side_runs in runs.items()}
    for side in sides.values():
        for other in ("raw", "stage"):
            if other in sides:
                side[f"over_{other}"] = side["tokens_per_s"] / sides[other]["tokens_per_s"]
    return {
        "model": case.recipe, "prompts": case.prompts, "samples": case.samples, "tokens": case.tokens,
        "prompt_tokens": median(len(group.prompt) for group in runs["stage"].full[0].groups),
        "dtype": kind, "threads": cpu_threads(bench.profile.engine, bench.model), "sides": sides,
    }  # fmt: skip


def figures(bench: Bench, runs: Runs, number_bytes: int) -> dict[str, Any]:
    """A side's medians, and the work of its phases a second."""
    from stages.models.shape import read_shape

    arguments = bench.engine_arguments()
    block = int(arguments[arguments.index("--block-size") + 1])
    shape, batch = read_shape(bench.model), bench.profile.engine.max_num_seqs
    seen = prefix_blocks(bench.prompts(WARM_UP), block)
    prefills = [prefill_work(shape, run.groups, seen, block, number_bytes) for run in runs.first_token]
    decodes = [decode_work(shape, run.groups, batch, number_bytes) for run in runs.full]
    whole_s = median(run.seconds for run in runs.full)
    prefill_s = median(run.seconds for run in runs.first_token)
    return {
        "tokens_per_s": median(run.tokens / run.seconds for run in runs.full),
        "runs": [{"seconds": run.seconds, "tokens": run.tokens} for run in runs.full],
        "first_token_runs_s": [run.seconds for run in runs.first_token],
        "whole_s": whole_s,
        "prefill": rates(prefills, prefill_s),
        "decode": rates(decodes, whole_s - prefill_s),
    }


def rates(work: Sequence[Work], seconds: float) -> dict[str, float]:
    """Median work of a phase over its time, in GFLOP/s and GB/s."""
    flops, read = median(each.flops for each in work), median(each.bytes for each in work)
    return {"seconds": seconds, "flops": flops, "bytes": read, "gflops": flops / seconds / 1e9,
            "gb_per_s": read / seconds / 1e9}  # fmt: skip


def add_shares(case: dict[str, Any], machine: dict[str, Any]) -> None:
    """Says what share of the machine's speed each phase reaches."""
    for side in case["sides"].values():
        for phase in ("prefill", "decode"):
            side[phase]["of_matmul_peak"] = side[phase]["gflops"] / machine["matmul_gflops"][case["dtype"]]
            side[phase]["of_bandwidth"] = side[phase]["gb_per_s"] / machine["memory_gb_per_s"]


def bars(measured: dict[str, dict[str, Any]]) -> list[Bar]:
    """What was aimed for, and what was reached."""
    rows: list[Bar] = []
    for name, case in measured.items():
        sides = case["sides"]
        if case["dtype"] == "fp32":  # in bf16 rounding decides between tokens now and then
            rows.append(
                Bar.at_least(f"{name}: completions equal to raw, greedy", case["equal_greedy_completions"], 1.0)
            )
        reached = {f"{name}: stage over raw": (sides["stage"]["over_raw"], RAW_BAR)}
        if "auto" in sides:
            reached[f"{name}: replicas auto over one engine"] = (sides["auto"]["over_stage"], AUTO_BAR)
        rows += [Bar.at_least(what, value, bar) for what, (value, bar) in reached.items()]
    return rows


HEAD = ("case", "side", "token/s", "of raw", "prefill s", "FLOPs", "bytes", "decode s", "FLOPs", "bytes")


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes and one or two turns: shows that it runs")
    parser.add_argument("--repeats", type=int, help="turns of each side; by default 7, 5 and 3")
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(CASES), help="cases, by comma")
    parser.add_argument("--no-auto", action="store_true", help="leave out `engine.replicas = auto`")
    parser.add_argument("--set-profile", action="append", default=[], metavar="KEY=VALUE", help="of the profile cpu")
    options = parser.parse_args()
    chosen = cases(options)
    if len(chosen) != len(options.only):
        parser.error(f"--only: expected some of {', '.join(CASES)}")
    machine = measured_machine()
    measured = {case.name: measure(case, options) for case in chosen}
    for case in measured.values():
        add_shares(case, machine)
    document = {"machine": machine, "cases": measured}
    tell(document, bars(measured), as_json=options.json)


if __name__ == "__main__":
    main()
