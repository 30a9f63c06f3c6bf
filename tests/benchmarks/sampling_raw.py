"""vLLM by itself, as a child of `tests.benchmarks.sampling`: `vllm.LLM.generate` on requests from standard input.

Its one argument is a JSON list: the arguments that our engine gives vLLM's server. vLLM's own parser reads them, so
that both engines have the same settings. The first line of standard output, `{}`, says that the engine is ready. Then
each line of standard input is a request, `{"prompts": [[token id, ...], ...], "sampling": {...}}`, and each line of
standard output an answer, `{"seconds": wall time of generate, "lengths": [[tokens of each completion, ...], ...]}`.
"""

import json
import os
import sys
import time

from vllm import LLM, SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.inputs import TokensPrompt
from vllm.utils.argparse_utils import FlexibleArgumentParser


def start(arguments: list[str]) -> LLM:
    """Starts an engine with a server's arguments; those of the server alone have no effect."""
    settings = EngineArgs.from_cli_args(make_arg_parser(FlexibleArgumentParser()).parse_args(arguments))
    settings.disable_log_stats = True  # LLM's own default; a server counts for its /metrics
    return LLM.from_engine_args(settings)


def main() -> None:
    with os.fdopen(os.dup(1), "w", buffering=1) as answers:
        os.dup2(2, 1)  # vLLM writes its log to standard output
        engine = start(json.loads(sys.argv[1]))
        print("{}", file=answers)
        for line in sys.stdin:
            request = json.loads(line)
            prompts = [TokensPrompt(prompt_token_ids=token_ids) for token_ids in request["prompts"]]
            sampling = SamplingParams(**request["sampling"])
            started = time.perf_counter()
            outputs = engine.generate(prompts, sampling, use_tqdm=False)
            seconds = time.perf_counter() - started
            lengths = [[len(completion.token_ids) for completion in output.outputs] for output in outputs]
            print(json.dumps({"seconds": seconds, "lengths": lengths}), file=answers)


if __name__ == "__main__":
    main()
