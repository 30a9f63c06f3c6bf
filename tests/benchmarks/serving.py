"""What a sampled token costs besides its model: `python -m tests.benchmarks.serving [--json]`, 3 minutes on two cores.

CPU time of each process, in microseconds a token, with 1,024 completions in flight (64 prompts x 16
samples) of 8, 64 and 256 tokens. `core` is vLLM's engine core with the model, `server` the process before it, `flow`
the process that runs the stage `sample` and stores its shards. Beside it, on the same engine arguments,
`vllm.LLM.generate` (`llm`) and `vllm.AsyncLLM.generate` (`async`), where `server` is the process that calls it. Two
models: that of `answers_only`, of 0.68 million weights, and none: an executor that makes tokens up
(`tests/support/made_up_tokens.py`), so that `core` is the scheduler alone. Times are those of the processes, so that
other work on the machine changes them little.
"""

import argparse
import json
import os
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.benchmarks.sampling_sides import WARM_UP, Bench, Case, RawSide, Side, StageSide
from tests.support.bars import Bar, parser_of, progress, tell
from tests.support.engine_facts import facts
from tests.support.made_up import EXECUTOR, SWITCH
from tests.support.processes import in_session

HERE = Path(__file__).parents[2]
PROMPTS, SAMPLES = 64, 16
CALLS = {8: 6, 64: 2, 256: 1}
"""Calls that are measured, by tokens of a completion."""
PROFILE = ["engine.max_num_seqs=1024", "engine.kv_cache_gib=1.5"]
COST_BAR = 8.0


def cpu_s(process: int) -> float:
    """CPU time of a process so far, seconds."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def processes_of(side: Side) -> dict[str, int]:
    """Ids of a side's processes."""
    if isinstance(side, StageSide):
        leader = facts(side.ctx.engine).process_id
        of_session = in_session(leader)
        core = next(pid for pid, command in of_session.items() if "EngineCore" in command)
        server = next(pid for pid in of_session if pid not in (leader, core))
        return {"core": core, "server": server, "flow": os.getpid()}
    assert isinstance(side, RawSide)
    children = Path(f"/proc/{side.child.pid}/task/{side.child.pid}/children").read_text().split()
    core = next(int(pid) for pid in children if "EngineCore" in Path(f"/proc/{pid}/cmdline").read_text())
    return {"core": core, "server": side.child.pid}


def tokens_part(options: argparse.Namespace) -> dict[str, Any]:
    """The costs, by model, length and side."""
    case = Case("serving", "answers_only", PROMPTS, SAMPLES, max(CALLS), None, 2 * sum(CALLS.values()))
    figures: dict[str, Any] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="serving-")))
        switch = folder / "made-up"
        os.environ |= {SWITCH: str(switch), "PYTHONPATH": str(HERE)}  # for the engines
        profile = [*PROFILE, f'engine.extra_arguments=["--distributed-executor-backend", "{EXECUTOR}"]']
        bench = Bench(case, argparse.Namespace(set_profile=profile), folder)
        sides: dict[str, Side] = {"stage": stack.enter_context(StageSide(bench, "stage", 1))}
        sides |= {kind: stack.enter_context(RawSide(bench, kind)) for kind in options.raw}
        for side in sides.values():
            side.run(WARM_UP, 8)
        call = WARM_UP
        for model in ("0.68M weights", "none"):
            if model == "none":
                switch.touch()
            figures[model] = {}
            for length, calls in CALLS.items():
                rows = {name: Cost(side) for name, side in sides.items()}
                for _ in range(calls):
                    call += 1
                    for row in rows.values():
                        row.run(call, length)
                figures[model][length] = {name: row.figures() for name, row in rows.items()}
                progress(f"{model}, {length} tokens: {json.dumps(figures[model][length])}")
    return figures


class Cost:
    """What calls of a side cost."""

    def __init__(self, side: Side) -> None:
        self.side, self.processes = side, processes_of(side)
        self.seconds, self.tokens = 0.0, 0
        self.cpu_s = dict.fromkeys(self.processes, 0.0)

    def run(self, call: int, length: int) -> None:
        """One call."""
        before = {name: cpu_s(pid) for name, pid in self.processes.items()}
        run = self.side.run(call, length)
        for name, pid in self.processes.items():
            self.cpu_s[name] += cpu_s(pid) - before[name]
        self.seconds, self.tokens = self.seconds + run.seconds, self.tokens + run.tokens

    def figures(self) -> dict[str, float]:
        """CPU time a token of each process, microseconds; tokens a second."""
        costs = {name: 1e6 * seconds / self.tokens for name, seconds in self.cpu_s.items()}
        return {**costs, "tokens_per_s": self.tokens / self.seconds}


def bars(tokens: dict[str, Any]) -> list[Bar]:
    """What was aimed for, and what was reached."""
    rows: list[Bar] = []
    for model, lengths in tokens.items():
        stage = lengths[max(CALLS)]["stage"]
        what = f"{model}: server and flow, {max(CALLS)} tokens a completion, microseconds a token"
        rows.append(Bar.at_most(what, stage["server"] + stage["flow"], COST_BAR))
    return rows


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--raw", nargs="*", default=["llm", "async"], choices=("llm", "async"), help="sides beside it")
    options = parser.parse_args()
    tokens = tokens_part(options)
    tell({"tokens": tokens}, bars(tokens), as_json=options.json)


if __name__ == "__main__":
    main()
