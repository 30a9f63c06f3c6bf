"""Several engines that run elsewhere, of which one fails."""

import shutil
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from artifacts.errors import BadInputError, DeerstalkerError, TransientError
from stages.environments.puzzle import Puzzle
from stages.models.tensors import WEIGHTS
from stages.models.tokenizers.chat import ChatTokenizer
from stages.sampling.client import GroupSamples, Prompt, ReadyEngine
from stages.sampling.completions import Completion
from stages.sampling.config import EngineHardware, SamplingConfig
from stages.sampling.endpoint import Endpoint
from stages.sampling.engine import Engine
from stages.sampling.replicas.external import ExternalEngine
from stages.sampling.replicas.pool import EnginePool
from tests.support.engine_facts import facts
from tests.support.speaker import WRONG, Speaker, served
from tests.support.waiting import wait_until

CONFIG = SamplingConfig(samples_per_prompt=3, max_tokens=64)


def asked_of(
    speakers: list[Speaker],
    puzzles: list[Puzzle],
    model: Path,
    scratch: Path,
    restarts: int,
    meanwhile: Callable[[], object] = lambda: None,
) -> list[GroupSamples]:
    """Groups of all puzzles; `meanwhile` is called with each of them."""
    groups: list[GroupSamples] = []
    tokenizer = ChatTokenizer(model)
    questions = [Prompt(puzzle.digest, tokenizer.prompt_token_ids(puzzle.prompt)) for puzzle in puzzles]
    with ExitStack() as stack:
        urls = tuple(stack.enter_context(served(speaker)) for speaker in speakers)
        hardware = EngineHardware(external_urls=urls, restarts=restarts, max_num_seqs=1)
        engine = stack.enter_context(Engine(hardware, scratch))
        engine.ensure(model, "w")
        wait_until(lambda: len(facts(engine).sources) == len(speakers), 300.0)
        engine.sample_groups(questions, CONFIG, lambda group: (groups.append(group), meanwhile()))
        assert len(facts(engine).process_ids) == 0
    return groups


def leave(speaker: Speaker, seconds: float) -> None:
    """After some seconds, closes every connection from then on."""
    time.sleep(seconds)
    speaker.gone = True


@pytest.fixture
def speakers(model: Path, puzzles: list[Puzzle]) -> list[Speaker]:
    """Two that know all answers."""
    return [Speaker(model, {puzzle.prompt: [WRONG] * 3 for puzzle in puzzles}) for _ in range(2)]


def test_the_other_engine_samples_the_groups_of_one_that_fails(
    speakers: list[Speaker], puzzles: list[Puzzle], model: Path, tmp_path: Path
) -> None:
    good, bad = speakers
    bad.fails_after = 2
    groups = asked_of(speakers, puzzles, model, tmp_path, restarts=100)
    assert sorted(group.prompt_id for group in groups) == sorted(puzzle.digest for puzzle in puzzles)
    assert len(good.asked) + len(bad.asked) >= len(puzzles)
    assert {group.weights_digest for group in groups} == {"w"}


def test_an_engine_whose_weights_somebody_else_changed_gets_them_back(
    speakers: list[Speaker], puzzles: list[Puzzle], model: Path, tmp_path: Path
) -> None:
    """Answers of the other weights wait when the first is looked at; the engine is lost once for all of them."""
    speaker = speakers[0]
    speaker.meanwhile = {2: lambda: setattr(speaker, "version", "another's")}

    def wait_for_answers() -> None:
        if speaker.version == "w" and len(speaker.asked) < 4:
            wait_until(lambda: len(speaker.asked) >= 4, 300.0)
            time.sleep(0.2)  # the answers are on their way

    groups = asked_of([speaker], puzzles, model, tmp_path, restarts=1, meanwhile=wait_for_answers)
    assert sorted(group.prompt_id for group in groups) == sorted(puzzle.digest for puzzle in puzzles)
    assert {group.weights_digest for group in groups} == {"w"}


@pytest.mark.timeout(600)
def test_a_call_ends_when_every_engine_is_gone(
    speakers: list[Speaker], puzzles: list[Puzzle], model: Path, tmp_path: Path
) -> None:
    """However many losses are put up with, and although each is asked again at times of its own."""
    for seconds, speaker in enumerate(speakers):
        speaker.meanwhile = {2: partial(leave, speaker, float(seconds))}
    with pytest.raises(TransientError, match="unreachable"):
        asked_of(speakers, puzzles, model, tmp_path, restarts=1000)


