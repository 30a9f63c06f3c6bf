"""Documents of others: plain data, or one clear error."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from artifacts.documents.parsing import DEEPEST, check_plain, is_file, parse_json, parse_toml, text_problem
from artifacts.errors import BadInputError

NINES = "9" * 5000


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[" * 100_000, "not JSON (nested too deeply)"),
        ("[" * 100_000 + "]" * 100_000, "not JSON (nested too deeply)"),
        ('{"a":' * 100_000, "not JSON (nested too deeply)"),
        (json.dumps(nested(200)), f"nested more than {DEEPEST} levels deep"),
        (NINES, "not JSON (an integer of thousands of digits)"),
        ("9" * 400, "an integer of 1329 bits, more than 64"),
        ('{"a": "\\ud800"}', "a lone surrogate"),
        ('{"\\udfff": 1}', "a lone surrogate"),
        ('["\\u0000"]', "the character 0 in a text"),
        (b'["\xff"]', "byte 3 is not UTF-8"),
        ("\ufeff[]", "BOM"),
        ("", "not JSON"),
    ],
)
def test_json_that_is_not_plain_is_refused(text: str | bytes, problem: str) -> None:
    with pytest.raises(BadInputError) as caught:
        parse_json(text, "the file", "a list")
    assert str(caught.value).startswith("the file: ")
    assert problem in caught.value.found
    assert caught.value.expected == "a list"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a = " + "[" * 100_000, "not TOML (nested too deeply)"),
        ("a = " + "{b=" * 100_000, "not TOML (nested too deeply)"),
        (".".join("a" * 2_000) + " = 1", f"nested more than {DEEPEST} levels deep"),
        (f"a = {NINES}", "not TOML (an integer of thousands of digits)"),
        ("a = 0x" + "f" * 5000, "an integer of 20000 bits, more than 64"),
        ('a = "\\u0000"', "the character 0 in a text"),
        ("a = ", "not TOML"),
    ],
)
def test_toml_that_is_not_plain_is_refused(text: str, problem: str) -> None:
    with pytest.raises(BadInputError) as caught:
        parse_toml(text, "the file", "a table")
    assert problem in caught.value.found


def test_a_pair_of_surrogates_is_a_character() -> None:
    assert parse_json('["\\ud83d\\ude00"]', "", "") == ["\U0001f600"]
    assert text_problem("\U0001f600 \u202e \x1b") == ""  # to be shown with care, but text


@given(st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.integers(-(2**63), 2**63) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20,
))  # fmt: skip
def test_what_is_plain_is_read_as_it_stands(value: Any) -> None:
    text = json.dumps(value)
    if "\\u0000" in text:
        with pytest.raises(BadInputError):
            parse_json(text, "", "")
    else:
        assert parse_json(text, "", "") == value


@given(st.text(max_size=60) | st.binary(max_size=60))
def test_any_text_is_data_or_a_clear_error(text: str | bytes) -> None:
    for parse in (parse_json, parse_toml):
        try:
            parse(text if parse is parse_json else str(text), "here", "something")
        except BadInputError as error:
            assert error.where == "here"


def test_depth_is_counted_without_recursion() -> None:
    check_plain(nested(DEEPEST - 1), "", "")
    with pytest.raises(BadInputError):
        check_plain(nested(1_000_000), "", "")


@pytest.mark.parametrize("name", ["x" * 300, "a\0b", "absent", "."])
def test_no_file_has_such_a_name(name: str) -> None:
    assert not is_file(Path(name))
