"""Completions by our route and scheduler beside those of `vllm.LLM.generate`, which knows neither, in float32."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stages.models.from_scratch import ScratchModel, make_scratch
from stages.models.tokenizers.chat import ChatTokenizer
from stages.sampling.client import GroupSamples, Prompt, SampledCompletion, request_body
from stages.sampling.completions import GENERATE_PATH
from stages.sampling.config import EarlyStopConfig, EngineHardware, SamplingConfig
from stages.sampling.counts import COUNTS_PATH, Counts
from stages.sampling.early_stop import EarlyStop
from stages.sampling.engine import Engine
from stages.sampling.replicas.process import engine_arguments, engine_environment
from stages.sampling.replicas.threads import THREADS_VARIABLE
from tests.support.engine_facts import facts
from tests.support.engines import TEXTS
from tests.support.made_up import AHEAD, EXECUTOR, SWITCH, made_up
from tests.support.raw_vllm import RAW_PARAMETERS
from tests.support.waiting import wait_until

pytestmark = pytest.mark.long

HARDWARE = EngineHardware(
    max_num_seqs=64, kv_cache_gib=0.1, max_model_len=512, threads=1, replicas=1, dtype="float32"
)  # fmt: skip
FULL = HARDWARE.model_copy(update={"kv_cache_gib": 0.001, "max_num_seqs": 256})
"""A cache of 1,024 tokens, which the 16 completions of one prompt overfill: how many prompts meet in it is chance."""
CASES: dict[str, tuple[SamplingConfig, dict[str, Any]]] = {
    "plain": (SamplingConfig(samples_per_prompt=4, max_tokens=60, top_p=0.9, temperature=0.8), {}),
    "greedy": (SamplingConfig(samples_per_prompt=1, max_tokens=60, temperature=0.0), {}),
    "stop strings": (SamplingConfig(samples_per_prompt=4, max_tokens=120, stop=("coo", "th")), {}),
    "stop tokens": (SamplingConfig(samples_per_prompt=4, max_tokens=120), {"stop_token_ids": (30, 31, 32)}),
}

Drawn = list[list[tuple[list[int], list[float]]]]
"""Tokens and log-probabilities, by prompt and sample."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    make_scratch(ScratchModel(layers=2, vocabulary=300, init_std=0.1), TEXTS, folder)
    return folder


