"""The sides that `tests.benchmarks.sampling` compares: the stage `sample` with its engine, and vLLM by itself."""

import argparse
import json
import logging
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import polars as pl

from artifacts.address import ArtifactAddress
from artifacts.identity import Identity
from artifacts.reading import Artifact
from artifacts.refs import Checkpoint, Puzzles, Ref, Rollouts
from artifacts.schemas import PUZZLES, ROLLOUTS
from artifacts.store.store import Store
from flows.config.recipe import Recipe
from flows.config.recipes import load_profile, load_recipe
from stages.context import Profile, StageContext
from stages.curriculum.order import stride
from stages.fetch import fetch
from stages.models.tokenizers.chat import ChatTokenizer
from stages.prepare import prepare
from stages.sample import SampleConfig, sample
from stages.sampling.client import Prompt, request_body
from stages.sampling.config import SamplingConfig
from stages.sampling.replicas.process import engine_arguments, engine_environment, forks
from stages.sampling.replicas.threads import THREADS_VARIABLE, cpu_threads
from tests.support.raw_vllm import RAW_PARAMETERS

HERE = Path(__file__).parents[2]
TOKENIZER_PUZZLES = 512
WARM_UP = 1
"""The first call of a side, which is not timed."""
READY_LIMIT_S = 300.0


@dataclass(frozen=True)
class Case:
    """What is sampled.

    Attributes:
        prompt_tokens: Length that the prompts are brought to; None: the recipe's own puzzles, as they are.
        repeats: Turns of each side.
        sides: Besides `stage`.
    """

    name: str
    recipe: str
    prompts: int
    samples: int
    tokens: int
    prompt_tokens: int | None
    repeats: int
    sides: tuple[str, ...] = ("raw",)

    def config(self, max_tokens: int, *, greedy: bool = False) -> SampleConfig:
        """The stage's settings; greedy with one sample a prompt."""
        sampling = SamplingConfig(samples_per_prompt=self.samples, max_tokens=max_tokens)
        if greedy:
            sampling = SamplingConfig(samples_per_prompt=1, max_tokens=max_tokens, temperature=0.0)
        return SampleConfig(puzzles_per_iteration=self.prompts, sampling=sampling)


@dataclass(frozen=True)
class Run:
    """One call of a side: its seconds, and the completion tokens."""

    seconds: float
    tokens: int


class Side(Protocol):
    """What samples the prompts of one turn."""

    def run(self, call: int, max_tokens: int) -> Run: ...

    def greedy(self, call: int) -> list[list[int]]:
        """The most likely completion of each prompt of a turn, as the case's limit cuts it."""
        ...


class Bench:
    """A case's model and prompts in a store, and what its engines are started with."""

    def __init__(self, case: Case, options: argparse.Namespace, folder: Path) -> None:
        self.case, self.folder = case, folder
        self.profile = load_profile("cpu", options.set_profile)
        self.store = Store.open(str(folder / "store"))
        with self.context(self.profile, "made") as ctx:
            recipe = load_recipe(case.recipe)
            drawn = self._drawn(recipe, ctx)
            self.checkpoint = fetch(ctx, recipe.model, drawn, out=ArtifactAddress(self.store, "model", Checkpoint))
            self.model = ctx.local_folder(self.checkpoint)
            self.tokenizer = ChatTokenizer(self.model)
            self.puzzles = drawn if case.prompt_tokens is None else self._lengthened(drawn, case.prompt_tokens)
        self.train = Artifact.open(self.store, self.puzzles).read_table("train.parquet", PUZZLES)

    def context(self, profile: Profile, name: str) -> StageContext:
        """A stage's hands, with a local folder of their own."""
        scratch = self.folder / name
        scratch.mkdir()
        return StageContext(self.store, scratch, profile, lambda *_: None, logging.getLogger("sampling"))

    def engine_arguments(self) -> list[str]:
        """Arguments of the stage's one engine, and the smallest blocks that vLLM's cache accepts on a CPU."""
        arguments = engine_arguments(self.profile.engine, self.model, self.folder / "unused.sock")
        return [*arguments, "--block-size=32"] if forks(self.profile.engine) else arguments

    def prompts(self, call: int) -> list[list[int]]:
        """Token ids of a turn's prompts, which the stage takes in this order too."""
        chosen = stride(self.train, self.case.prompts, call, seed=0)
        return [self.tokenizer.prompt_token_ids(prompt) for prompt in chosen["prompt"]]

    def _drawn(self, recipe: Recipe, ctx: StageContext) -> Ref[Puzzles]:
        count = max(TOKENIZER_PUZZLES, self.case.prompts * (WARM_UP + self.case.repeats))
        config = recipe.puzzles.model_copy(update={"train": count, "val": 0, "test": 0})
        return prepare(ctx, config, out=ArtifactAddress(self.store, "drawn", Puzzles))

    def _lengthened(self, drawn: Ref[Puzzles], tokens: int) -> Ref[Puzzles]:
        """The same puzzles, each with the following ones joined to its text, which is cut at a number of tokens."""
        table = Artifact.open(self.store, drawn).read_table("train.parquet", PUZZLES)
        texts = table["prompt"].to_list()
        prompts = [self._cut([*texts[index:], *texts[:index]], tokens) for index in range(len(texts))]
        address = ArtifactAddress(self.store, "lengthened", Puzzles)
        attempt = address.attempt(Identity.of("benchmark", 1, {"tokens": tokens}))
        attempt.write_table("train.parquet", table.with_columns(pl.Series("prompt", prompts)), PUZZLES)
        return attempt.publish({})

    def _cut(self, texts: Sequence[str], tokens: int) -> str:
        joined = ""
        for text in texts:
            joined += text + "\n\n"
            if len(self.tokenizer.prompt_token_ids(joined)) >= tokens:
                break
        low, high = 0, len(joined)
        while high - low > 1:
            middle = (low + high) // 2
            fits = len(self.tokenizer.prompt_token_ids(joined[:middle])) <= tokens
            low, high = (middle, high) if fits else (low, middle)
        return joined[:low]


