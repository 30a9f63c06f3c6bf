"""The scheduler of the engine core: it keeps a request's tokens and log-probabilities until the request has ended.

vLLM's own scheduler reports each request in every step. The server then decodes a message, updates its copy of the
request and looks for stop strings, which takes as much CPU time as a small model. We need finished completions only. So
nothing about an unfinished request leaves the core: this scheduler looks for stop strings itself, applies the rule of
`early_stop.py`, and reports a request once, with all of its tokens and log-probabilities.

It does so for requests whose extra arguments have the key `WHOLE`; the others, for example those of vLLM's chat route,
are reported as vLLM does it.

The scheduler's interface is internal to vLLM and may change with any version; these are the parts of 0.32 that are
used: `add_request`, `_update_request_with_output`, `_free_request`, `_preempt_request`, `update_from_output`,
`get_request_counts`, `get_kv_cache_usage`. The array of log-probabilities is sent to the server in the field
`routed_experts` of a request's output, the only array of numbers that vLLM passes on unchanged with each completion.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from vllm.sampling_params import SamplingParams
from vllm.tokenizers import cached_tokenizer_from_config
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.detokenizer import IncrementalDetokenizer
from vllm.v1.request import RequestStatus

from stages.sampling.completions import EARLY_STOP
from stages.sampling.counts import COUNTS_VARIABLE, CoreCounts, Counts
from stages.sampling.early_stop import EarlyStop

WHOLE = "whole"
"""Key of a request's extra arguments: a dict with the stop strings `stop` and the rule `early_stop`, both optional."""


class _Kept:
    """What the scheduler keeps of a request that has not ended.

    Args:
        rules: The request's extra argument `WHOLE`.
        detokenizer: Finds the stop strings; None without any.
    """

    def __init__(self, rules: Mapping[str, Any], detokenizer: IncrementalDetokenizer | None) -> None:
        self.logprobs = array("f")
        self._detokenizer = detokenizer
        self._early_stop = EarlyStop(**rules["early_stop"]) if rules.get("early_stop") else None

    def stop_reason(self, token_id: int, logprob: float, *, end_token: bool) -> str | None:
        """Takes a token; returns the stop string that it completes, `EARLY_STOP`, or None if the request goes on.

        Args:
            end_token: Whether the token itself ends the request; it is then not in the text.
        """
        self.logprobs.append(logprob)
        reason = self._detokenizer.update([token_id], end_token) if self._detokenizer else None
        return EARLY_STOP if self._early_stop and self._early_stop.ends_with(logprob) else reason


class _WholeRequests(Scheduler):
    """For engines that schedule a step after the step before it, as those on CPUs do."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._kept: dict[str, _Kept] = {}
        self._ended: dict[str, array[float]] = {}
        self._rows: Mapping[str, int] = {}
        self._first_rows: Sequence[int] | None = None  # with speculative decoding a request may have several rows
        self._logprobs: Sequence[float] = ()
        self._steps = self._tokens = self._preemptions = 0
        self._counts = CoreCounts(os.environ[COUNTS_VARIABLE], self.vllm_config.parallel_config.data_parallel_index)

    def add_request(self, request: Any) -> None:
        """Takes a request, and begins to keep it if it is to be reported as a whole."""
        parameters: SamplingParams | None = request.sampling_params
        rules = (parameters.extra_args or {}).get(WHOLE) if parameters is not None else None
        if rules is not None:
            self._kept[request.request_id] = _Kept(rules, self._detokenizer(request, rules.get("stop")))
        super().add_request(request)

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> dict[int, Any]:
        """Takes the tokens of a step; returns the outputs of requests that ended, and of those not kept."""
        logprobs = model_runner_output.logprobs
        if self._kept and logprobs is not None:
            self._rows, self._first_rows = model_runner_output.req_id_to_index, logprobs.cu_num_generated_tokens
            self._logprobs = logprobs.logprobs[:, 0].tolist()  # column 0 is the sampled token
            if len(self._kept) == len(self.requests):
                model_runner_output.logprobs = None  # nothing reads the slice that vLLM would cut for each request
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        if self._ended:
            self._hand_over(outputs)
        self._steps += 1
        waiting = self.get_request_counts()[1]
        self._counts.write(Counts(self._steps, self._tokens, self._preemptions, waiting, self.get_kv_cache_usage()))
        return outputs

    def _hand_over(self, outputs: Mapping[int, Any]) -> None:
        for of_client in outputs.values():
            for output in of_client.outputs:
                kept = self._ended.pop(output.request_id, None)
                if kept is not None:
                    output.new_logprobs, output.routed_experts = None, np.frombuffer(kept, np.float32)
        self._ended.clear()

    def _update_request_with_output(
        self, request: Any, new_token_ids: list[int], is_stale: bool = False
    ) -> tuple[list[int], bool]:
        """Appends a step's tokens to a request; returns those to report now, and whether the request has ended."""
        tokens, ended = super()._update_request_with_output(request, new_token_ids, is_stale)
        self._tokens += len(tokens)
        kept = self._kept.get(request.request_id)
        if kept is None:
            return tokens, ended
        # vLLM found an end token or a limit at the last of the tokens; a stop string or the rule may come before it.
        end_token = ended and request.status == RequestStatus.FINISHED_STOPPED
        for number, (token, logprob) in enumerate(zip(tokens, self._logprobs_of(request, len(tokens)), strict=True), 1):
            reason = kept.stop_reason(token, logprob, end_token=end_token and number == len(tokens))
            if reason is not None:
                request.status, request.stop_reason, ended = RequestStatus.FINISHED_STOPPED, reason, True
                break
        if not ended:
            return [], False
        self._ended[request.request_id] = kept.logprobs
        return list(request.output_token_ids[: len(kept.logprobs)]), True

    def _logprobs_of(self, request: Any, count: int) -> Sequence[float]:
        row = self._rows[request.request_id]
        first = row if self._first_rows is None else self._first_rows[row]
        return self._logprobs[first : first + count]

    def _free_request(self, request: Any, delay_free_blocks: bool = False) -> Any:
        self._kept.pop(request.request_id, None)
        return super()._free_request(request, delay_free_blocks)

    def _preempt_request(self, *arguments: Any, **keywords: Any) -> Any:
        self._preemptions += 1
        return super()._preempt_request(*arguments, **keywords)

    def _detokenizer(self, request: Any, stop: Sequence[str] | None) -> IncrementalDetokenizer | None:
        if not stop:
            return None
        tokenizer = cached_tokenizer_from_config(self.vllm_config.model_config)
        # Special tokens stay in the text, so that a stop string finds them; the text itself is not read.
        parameters = SamplingParams(stop=list(stop), skip_special_tokens=False)
        none = dict.fromkeys(("mm_features", "pooling_params", "lora_request", "cache_salt", "data_parallel_rank"))
        described = EngineCoreRequest(
            request_id=request.request_id, prompt_token_ids=request.prompt_token_ids, sampling_params=parameters,
            arrival_time=0.0, **none,
        )  # fmt: skip
        return IncrementalDetokenizer.from_new_request(tokenizer, described)


class _AsyncWholeRequests(_WholeRequests, AsyncScheduler):
    """For engines that schedule a step during the step before it."""


def scheduler(vllm_config: Any, **keywords: Any) -> Scheduler:
    """Returns the scheduler of an engine core. Its name is the value of vLLM's argument `--scheduler-cls`."""
    kind = _AsyncWholeRequests if vllm_config.scheduler_config.async_scheduling else _WholeRequests
    return kind(vllm_config=vllm_config, **keywords)