@pytest.fixture(scope="module")
def engine(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Generator[Engine]:
    with Engine(HARDWARE, tmp_path_factory.mktemp("engine")) as running:
        running.ensure(model, "digest")
        yield running


class Raw:
    """`vllm.LLM` in a child process."""

    def __init__(self, child: subprocess.Popen[str]) -> None:
        self._child = child

    def drawn(self, prompts: list[Prompt], config: SamplingConfig, eos_ids: list[int]) -> Drawn:
        """What it draws for prompts, each asked by itself, because each has a seed of its own."""
        answers: Drawn = []
        for prompt in prompts:
            body = request_body(prompt, config, eos_ids)
            sampling = body["sampling_params"] | RAW_PARAMETERS
            if stop := body.get("stop"):
                sampling |= {"stop": stop, "detokenize": True}
            request = {"prompts": [list(prompt.token_ids)], "sampling": sampling, "whole": True}
            print(json.dumps(request), file=self._child.stdin, flush=True)
            (completions,) = json.loads(self._child.stdout.readline())["completions"]
            answers.append([(tokens, logprobs) for tokens, logprobs in completions])
        return answers


@pytest.fixture(scope="module")
def raw(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Generator[Raw]:
    scratch = tmp_path_factory.mktemp("raw")
    environment = engine_environment(HARDWARE, model, scratch, "")
    environment.pop(THREADS_VARIABLE, None)  # read by our own server alone
    command = [sys.executable, "-W", "ignore", "-m", "tests.benchmarks.sampling_raw"]
    command.append(json.dumps(engine_arguments(HARDWARE, model, scratch / "unused.sock")))
    with (
        (scratch / "log").open("wb") as log,
        subprocess.Popen(
            command, cwd=Path(__file__).parents[2], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=log, text=True,
        ) as child,
    ):  # fmt: skip
        assert child.stdout.readline(), (scratch / "log").read_text()[-3000:]
        yield Raw(child)
        child.stdin.close()


def prompts(tokenizer: ChatTokenizer, count: int = 12, **changes: Any) -> list[Prompt]:
    return [
        Prompt(f"p{number}", tokenizer.prompt_token_ids(f"Who was it? {number}"), seed=100 * number, **changes)
        for number in range(count)
    ]


def completions(engine: Engine, asked: list[Prompt], config: SamplingConfig) -> list[list[SampledCompletion]]:
    groups: dict[str, GroupSamples] = {}
    engine.sample_groups(asked, config, lambda group: groups.update({group.prompt_id: group}))
    return [groups[prompt.prompt_id].completions for prompt in asked]


def assert_equal(ours: list[list[SampledCompletion]], theirs: Drawn) -> None:
    """Tokens are equal, log-probabilities to a few roundings of float32."""
    for group, expected in zip(ours, theirs, strict=True):
        for one, (tokens, logprobs) in zip(group, expected, strict=True):
            assert one.token_ids.tolist() == tokens
            np.testing.assert_allclose(one.logprobs, logprobs, rtol=0, atol=2e-6)


@pytest.mark.parametrize("name", CASES)
def test_the_same_seeds_give_the_completions_of_raw_vllm(engine: Engine, raw: Raw, model: Path, name: str) -> None:
    config, changes = CASES[name]
    tokenizer = ChatTokenizer(model)
    asked = prompts(tokenizer, **changes)
    ours = completions(engine, asked, config)
    assert_equal(ours, raw.drawn(asked, config, tokenizer.eos_ids))
    reasons = [one.finish_reason for group in ours for one in group]
    ended = sum(len(one.token_ids) < config.max_tokens for group in ours for one in group)
    assert reasons.count("stop") >= ended
    if name.startswith("stop"):
        assert ended > len(reasons) / 2


def test_a_hopeless_completion_is_that_of_raw_vllm_up_to_the_token_that_made_it_so(
    engine: Engine, raw: Raw, model: Path
) -> None:
    tokenizer = ChatTokenizer(model)
    asked, rule = prompts(tokenizer), EarlyStopConfig(alpha=0.9, threshold=-4.5)
    config = SamplingConfig(samples_per_prompt=4, max_tokens=100)
    ours = completions(engine, asked, config.model_copy(update={"early_stop": rule}))
    theirs = raw.drawn(asked, config, tokenizer.eos_ids)
    cut: Drawn = []
    for group in theirs:
        cut.append([])
        for tokens, logprobs in group:
            mean = EarlyStop(rule.alpha, rule.threshold)
            last = next((place for place, logprob in enumerate(logprobs, 1) if mean.ends_with(logprob)), len(tokens))
            cut[-1].append((tokens[:last], logprobs[:last]))
    assert_equal(ours, cut)
    reasons = [one.finish_reason for group in ours for one in group]
    assert {"early_stop"} < set(reasons), "some end by the rule, and some do not"


def test_a_full_cache_that_preempts_changes_no_completion(model: Path, engine: Engine, tmp_path: Path) -> None:
    asked = prompts(ChatTokenizer(model), 8)
    config = SamplingConfig(samples_per_prompt=16, max_tokens=300)
    with Engine(FULL, tmp_path / "full") as full:
        full.ensure(model, "digest")
        crowded = completions(full, asked, config)
        assert counts_of(full).preemptions > 0
    roomy = completions(engine, asked, config)
    assert_equal(crowded, [[(one.token_ids.tolist(), one.logprobs.tolist()) for one in group] for group in roomy])


def test_steps_that_are_scheduled_ahead_as_on_gpus_change_no_completion(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens are made up, because vLLM never schedules ahead with its model on a CPU."""
    switch = tmp_path / "made-up"
    switch.touch()
    for name, value in ((SWITCH, str(switch)), (AHEAD, "1"), ("PYTHONPATH", str(Path(__file__).parents[2]))):
        monkeypatch.setenv(name, value)
    hardware = FULL.model_copy(update={"extra_arguments": ("--distributed-executor-backend", EXECUTOR)})
    rule = EarlyStopConfig(alpha=0.5, threshold=-4.0)
    expected = [made_up(place) for place in range(400)]
    mean = EarlyStop(rule.alpha, rule.threshold)
    hopeless = next(place for place, (_, logprob) in enumerate(expected, 1) if mean.ends_with(logprob))
    asked = prompts(ChatTokenizer(model), 12)
    with Engine(hardware, tmp_path / "engine") as ahead:
        ahead.ensure(model, "digest")
        long = completions(ahead, asked, SamplingConfig(samples_per_prompt=16, max_tokens=400))
        short = completions(ahead, asked, SamplingConfig(samples_per_prompt=16, max_tokens=400, early_stop=rule))
        stopped = completions(ahead, asked, SamplingConfig(samples_per_prompt=16, max_tokens=400, stop_token_ids=(33,)))
        assert counts_of(ahead).preemptions > 0
    assert Path(f"{switch}.ahead").exists()
    for drawn, length, reason in ((long, 400, "length"), (short, hopeless, "early_stop"), (stopped, 24, "stop")):
        for one in (one for group in drawn for one in group):
            assert one.finish_reason == reason
            pairs = list(zip(one.token_ids.tolist(), one.logprobs.tolist(), strict=True))
            assert pairs == expected[:length]


def counts_of(engine: Engine) -> Counts:
    return Counts.of_answer(facts(engine).sources[0].endpoint.call("GET", COUNTS_PATH, timeout_s=60.0))


def test_a_request_whose_client_goes_away_ends_in_the_core(engine: Engine, model: Path) -> None:
    (prompt,) = prompts(ChatTokenizer(model), 1)
    config = SamplingConfig(samples_per_prompt=256, max_tokens=480)  # in four rounds, so that nobody is too late
    endpoint = facts(engine).sources[0].endpoint
    connection = endpoint.connect(None)
    body = json.dumps(request_body(prompt, config, [])).encode()
    before = counts_of(engine).tokens
    connection.request("POST", GENERATE_PATH, body, {"Authorization": f"Bearer {endpoint.api_key}"})
    wait_until(lambda: counts_of(engine).tokens > before, 300.0, poll_s=0.01)
    connection.close()
    wait_until(lambda: counts_of(engine).kv_cache_use == 0.0, 300.0)
    assert counts_of(engine).tokens < before + 256 * 480, "it was not sampled to its end"


def test_nothing_about_an_unfinished_request_leaves_the_core(engine: Engine, model: Path) -> None:
    """The server's CPU time a token falls with the length of completions: there is none in a step."""
    server = server_of(engine)
    asked, spent = prompts(ChatTokenizer(model), 16), dict[int, float]()
    for length, times in ((8, 10), (400, 1)):
        config = SamplingConfig(samples_per_prompt=4, max_tokens=length)
        before, tokens = cpu_s(server), counts_of(engine).tokens
        for _ in range(times):
            completions(engine, asked, config)
        spent[length] = (cpu_s(server) - before) / (counts_of(engine).tokens - tokens)
    assert spent[400] < spent[8] / 2, "a tenth on an idle machine; the same without our route and scheduler"


def server_of(engine: Engine) -> int:
    from tests.support.processes import in_session

    leader = facts(engine).process_id
    return next(pid for pid, command in in_session(leader).items() if "server.py" in command and pid != leader)


def cpu_s(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
