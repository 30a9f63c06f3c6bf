"""Completions in turns and strategies in rounds by the real engine, which the tests of this file share."""

import logging
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from artifacts.address import ArtifactAddress
from artifacts.identity import Identity
from artifacts.reading import Artifact
from artifacts.refs import Checkpoint, Puzzles, Report
from artifacts.schemas import LOGPROB, PUZZLES, RESULTS, ROUNDS, ROUNDS_FILE
from artifacts.store.store import Store
from stages.context import Profile, StageContext
from stages.environments.puzzle import Puzzle
from stages.environments.solver_tool import (
    CALL_END,
    CALL_START,
    read_episode,
    without_marks,
    write_call,
    write_tool_output,
)
from stages.environments.tables import to_table
from stages.evaluate import EvaluateConfig, evaluate
from stages.models.from_scratch import ScratchModel, make_scratch
from stages.models.shape import read_shape
from stages.models.tokenizers.chat import ChatTokenizer
from stages.models.tokenizers.phrase_tokenizer import END_OF_TURN
from stages.sampling.client import GroupSamples, Prompt, SampledCompletion
from stages.sampling.config import EngineHardware, SamplingConfig
from stages.sampling.engine import Engine
from stages.sampling.turns import Steps, Tool
from stages.strategies.config import title_of
from stages.training.model.placement import load_reference
from stages.training.worker_group.hardware import TrainHardware
from tests.support.trainer_side import CPU, gaps_to

TEXTS = ["Who was it?", "Where?", write_call(["It was the cook"]), write_call(["It was the maid"]), "A: cook\nB: hall"]
HARDWARE = EngineHardware(
    max_num_seqs=64, kv_cache_gib=0.1, max_model_len=512, threads=1, replicas=1, dtype="float32", seed=3,
    max_num_batched_tokens=64,
)  # fmt: skip
"""A step computes 64 tokens at most, so most prompts are read in several."""
CONFIG = SamplingConfig(samples_per_prompt=6, max_tokens=150, tool_calls=2)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model, for which the end of a call is one of some 270 tokens."""
    folder = tmp_path_factory.mktemp("model")
    make_scratch(ScratchModel(layers=2, vocabulary=400, init_std=0.02), [*TEXTS * 4, CALL_END * 2, CALL_END], folder)
    return folder


@pytest.fixture(scope="module")
def engine(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Generator[Engine]:
    with Engine(HARDWARE, tmp_path_factory.mktemp("engine")) as running:
        running.ensure(model, "digest")
        yield running


def prompts(tokenizer: ChatTokenizer) -> list[Prompt]:
    return [Prompt(f"p{number}", tokenizer.prompt_token_ids(f"Who was it? {number}")) for number in range(12)]


def tool_output(prompt_id: str, lines: list[str]) -> list[str]:
    """An answer that tells who asked, and how much."""
    return [f"{prompt_id} wrote {len(lines)} lines", *lines[:1]]


def sampled(engine: Engine, some: list[Prompt], config: SamplingConfig = CONFIG) -> dict[str, GroupSamples]:
    groups: dict[str, GroupSamples] = {}
    engine.sample_groups(some, config, lambda group: groups.update({group.prompt_id: group}), Tool(tool_output, 512))
    return groups


def runs(completion: SampledCompletion) -> list[tuple[bool, list[int]]]:
    """The completion's tokens in stretches by one author each."""
    stretches: list[tuple[bool, list[int]]] = []
    for token, by_tool in zip(completion.token_ids.tolist(), completion.by_tool.tolist(), strict=True):
        if not stretches or stretches[-1][0] != by_tool:
            stretches.append((by_tool, []))
        stretches[-1][1].append(token)
    return stretches


def test_turns_alternate_and_log_probabilities_are_those_of_the_trainer(
    engine: Engine, model: Path, tmp_path: Path
) -> None:
    tokenizer = ChatTokenizer(model)
    groups = sampled(engine, prompts(tokenizer))
    completions = [(group, one) for group in groups.values() for one in group.completions]
    assert len(completions) == 72
    answered = 0
    for group, completion in completions:
        stretches = runs(completion)
        assert [by_tool for by_tool, _ in stretches] == [bool(place % 2) for place in range(len(stretches))]
        assert completion.model_tokens <= CONFIG.max_tokens and len(stretches) <= 2 * CONFIG.tool_calls + 1
        for (_, call), (_, answer) in zip(stretches[::2], stretches[1::2], strict=False):
            words = tokenizer.decode(call)
            assert CALL_END in words
            inner = words.rpartition(CALL_END)[0].rpartition(CALL_START)[2]
            lines = [part for line in inner.splitlines() if (part := line.strip().removeprefix("- ").removesuffix("."))]
            assert answer == tokenizer.text_ids(write_tool_output(tool_output(group.prompt_id, lines)))
            answered += 1
        assert all(logprob == 0.0 for logprob, by in zip(completion.logprobs, completion.by_tool, strict=True) if by)
    assert answered > 20, "a random model ends a call now and then"
    assert len({len(runs(one)) for _, one in completions}) == 3, "none, one and two calls"
    vocabulary = read_shape(model).vocab_size
    policy = load_reference(model, vocabulary, TrainHardware(compute_dtype="fp32"), CPU, sharded=False)
    gaps = gaps_to(policy, list(groups.values()), 1.0, tmp_path)
    assert gaps.numel() == sum(one.model_tokens for _, one in completions)
    assert float(gaps.max()) < 1e-3


