"""A chat template is somebody else's program: it renders in a process of its own, within limits."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from artifacts.errors import BadInputError, TransientError
from stages.models.from_scratch import ScratchModel, make_scratch
from stages.models.tokenizers import chat_template
from stages.models.tokenizers.chat import ChatTokenizer, chat_tokenizer
from stages.models.tokenizers.chat_template import ChatTemplate
from tests.support.waiting import wait_until

QUESTION = [{"role": "user", "content": "Who did it?"}]


def rendered(source: str) -> str:
    template = ChatTemplate(source, "model")
    template.check()
    (text,) = template.render([QUESTION], add_generation_prompt=True)
    return text


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        pytest.param(
            "{% set ns = namespace(n=3) %}{% for i in range(40) %}{% set ns.n = ns.n * ns.n %}{% endfor %}",
            marks=pytest.mark.long,
        ),
        pytest.param("{{ 10 ** (10 ** 9) }}", marks=pytest.mark.long),
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
    texts = [text, *map(str, range(40))]
    assert template.render([[{"content": text}] for text in texts]) == [f"{text}|True" for text in texts]


def test_a_prompt_is_the_same_on_each_day() -> None:
    assert rendered("{% set today = strftime_now('%d %B %Y') %}Today: {{ today }}") == "Today: 26 July 2024"


def test_threads_share_one_process_which_is_started_again_when_it_was_killed() -> None:
    source = "<{{ messages[0].content }}>"
    template, other = ChatTemplate(source, "a"), ChatTemplate(source, "b")
    process = template._renderer._process  # pyright: ignore[reportPrivateUsage]
    assert other._renderer._process is process  # pyright: ignore[reportPrivateUsage]
    answers: dict[int, str] = {}

    def ask(number: int) -> None:
        for _ in range(50):
            (answers[number],) = template.render([[{"content": str(number)}]])

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    os.kill(process.pid, signal.SIGKILL)
    for thread in threads:
        thread.join()
    assert answers == {number: f"<{number}>" for number in range(4)}


def test_a_process_that_is_stopped_before_it_has_read_a_question_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    template = ChatTemplate("<{{ messages[0].content }}>", "model")
    question = [{"content": "long " * 200_000}]  # more than the pipe holds
    monkeypatch.setattr(chat_template, "_ANSWER_LIMIT_S", 0.3)
    os.kill(template._renderer._process.pid, signal.SIGSTOP)  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(TransientError, match=r"no answer in 0 s"):
        template.render([question])
    monkeypatch.undo()
    assert template.render([question]) == [f"<{question[0]['content']}>"]


def test_the_process_ends_with_its_owner() -> None:
    script = (
        "from stages.models.tokenizers.chat_template import ChatTemplate;"
        "t = ChatTemplate('{{ 1 }}', 'model'); print(t.render([[]])[0], t._renderer._process.pid)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    text, process = done.stdout.split()
    assert text == "1"
    wait_until(lambda: not Path(f"/proc/{process}").exists(), 120.0)


EVERYTHING = (
    "{% if bos_token is defined %}{{ bos_token }}{% endif %}"
    "{%- for message in messages %}{% if loop.index > 9 %}{% break %}{% endif %}\n"
    "<|user|>{{ {'b': 'é<', 'a': 1} | tojson(indent=1, sort_keys=true) }}"
    "{% generation %}{{ message.content }}{% endgeneration %}{{ documents is none }}{{ tools is none }}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@pytest.mark.parametrize(
    "template",
    [
        EVERYTHING,
        [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": EVERYTHING}],
        {"rag": "documents", "default": EVERYTHING},
    ],
    ids=["one", "a list with names", "a table with names"],
)
def test_a_prompt_is_the_one_that_transformers_writes(tmp_path: Path, template: object) -> None:
    from transformers import AutoTokenizer

    model_with(tmp_path, template)
    expected = AutoTokenizer.from_pretrained(tmp_path).apply_chat_template(
        QUESTION, add_generation_prompt=True, tokenize=False
    )
    assert ChatTokenizer(tmp_path).prompt_text("Who did it?") == expected


@pytest.mark.parametrize("template", [[{"name": "tool_use", "template": "tools"}], {"rag": "documents"}, [1]])
def test_templates_without_a_default_are_refused(tmp_path: Path, template: object) -> None:
    model_with(tmp_path, template)
    with pytest.raises(BadInputError, match=r"tokenizer_config\.json: .*; expected a text, or a list with one named"):
        ChatTokenizer(tmp_path)


@pytest.mark.parametrize(
    ("template", "ends"),
    [
        ("{% for m in messages %}{{ m.role }} {{ m.content }} \n<|user|>{% endfor %}", ["<|end|>", "<|user|>"]),
        ("{% for m in messages %}{{ m.content }}<|end|><|user|>{% endfor %}", ["<|end|>"]),
        ("{% for m in messages %}{{ m.content }}\n{% endfor %}", ["<|end|>"]),
        ("<|user|>{{ messages[0].content }}<|assistant|>", ["<|end|>"]),
        ("{% if messages[1] %}{{ raise_exception('no') }}{% endif %}{{ messages[0].content }}<|user|>", ["<|end|>"]),
    ],
    ids=["its own", "the model's", "no token", "prompts only", "refuses answers"],
)  # fmt: skip
def test_the_token_that_a_template_writes_after_an_answer_is_an_end_token(
    tmp_path: Path, template: str, ends: list[str]
) -> None:
    model_with(tmp_path, template)
    chat = ChatTokenizer(tmp_path)
    assert [chat.text_ids(end) for end in ends] == [[token_id] for token_id in chat.eos_ids]
    assert chat.answer_ids("two") == [*chat.text_ids("two"), *chat.text_ids(ends[-1])], "what texts for training end in"


def model_with(folder: Path, template: object) -> None:
    make_scratch(ScratchModel(vocabulary=300), ["Who did it?"], folder)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": template}))


def test_a_tokenizer_of_such_a_model_is_refused(tmp_path: Path) -> None:
    model_with(tmp_path, "{{ 1/0 }}")
    with pytest.raises(BadInputError, match="its chat template fails"):
        ChatTokenizer(tmp_path).prompt_token_ids("Who?")


def test_checkpoints_with_the_same_files_share_a_tokenizer(tmp_path: Path) -> None:
    """Reading those of a model takes 0.1 s, twice in each stage that samples."""
    first, same, other = (tmp_path / name for name in ("first", "same", "other"))
    for folder in (first, same, other):
        folder.mkdir()
        model_with(folder, "{% for m in messages %}{{ m.content }}<|user|>{% endfor %}")
    model_with(other, "{% for m in messages %}{{ m.content }}{% endfor %}")
    assert chat_tokenizer(first) is chat_tokenizer(same)
    assert chat_tokenizer(other).eos_ids != chat_tokenizer(same).eos_ids
