"""The stage `sample` of one checkout, as a child of `tests.benchmarks.serving`.

The checkout is that on PYTHONPATH, whose own engine and `tests.benchmarks.sampling_sides` are used. Arguments: the name
of a recipe, and the number of calls. The first line of standard output, `{}`, says that the engines have sampled once.
Then each line of standard input is the number of a call, and each line of standard output the answer, `{"seconds": ...,
"tokens": ...}`.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

from flows.config.recipes import load_recipe
from tests.benchmarks.sampling_sides import WARM_UP, Bench, Case, StageSide
from tests.support.engine_facts import facts


def main() -> None:
    recipe, calls = sys.argv[1], int(sys.argv[2])
    own = load_recipe(recipe).sample
    limit = own.sampling.max_tokens
    case = Case(recipe, recipe, own.puzzles_per_iteration, own.sampling.samples_per_prompt, limit, None, calls)
    with os.fdopen(os.dup(1), "w", buffering=1) as answers, tempfile.TemporaryDirectory(prefix="stage-") as folder:
        os.dup2(2, 1)
        bench = Bench(case, argparse.Namespace(set_profile=[]), Path(folder))
        with StageSide(bench, "stage", "auto") as side:
            wanted = min(2, len(os.sched_getaffinity(0)))
            while len(facts(side.ctx.engine).sources) < wanted:
                time.sleep(0.1)
            side.run(WARM_UP, limit)
            print("{}", file=answers)
            for line in sys.stdin:
                run = side.run(WARM_UP + 1 + int(line), limit)
                print(json.dumps({"seconds": run.seconds, "tokens": run.tokens}), file=answers)


if __name__ == "__main__":
    main()