def test_a_tool_is_not_asked_for_a_completion_without_room_for_more(engine: Engine, model: Path) -> None:
    asked: list[str] = []

    def answer(prompt_id: str, lines: list[str]) -> list[str]:
        asked.append(prompt_id)
        return lines

    config = CONFIG.model_copy(update={"max_tokens": 1, "samples_per_prompt": 200})
    groups: list[GroupSamples] = []
    engine.sample_groups(prompts(ChatTokenizer(model)), config, groups.append, Tool(answer, 512))
    calls = [one for group in groups for one in group.completions if one.text.endswith(CALL_END)]
    assert calls and {one.finish_reason for one in calls} == {"length"} and not asked


def observed(prompt_id: str, turns: Sequence[str]) -> str | None:
    """An observation that tells who acted, and what; the third turn ends the episode."""
    return f"{prompt_id} wrote {len(turns[-1])} letters" if len(turns) < 3 else None


def test_an_environment_answers_each_turn_in_the_chat_template_and_only_turns_are_learned(
    engine: Engine, model: Path, tmp_path: Path
) -> None:
    tokenizer, config = ChatTokenizer(model), SamplingConfig(samples_per_prompt=6, max_tokens=200)
    groups: dict[str, GroupSamples] = {}
    asked = prompts(tokenizer)
    engine.sample_groups(asked, config, lambda group: groups.update({group.prompt_id: group}), Steps(observed, 512))
    completions = [(group, one) for group in groups.values() for one in group.completions]
    assert len(completions) == 72
    lengths: list[int] = []
    for group, completion in completions:
        turns, observations = read_episode(completion.text)
        stretches = runs(completion)
        assert [by_tool for by_tool, _ in stretches] == [bool(place % 2) for place in range(len(stretches))]
        assert [without_marks(tokenizer.decode(own)) for _, own in stretches[::2]] == turns
        assert observations == [observed(group.prompt_id, turns[: n + 1]) for n in range(len(turns) - 1)]
        for (_, own), (_, reply), said in zip(stretches[::2], stretches[1::2], observations, strict=False):
            # The sampled end token, and then what the template writes for a message of the user.
            between = tokenizer.decode([own[-1], *reply])
            assert own[-1] in tokenizer.eos_ids and said in between
            written = tokenizer.text_ids(f"{END_OF_TURN}<|user|>{said}<|assistant|>")
            assert [own[-1], *reply] == written
        assert len(completion.token_ids) <= config.max_tokens
        assert all(logprob == 0.0 for logprob, by in zip(completion.logprobs, completion.by_tool, strict=True) if by)
        assert completion.finish_reason == "length" or len(turns) == 3
        lengths.append(len(turns))
    assert lengths.count(1) and lengths.count(2), "a random model ends a turn now and then"
    policy = load_reference(
        model, read_shape(model).vocab_size, TrainHardware(compute_dtype="fp32"), CPU, sharded=False
    )
    gaps = gaps_to(policy, list(groups.values()), 1.0, tmp_path)
    assert gaps.numel() == sum(one.model_tokens for _, one in completions)
    assert float(gaps.max()) < 1e-3


def test_the_same_seed_gives_the_same_tokens_whatever_is_sampled_beside_them(engine: Engine, model: Path) -> None:
    asked = prompts(ChatTokenizer(model))
    together = sampled(engine, asked)
    alone = sampled(engine, asked[5:6]) | sampled(engine, asked[8:6:-1])
    assert alone.keys() == {"p5", "p7", "p8"}
    for name, group in alone.items():
        for one, other in zip(group.completions, together[name].completions, strict=True):
            assert one.token_ids.tolist() == other.token_ids.tolist()
            assert one.by_tool.tolist() == other.by_tool.tolist()
    different = {tuple(one.token_ids) for group in together.values() for one in group.completions}
    assert len(different) == 72


