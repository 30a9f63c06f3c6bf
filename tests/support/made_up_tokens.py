"""An executor of vLLM that computes tokens by its model, or makes them up without any arithmetic.

It makes tokens up as soon as the file exists whose path is in the environment variable `MADE_UP`. The token and the
log-probability at a place of a completion are then those of `made_up`. With `MADE_UP_AHEAD` set to 1 the core schedules
a step during the step before it, as it does on GPUs, which vLLM never does on a CPU.
"""

import os
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
from vllm.v1.executor.uniproc_executor import UniProcExecutor
from vllm.v1.outputs import LogprobsLists, ModelRunnerOutput

from tests.support.made_up import AHEAD, SWITCH, made_up


class MadeUpTokens(UniProcExecutor):
    """Answers steps of the scheduler with a token for each request whose prompt is read."""

    def _init_executor(self) -> None:
        super()._init_executor()
        self._prompt_tokens: dict[str, int] = {}
        self._output: ModelRunnerOutput | None = None
        if os.environ.get(AHEAD) == "1":
            self.vllm_config.scheduler_config.async_scheduling = True

    def execute_model(self, scheduler_output: Any, non_block: bool = False) -> Any:
        if not Path(os.environ[SWITCH]).exists():
            return super().execute_model(scheduler_output, non_block)
        self._output = self._made_up(scheduler_output)
        return done(self._output) if non_block else self._output

    def sample_tokens(self, grammar_output: Any, non_block: bool = False) -> Any:
        if self._output is None:
            return super().sample_tokens(grammar_output, non_block)
        Path(f"{os.environ[SWITCH]}.ahead").touch()  # a core that schedules no step ahead does not come here
        return done(self._output) if non_block else self._output

    def _made_up(self, step: Any) -> ModelRunnerOutput:
        for name in step.finished_req_ids:
            self._prompt_tokens.pop(name, None)
        computed: dict[str, int] = {}
        written: dict[str, int] = {}  # tokens of the completion before this step
        for request in step.scheduled_new_reqs:
            self._prompt_tokens[request.req_id] = len(request.prompt_token_ids)
            computed[request.req_id], written[request.req_id] = request.num_computed_tokens, 0
        cached = step.scheduled_cached_reqs
        computed.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        written.update(zip(cached.req_ids, cached.num_output_tokens, strict=True))
        names = list(step.num_scheduled_tokens)
        pairs = [made_up(written[name]) for name in names]
        unread = [
            self._prompt_tokens[name] + written[name] - computed[name] - step.num_scheduled_tokens[name]
            for name in names
        ]
        logprobs = LogprobsLists(
            np.array([[token] for token, _ in pairs], np.int32),
            np.array([[logprob] for _, logprob in pairs], np.float32),
            np.ones(len(names), np.int32),
        )
        tokens = [[] if left > 0 else [token] for left, (token, _) in zip(unread, pairs, strict=True)]
        return ModelRunnerOutput(names, {name: row for row, name in enumerate(names)}, tokens, logprobs)


def done(output: ModelRunnerOutput) -> Future[ModelRunnerOutput]:
    """A future that has its result."""
    future: Future[ModelRunnerOutput] = Future()
    future.set_result(output)
    return future
