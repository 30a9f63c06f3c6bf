"""The stage `sample` beside vLLM by itself, both in one run: `python -m tests.benchmarks.sampling [--quick] [--json]`.

Each case has one model, one set of prompts and one set of sampling parameters (temperature 1, the sampled token's
log-probability):

* **answers_only**: the recipe's own model, untrained, puzzles and stage: 128 puzzles x 16 samples x 12 tokens.
* **long prompts**: SmolLM2-135M, 4 prompts of 1,300 tokens x 16 samples x 64 tokens.
* **long answers**: SmolLM2-135M, 32 prompts of 300 tokens x 16 samples x 200 tokens.

There are three sides. `stage` is the real `stages.sample.sample` on a folder store with one engine (`engine.replicas =
1`). `auto` is the same with `engine.replicas = auto`. `raw` is `vllm.LLM.generate` in a child process
with the arguments and the environment that the stage gives its engine, and as many OpenMP threads.

The time of `stage` and `auto` is the whole call: reading puzzles and tokenising them, requests, decoding, storing
shards, publishing. The time of `raw` is `generate` alone, whose prompts are token ids. Starting an engine and a warm-up
are not counted. Sides take turns (A B A B), each turn with prompts that no engine has seen; medians of tokens a second
are compared. Lengths differ a little, because a completion may end before its limit. A greedy completion of each prompt
is compared token by token; with `--set-profile engine.dtype=float32` all must be equal.
"""

import argparse
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from flows.config.recipes import load_recipe
from stages.sampling.replicas.threads import cpu_threads
from tests.benchmarks.sampling_sides import WARM_UP, Bench, Case, RawSide, Run, Side, StageSide
from tests.support.bars import Bar, parser_of, progress, tell

RAW_BAR = 1.0
AUTO_BAR = 1.5
CASES = ("answers_only", "long prompts", "long answers")


def cases(options: argparse.Namespace) -> list[Case]:
    """The cases that were asked for, in their full or their quick size."""
    own = load_recipe("answers_only").sample
    group, limit = own.sampling.samples_per_prompt, own.sampling.max_tokens
    every = [
        Case("answers_only", "answers_only", own.puzzles_per_iteration, group, limit, None, 7, ("raw", "auto")),
        Case("long prompts", "smollm2", 4, 16, 64, 1300, 5),
        Case("long answers", "smollm2", 32, 16, 200, 300, 3),
    ]
    if options.quick:
        every = [
            Case("answers_only", "answers_only", 32, group, limit, None, 2, ("raw", "auto")),
            Case("long prompts", "smollm2", 2, 4, 8, 1300, 1),
            Case("long answers", "smollm2", 4, 4, 16, 300, 1),
        ]
    repeats = {} if options.repeats is None else {"repeats": options.repeats}
    return [replace(case, **repeats) for case in every if case.name in options.only]


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
        runs: dict[str, list[Run]] = {name: [] for name in sides}
        for repeat in range(case.repeats):
            for name, side in sides.items():
                run = side.run(WARM_UP + 1 + repeat, case.tokens)
                runs[name].append(run)
                told = f"{case.name} {repeat + 1}/{case.repeats} {name}: {run.seconds:.2f} s"
                progress(f"{told}, {run.tokens / run.seconds:.0f} tokens/s")
        equal = [mine == raw for mine, raw in zip(greedy["stage"], greedy["raw"], strict=True)]
        return {**report(bench, runs), "equal_greedy_completions": sum(equal) / len(equal)}


def report(bench: Bench, runs: dict[str, list[Run]]) -> dict[str, Any]:
    """Figures of a case: each side's median of tokens a second, and its speed over that of `raw` and of `stage`."""
    case, arguments = bench.case, bench.engine_arguments()
    sides = {
        side: {"tokens_per_s": median(run.tokens / run.seconds for run in own), "runs": [vars(run) for run in own]}
        for side, own in runs.items()
    }
    for side in sides.values():
        for other in ("raw", "stage"):
            if other in sides:
                side[f"over_{other}"] = side["tokens_per_s"] / sides[other]["tokens_per_s"]
    return {
        "model": case.recipe, "prompts": case.prompts, "samples": case.samples, "tokens": case.tokens,
        "prompt_tokens": median(len(prompt) for prompt in bench.prompts(WARM_UP)),
        "dtype": arguments[arguments.index("--dtype") + 1], "threads": cpu_threads(bench.profile.engine, bench.model),
        "sides": sides,
    }  # fmt: skip


def bars(measured: dict[str, dict[str, Any]]) -> list[Bar]:
    """What was aimed for, and what was reached."""
    rows: list[Bar] = []
    for name, case in measured.items():
        sides = case["sides"]
        if case["dtype"] == "float32":  # in bf16 rounding decides between tokens now and then
            rows.append(
                Bar.at_least(f"{name}: completions equal to raw, greedy", case["equal_greedy_completions"], 1.0)
            )
        reached = {f"{name}: stage over raw": (sides["stage"]["over_raw"], RAW_BAR)}
        if "auto" in sides:
            reached[f"{name}: replicas auto over one engine"] = (sides["auto"]["over_stage"], AUTO_BAR)
        rows += [Bar.at_least(what, value, bar) for what, (value, bar) in reached.items()]
    return rows


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
    measured = {case.name: measure(case, options) for case in chosen}
    tell({"cases": measured}, bars(measured), as_json=options.json)


if __name__ == "__main__":
    main()