def test_a_greedy_completion_is_the_same_alone_and_among_others(engine: Engine, model: Path) -> None:
    config = CONFIG.model_copy(update={"temperature": 0.0, "samples_per_prompt": 1})
    some = prompts(ChatTokenizer(model))[:4]
    together = sampled(engine, some, config)
    for prompt in some:
        (among,) = together[prompt.prompt_id].completions
        (alone,) = sampled(engine, [prompt], config)[prompt.prompt_id].completions
        assert alone.token_ids.tolist() == among.token_ids.tolist()
        assert np.isfinite(alone.logprobs).all()


class SharedEngine(StageContext):
    """A context whose engine is that of the module."""

    def __init__(self, shared: Engine, folder: Path) -> None:
        profile = Profile(engine=HARDWARE, workers=1)
        super().__init__(Store.open(str(folder / "store")), folder, profile, lambda *_: None, logging.getLogger("test"))
        self._shared = shared

    @property
    def engine(self) -> Engine:
        return self._shared


def test_strategies_ask_the_engine_in_rounds(engine: Engine, model: Path, tmp_path: Path) -> None:
    name = "file:regex:Answer: (.*)"
    puzzles = [Puzzle(f"q{n}", name, f"Who was it? {n}", {"answer": "cook"}, 0, None, f"d{n}", {}) for n in range(6)]
    strategies: list[dict[str, Any]] = [
        {"strategy": "think_twice", "rounds": 3},
        {"strategy": "sift", "max_tokens": 24},
        {"strategy": "budget_forcing", "budget": 8, "answer_tokens": 6},
        {"strategy": "budget_forcing", "budget": 16, "answer_tokens": 6},
        {"strategy": "budget_forcing", "budget": 60, "waits": 2, "answer_tokens": 6},
        {"strategy": "truncation_probe", "budgets": [0, 8, 20], "answer_tokens": 6},
    ]
    sampled = {"samples_per_prompt": 3, "max_tokens": 20}
    config = EvaluateConfig.model_validate({"puzzles": 6, "sampled": sampled, "strategies": strategies})
    with SharedEngine(engine, tmp_path) as ctx:
        put = ArtifactAddress(ctx.store, "puzzles", Puzzles).attempt(Identity.of("made", 1, {}))
        put.write_table("val.parquet", to_table(puzzles), PUZZLES)
        weights = ArtifactAddress(ctx.store, "model", Checkpoint).attempt(Identity.of("made", 1, {}))
        for path in model.iterdir():
            weights.write_bytes(path.name, path.read_bytes())
        out = ArtifactAddress(ctx.store, "report", Report)
        ref = evaluate(ctx, config, weights.publish(), put.publish(), split="val", out=out)
        report = Artifact.open(ctx.store, ref)
        rounds, results = report.read_table(ROUNDS_FILE, ROUNDS), report.read_table("results.parquet", RESULTS)
    titles = [title_of(item) for item in config.strategies]
    assert rounds["strategy"].unique(maintain_order=True).to_list() == titles
    assert rounds.filter("final").group_by("strategy", maintain_order=True).len()["len"].to_list() == [
        18, 6, 6, 6, 6, 18,
    ]  # fmt: skip
    thinking = rounds.filter((pl.col("step") == "thinking") & (pl.col("finish_reason") == "length"))
    tokens = dict(thinking.group_by("strategy").agg(pl.col("completion_tokens").unique().implode()).iter_rows())
    assert {title: tokens[title] for title in titles[2:4]} == {titles[2]: [8], titles[3]: [16]}
    waiting = rounds.filter(pl.col("strategy") == titles[4])
    own = waiting.filter(pl.col("step") != "answer").group_by("prompt_id").agg(pl.col("completion_tokens").sum())
    assert (own["completion_tokens"] <= 60).all()
    cut = rounds.filter((pl.col("strategy") == titles[2]) & (pl.col("step") == "thinking"))
    forced = rounds.filter((pl.col("strategy") == titles[2]) & (pl.col("step") == "answer"))
    by_length = set(cut.filter(pl.col("finish_reason") == "length")["prompt_id"])
    assert by_length
    assert set(forced.filter(pl.col("text").str.contains("\nFinal Answer:"))["prompt_id"]) == by_length
    first = rounds.filter((pl.col("strategy") == titles[0]) & (pl.col("round") == 1))
    plain = results.filter(pl.col("mode") == "sampled")
    assert first["text"].to_list() == plain["text"].to_list()
    assert (plain[LOGPROB] < 0.0).all()
    probe = rounds.filter((pl.col("strategy") == titles[5]) & (pl.col("point") == "20 tokens"))
    ended = plain.filter(pl.col("finish_reason") == "stop")
    assert set(ended["text"]) <= set(probe["text"])