def test_losses_beyond_the_restarts_are_handed_up(
    speakers: list[Speaker], puzzles: list[Puzzle], model: Path, tmp_path: Path
) -> None:
    speakers[1].fails_after = 0
    with pytest.raises(TransientError, match=r"lost while \d+ groups were in flight: HTTP 500: .*out of order"):
        asked_of(speakers, puzzles, model, tmp_path, restarts=0)


class Overflowed(Speaker):
    """Its logits are not finite."""

    loads = 0

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        self.loads += path == "/update_weight_version"
        return super().answer(method, path, body)

    def completion(self, text: str) -> Completion:
        said = super().completion(text)
        return replace(said, logprobs=np.full_like(said.logprobs, np.nan))


def test_log_probabilities_that_are_not_finite_end_sampling_and_no_engine(
    puzzles: list[Puzzle], model: Path, tmp_path: Path
) -> None:
    """A new start would compute the same."""
    speaker = Overflowed(model, {puzzle.prompt: [WRONG] * 3 for puzzle in puzzles})
    with pytest.raises(BadInputError, match=r"the log-probability nan; expected finite numbers; compute in bfloat16"):
        asked_of([speaker], puzzles, model, tmp_path, restarts=3)
    assert speaker.loads == 1


def test_damaged_weights_reach_no_engine(
    speakers: list[Speaker], puzzles: list[Puzzle], model: Path, tmp_path: Path
) -> None:
    """vLLM loads a checkpoint without its key projections and answers."""
    shutil.copytree(model, tmp_path / "damaged")
    tensors = load_file(model / WEIGHTS)
    save_file({name: t for name, t in tensors.items() if "k_proj" not in name}, tmp_path / "damaged" / WEIGHTS)
    with pytest.raises(BadInputError, match=r"no tensor model\.layers\.0\.self_attn\.k_proj\.weight and 5 more"):
        asked_of(speakers, puzzles, tmp_path / "damaged", tmp_path, restarts=0)
    assert [speaker.version for speaker in speakers] == ["", ""]


@pytest.mark.parametrize("use", [Engine.prestart, Engine.ensure])
def test_a_retired_engine_starts_nothing(use: Callable[[Engine, Path, str], None], model: Path, tmp_path: Path) -> None:
    """Neither for `ensure` nor for a stage in another thread that calls `prestart`."""
    with Engine(EngineHardware(external_urls=("http://127.0.0.1:9",)), tmp_path) as engine:
        engine.retire()
        with pytest.raises(DeerstalkerError, match="engine: ended while it was in use"):
            use(engine, model, "w")


def test_more_engines_than_fit_are_refused_before_any_is_asked(
    speakers: list[Speaker], model: Path, tmp_path: Path
) -> None:
    with served(speakers[0]) as url:
        hardware = EngineHardware(external_urls=(url,), replicas=1_000)
        with Engine(hardware, tmp_path) as engine, pytest.raises(BadInputError, match=r"engine\.replicas: 1000, with"):
            engine.ensure(model, "w")
    assert (speakers[0].version, (tmp_path / "engine.log").exists()) == ("", False)


def test_a_load_that_was_given_up_never_comes_after_the_next(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An engine that runs elsewhere would serve the old weights under the name of the new ones."""
    loaded, entered, may_end = list[str](), threading.Event(), threading.Event()

    def load(engine: ExternalEngine, model_dir: Path, digest: str) -> ReadyEngine:
        entered.set()
        may_end.wait(60.0)
        loaded.append(digest)
        return ReadyEngine(engine.endpoint, digest, "0", 0)

    monkeypatch.setattr(ExternalEngine, "_load", load)
    endpoint = Endpoint("http://127.0.0.1:9")
    first, second = ExternalEngine(endpoint, 0), ExternalEngine(endpoint, 0)
    before, after = EnginePool([first]), EnginePool([second])
    before.load_all(tmp_path, "old")
    entered.wait(60.0)
    before.load_all(tmp_path, "older, retried")  # waits for the one under way
    first.end()
    after.load_all(tmp_path, "new")
    may_end.set()
    after.wait_for_first()
    wait_until(lambda: not before.loading, 60.0)
    assert loaded == ["old", "new"]
