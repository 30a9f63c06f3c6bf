"""vLLM by itself, as a child of `tests.benchmarks.sampling`: `vllm.LLM.generate` on requests from standard input.

Its first argument is a JSON list: the arguments that our engine gives vLLM's server. vLLM's own parser reads them, so
that both engines have the same settings. The first line of standard output, `{}`, says that the engine is ready. Then
each line of standard input is a request, `{"prompts": [[token id, ...], ...], "sampling": {...}}`, and each line of
standard output an answer, `{"seconds": wall time of generate, "lengths": [[tokens of each completion, ...], ...]}`. A
request with `"whole": true` also has `{"completions": [[[token ids, log-probabilities], ...], ...]}` in its answer.
With `async` as a second argument it is `vllm.AsyncLLM.generate` instead, all prompts at once.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable, Sequence

from vllm import LLM, RequestOutput, SamplingParams
from vllm.engine.arg_utils import AsyncEngineArgs, EngineArgs
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.inputs import TokensPrompt
from vllm.outputs import CompletionOutput
from vllm.sampling_params import RequestOutputKind
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.engine.async_llm import AsyncLLM

Generate = Callable[[Sequence[TokensPrompt], SamplingParams], list[RequestOutput]]


def settings_of(arguments: list[str], kind: type[EngineArgs]) -> EngineArgs:
    """Reads a server's arguments; those of the server alone have no effect. `server.py` adds the log-probabilities."""
    settings = kind.from_cli_args(make_arg_parser(FlexibleArgumentParser()).parse_args(arguments))
    settings.logprobs_mode = "processed_logprobs"
    settings.disable_log_stats = True  # LLM's own default; a server counts for its /metrics
    return settings


def offline(arguments: list[str]) -> Generate:
    """Starts an engine and returns its `LLM.generate`."""
    engine = LLM.from_engine_args(settings_of(arguments, EngineArgs))
    return lambda prompts, sampling: engine.generate(prompts, sampling, use_tqdm=False)


def online(arguments: list[str]) -> Generate:
    """Starts an engine and returns a function that gives all prompts to `AsyncLLM.generate` at once."""
    settings = settings_of(arguments, AsyncEngineArgs)
    runner = asyncio.Runner()

    async def made() -> AsyncLLM:
        return AsyncLLM.from_engine_args(settings)

    engine = runner.run(made())
    number = 0

    async def one(prompt: TokensPrompt, sampling: SamplingParams, name: str) -> RequestOutput:
        (output,) = [output async for output in engine.generate(prompt, sampling, name)]
        return output

    async def every(prompts: Sequence[TokensPrompt], sampling: SamplingParams) -> list[RequestOutput]:
        nonlocal number
        number += 1
        return await asyncio.gather(*(one(prompt, sampling, f"{number}-{i}") for i, prompt in enumerate(prompts)))

    def generate(prompts: Sequence[TokensPrompt], sampling: SamplingParams) -> list[RequestOutput]:
        sampling.output_kind = RequestOutputKind.FINAL_ONLY
        return runner.run(every(prompts, sampling))

    return generate


def sampled(completion: CompletionOutput) -> tuple[list[int], list[float]]:
    """The tokens of a completion, and the log-probability of each."""
    tokens = list(completion.token_ids)
    return tokens, [place[token].logprob for token, place in zip(tokens, completion.logprobs, strict=True)]


def main() -> None:
    with os.fdopen(os.dup(1), "w", buffering=1) as answers:
        os.dup2(2, 1)  # vLLM writes its log to standard output
        generate = (online if "async" in sys.argv[2:] else offline)(json.loads(sys.argv[1]))
        print("{}", file=answers)
        for line in sys.stdin:
            request = json.loads(line)
            prompts = [TokensPrompt(prompt_token_ids=token_ids) for token_ids in request["prompts"]]
            sampling = SamplingParams(**request["sampling"])
            started = time.perf_counter()
            outputs = generate(prompts, sampling)
            seconds = time.perf_counter() - started
            lengths = [[len(completion.token_ids) for completion in output.outputs] for output in outputs]
            answer = {"seconds": seconds, "lengths": lengths}
            if request.get("whole"):
                answer["completions"] = [[sampled(completion) for completion in output.outputs] for output in outputs]
            print(json.dumps(answer), file=answers)


if __name__ == "__main__":
    main()
