"""The key of engines that run elsewhere: every request carries it, nothing that is kept or shown does."""

import logging
from pathlib import Path

import pytest
from pydantic import ValidationError

from artifacts.errors import BadInputError
from artifacts.store.store import Store
from stages.environments.puzzle import Puzzle
from stages.models.tokenizers.chat import ChatTokenizer
from stages.sampling.client import GroupSamples, Prompt
from stages.sampling.config import EngineHardware, SamplingConfig
from stages.sampling.engine import Engine
from tests.support.contexts import make_context
from tests.support.engine_facts import facts
from tests.support.speaker import WRONG, Place, Speaker, script, served

KEY = "5f2c9a717f6e4d0b8a3355d0c1e2f4a6"
VARIABLE = "KEY_OF_THE_ENGINES"


@pytest.fixture
def speaker(model: Path, puzzles: list[Puzzle]) -> Speaker:
    """One that answers nobody without the key."""
    speaker = Speaker(model, script(puzzles, {0, 2}))
    speaker.key = KEY
    return speaker


def hardware(url: str, variable: str | None = VARIABLE) -> EngineHardware:
    return EngineHardware(external_urls=(url,), api_key_env=variable, restarts=0, max_num_seqs=1)


def test_every_request_carries_the_key_and_nothing_that_is_kept_or_shown_does(
    speaker: Speaker,
    model: Path,
    puzzles: list[Puzzle],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv(VARIABLE, KEY)
    caplog.set_level(logging.DEBUG)
    with served(speaker) as url:
        store = Store.open(str(tmp_path / "store"))
        with make_context(store, tmp_path / "scratch", engine=hardware(url)) as ctx:
            place = Place(ctx, speaker, puzzles, model)
            place.trained(place.sampled())
            shown = f"{ctx.profile.model_dump_json()} {ctx.profile!r} {facts(ctx.engine).sources} {caplog.text}"
            assert url in shown
    assert len(speaker.asked) >= 4
    assert set(speaker.headers) == {f"Bearer {KEY}"}
    assert KEY not in shown
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 10
    assert [path for path in files if KEY.encode() in path.read_bytes()] == []


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, f"engine.api_key_env: the environment variable {VARIABLE} is not set; expected .*; set {VARIABLE} "),
        ("", f"engine.api_key_env: the environment variable {VARIABLE} is empty"),
        (f"{KEY}\n", f"the environment variable {VARIABLE} holds a space, a line break or a character"),
    ],
)
def test_a_key_that_is_not_there_is_named_before_any_work(
    value: str | None, message: str, speaker: Speaker, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(VARIABLE, value)
    with served(speaker) as url:
        store = Store.open(str(tmp_path / "store"))
        with pytest.raises(BadInputError, match=message) as raised:
            make_context(store, tmp_path / "s", engine=hardware(url))
        assert KEY not in str(raised.value)
        with pytest.raises(BadInputError, match=message), Engine(hardware(url), tmp_path) as engine:
            engine.ensure(model, "w")
    assert speaker.headers == []


def test_a_wrong_key_names_the_variable_and_not_the_key(
    speaker: Speaker, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "another-key-than-theirs")
    with (
        served(speaker) as url,
        Engine(hardware(url), tmp_path) as engine,
        pytest.raises(BadInputError, match=rf"{url}: HTTP 401: it refuses the key of .* {VARIABLE}; .* VLLM_API_KEY"),
    ):
        engine.ensure(model, "w")
    assert speaker.version == ""
    assert len(speaker.headers) == 1, "another try would change nothing"


def test_an_engine_that_demands_a_key_where_the_profile_names_none(
    speaker: Speaker, model: Path, tmp_path: Path
) -> None:
    with (
        served(speaker) as url,
        Engine(hardware(url, None), tmp_path) as engine,
        pytest.raises(
            BadInputError, match=r"HTTP 401: it requires a key, and the profile names none; set engine\.api_k"
        ),
    ):
        engine.ensure(model, "w")


def test_a_key_that_is_changed_while_groups_are_sampled_is_named(
    speaker: Speaker, puzzles: list[Puzzle], model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, KEY)
    speaker.meanwhile = {2: lambda: setattr(speaker, "key", "the next one")}
    tokenizer, groups = ChatTokenizer(model), list[GroupSamples]()
    speaker.texts = dict.fromkeys(speaker.texts, [WRONG] * 3)
    questions = [Prompt(puzzle.digest, tokenizer.prompt_token_ids(puzzle.prompt)) for puzzle in puzzles]
    with served(speaker) as url, Engine(hardware(url), tmp_path) as engine:
        engine.ensure(model, "w")
        with pytest.raises(BadInputError, match=f"it refuses the key of the environment variable {VARIABLE}") as raised:
            engine.sample_groups(questions, SamplingConfig(samples_per_prompt=3, max_tokens=64), groups.append)
    assert KEY not in str(raised.value)


def test_an_answer_that_repeats_the_key_is_masked(
    speaker: Speaker, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server whose own fault shows the headers of the request."""
    monkeypatch.setenv(VARIABLE, KEY)
    monkeypatch.setattr(speaker, "answer", lambda *_: (400, {"error": f"bad request: Bearer {KEY}"}))
    with (
        served(speaker) as url,
        Engine(hardware(url), tmp_path) as engine,
        pytest.raises(Exception, match=r"bad request: Bearer \*\*\*") as raised,
    ):
        engine.ensure(model, "w")
    assert KEY not in str(raised.value)


@pytest.mark.parametrize(
    "settings",
    [{"api_key_env": KEY}, {"api_key_env": ""}, {"api_key_env": "A-B"}, {"external_urls": ("http://me:pw@host:1",)}],
)
def test_a_profile_takes_the_name_of_a_variable_and_no_key_or_password(settings: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        EngineHardware.model_validate(settings)