class StageSide:
    """The stage `sample` with its engine.

    Args:
        replicas: `engine.replicas` of the profile.
    """

    def __init__(self, bench: Bench, name: str, replicas: int | str) -> None:
        self.bench, self.name = bench, name
        engine = bench.profile.engine.model_copy(update={"replicas": replicas})
        self.ctx = bench.context(bench.profile.model_copy(update={"engine": engine}), name)

    def __enter__(self) -> Self:
        self.ctx.engine.ensure(self.bench.model, self.bench.checkpoint.digest)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.ctx.close()

    def run(self, call: int, max_tokens: int) -> Run:
        """One call of the stage."""
        seconds, rows = self._sampled(call, self.bench.case.config(max_tokens), str(call))
        return Run(seconds, int(rows["completion_token_ids"].list.len().sum()))

    def greedy(self, call: int) -> list[list[int]]:
        """See `Side`."""
        config = self.bench.case.config(self.bench.case.tokens, greedy=True)
        return self._sampled(call, config, "greedy")[1]["completion_token_ids"].to_list()

    def _sampled(self, call: int, config: SampleConfig, name: str) -> tuple[float, pl.DataFrame]:
        """Seconds and rows, by group and sample, of one call of the stage."""
        bench = self.bench
        address = ArtifactAddress(bench.store, f"{self.name}/{name}", Rollouts)
        started = time.perf_counter()
        rollouts = sample(self.ctx, config, bench.checkpoint, bench.puzzles, iteration=call, out=address)
        seconds = time.perf_counter() - started
        return seconds, Artifact.open(bench.store, rollouts).read_tables(ROLLOUTS).sort("group", "sample")


class RawSide:
    """vLLM by itself in a child process (`tests/benchmarks/sampling_raw.py`).

    Args:
        kind: `llm` for `LLM.generate`, `async` for `AsyncLLM.generate`.
    """

    def __init__(self, bench: Bench, kind: str = "llm") -> None:
        self.bench, self.kind, self.log = bench, kind, bench.folder / f"raw-{kind}.log"

    def __enter__(self) -> Self:
        bench, hardware = self.bench, self.bench.profile.engine
        scratch = bench.folder / f"raw-{self.kind}"
        scratch.mkdir()
        environment = engine_environment(hardware, bench.model, scratch, "")
        if environment.pop(THREADS_VARIABLE, None):  # read by our own server alone
            environment["OMP_NUM_THREADS"] = str(cpu_threads(hardware, bench.model))
        command = [sys.executable, "-W", "ignore", "-m", "tests.benchmarks.sampling_raw"]
        with self.log.open("wb") as log:
            self.child = subprocess.Popen(
                [*command, json.dumps(bench.engine_arguments()), self.kind], cwd=HERE, env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip
        self._answer()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.child.stdin.close()
        try:
            self.child.wait(READY_LIMIT_S if kind is None else 10.0)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()

    def run(self, call: int, max_tokens: int) -> Run:
        """One call of `generate`."""
        answer = self._asked(self.bench.prompts(call), self.bench.case.config(max_tokens))
        return Run(answer["seconds"], sum(map(sum, answer["lengths"])))

    def greedy(self, call: int) -> list[list[int]]:
        """See `Side`."""
        config = self.bench.case.config(self.bench.case.tokens, greedy=True)
        answer = self._asked(self.bench.prompts(call), config, whole=True)
        return [tokens for ((tokens, _),) in answer["completions"]]

    def _asked(self, prompts: list[list[int]], config: SampleConfig, *, whole: bool = False) -> dict[str, Any]:
        body = request_body(Prompt("", prompts[0]), config.sampling, self.bench.tokenizer.eos_ids)
        request = {"prompts": prompts, "sampling": body["sampling_params"] | RAW_PARAMETERS, "whole": whole}
        print(json.dumps(request), file=self.child.stdin, flush=True)
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        line = self.child.stdout.readline()
        if not line:
            sys.exit(f"vLLM by itself ended with status {self.child.wait()}:\n{self.log.read_text()[-3000:]}")
        return json.loads(line)
