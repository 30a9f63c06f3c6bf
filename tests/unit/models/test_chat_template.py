"""A chat template is somebody else's program: it renders in a process of its own, within limits."""

import json
import os
import signal
import threading
from pathlib import Path

import pytest

from artifacts.errors import BadInputError
from stages.models.from_scratch import ScratchModel, make_scratch
from stages.models.tokenizers import chat_template
from stages.models.tokenizers.chat import ChatTokenizer
from stages.models.tokenizers.chat_template import ChatTemplate
from tests.support.waiting import wait_until

QUESTION = [{"role": "user", "content": "Who did it?"}]


def rendered(source: str) -> str:
    template = ChatTemplate(source, "model")
    template.check()
    return template.render(messages=QUESTION, add_generation_prompt=True)


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% set ns = namespace(n=3) %}{% for i in range(40) %}{% set ns.n = ns.n * ns.n %}{% endfor %}",
        "{{ 10 ** (10 ** 9) }}",
    ],
    ids=["loops", "growing numbers", "a power"],
)
def test_a_template_that_computes_for_ever_is_ended(source: str) -> None:
    with pytest.raises(BadInputError, match="model: its chat template computes for more than 2 s"):
        rendered(source)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{% for i in range(10**9) %}x{% endfor %}", "OverflowError: Range too big"),
        ("{{ ('a' * 10**6) * 10**6 }}", "takes too much memory"),
        ("{% set ns = namespace(s='a') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}", "too much"),
        ("{% for i in range(9999) %}{{ 'a' * 9999 }}{% endfor %}", "writes more than 4000000 characters"),
        ("{% include 'other' %}", "TypeError: no loader for this environment"),
        ("{{ 1/0 }}", "ZeroDivisionError: division by zero"),
        ("{{ messages[0].content.__class__.__mro__ }}", "access to attribute '__class__' of 'str' object is unsafe"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "RecursionError"),
        ("{{ raise_exception('one\x1b[31m\nline') }}", r"fails \(one \[31m line\)"),
        ("{{ '\\ud800' }}", "UnicodeEncodeError"),
        ("{{ messages.append(1) }}", "unsafe"),
    ],
)  # fmt: skip
def test_a_template_that_fails_is_one_line(source: str, reason: str) -> None:
    with pytest.raises(BadInputError, match=reason) as refusal:
        rendered(source)
    assert str(refusal.value).isprintable()
    assert str(refusal.value).startswith("model: its chat template fails (")


def test_a_template_that_does_not_compile_is_refused_before_it_is_used() -> None:
    with pytest.raises(BadInputError, match=r"a chat template with an error \(Expected an expression"):
        ChatTemplate("{% if %}", "model").check()
    with pytest.raises(BadInputError, match="chat template of 1000001 characters; expected at most"):
        ChatTemplate("a" * 1_000_001, "model")


def test_a_text_with_everything_in_it_arrives_as_it_is() -> None:
    text = "\x00 € \U0001f50d " + "long " * 100_000
    template = ChatTemplate("{{ messages[0].content }}|{{ tools is none }}", "model")
    assert template.render(messages=[{"content": text}], tools=None) == f"{text}|True"


def test_threads_share_one_process_which_is_started_again_when_it_was_killed() -> None:
    source = "<{{ messages[0].content }}>"
    template, other = ChatTemplate(source, "a"), ChatTemplate(source, "b")
    process = template._renderer._process  # pyright: ignore[reportPrivateUsage]
    assert other._renderer._process is process  # pyright: ignore[reportPrivateUsage]
    answers: dict[int, str] = {}

    def ask(number: int) -> None:
        for _ in range(50):
            answers[number] = template.render(messages=[{"content": str(number)}])

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    os.kill(process.pid, signal.SIGKILL)
    for thread in threads:
        thread.join()
    assert answers == {number: f"<{number}>" for number in range(4)}


def test_the_process_ends_with_its_last_user() -> None:
    chat_template._renderer.cache_clear()  # pyright: ignore[reportPrivateUsage]
    template = ChatTemplate("{{ 'only here' }}", "model")
    process = template._renderer._process  # pyright: ignore[reportPrivateUsage]
    del template
    chat_template._renderer.cache_clear()  # pyright: ignore[reportPrivateUsage]
    wait_until(lambda: process.poll() is not None, 10.0)


def test_a_tokenizer_of_such_a_model_is_refused(tmp_path: Path) -> None:
    make_scratch(ScratchModel(vocabulary=300), ["Who did it?"], tmp_path)
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": "{{ 1/0 }}"}))
    with pytest.raises(BadInputError, match="its chat template fails"):
        ChatTokenizer(tmp_path).prompt_ids("Who?")
