"""The phrase tokenizer: what becomes one token, and that nothing is lost."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.models.tokenizers.phrase_tokenizer import (
    ASSISTANT,
    END_OF_TURN,
    SPECIAL_TOKENS,
    USER,
    build_tokenizer,
    learn_phrases,
)

PROMPT = "A dinner ended badly.\nSuspects:\n- {first}\n- {second}\nWho did it?\nA. SUSPECT"
NAMES = ("Miss Peach", "Mrs. White", "Mr. Green", "Sgt. Gray")
TEXTS = [PROMPT.format(first=a, second=b) for a in NAMES for b in NAMES if a != b] + [
    f"A. {name}" for name in NAMES for _ in range(3)
]
TOKENIZER = build_tokenizer(TEXTS, 4096)


def pieces(text: str) -> list[str]:
    return [TOKENIZER.decode([token_id]) for token_id in TOKENIZER.encode(text).ids]


def test_lines_that_all_texts_share_are_one_token_and_names_are_whole() -> None:
    parts = pieces(TEXTS[0])
    assert parts[0] == "A dinner ended badly.\nSuspects:"
    assert parts[-1] == "\nWho did it?\nA. SUSPECT"
    assert " Miss Peach" in parts or "\n- Miss Peach" in parts


def test_an_answer_line_is_one_token() -> None:
    assert pieces("A. Mrs. White") == ["A. Mrs. White"]


def test_order_of_texts_does_not_matter() -> None:
    shuffled = random.Random(3).sample(TEXTS, len(TEXTS))
    assert build_tokenizer(shuffled, 4096).to_str() == TOKENIZER.to_str()


@given(st.text())
def test_every_text_decodes_to_itself(text: str) -> None:
    if any(token in text for token in SPECIAL_TOKENS):
        return
    assert TOKENIZER.decode(TOKENIZER.encode(text).ids) == text


@given(st.lists(st.text(min_size=1, max_size=12), min_size=1, max_size=12))
def test_a_tokenizer_of_any_texts_keeps_them(texts: list[str]) -> None:
    clean = [text for text in texts if not any(token in text for token in SPECIAL_TOKENS)]
    tokenizer = build_tokenizer([*clean, *clean, *clean], 4096)
    for text in clean:
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_special_tokens_come_right_after_the_bytes() -> None:
    assert [TOKENIZER.token_to_id(token) for token in (END_OF_TURN, USER, ASSISTANT)] == [256, 257, 258]


def test_words_that_are_often_apart_stay_apart() -> None:
    phrases = learn_phrases([f"x{i} red fox\nq{i} red cat\nz{i} big fox\ny{i} big cat" for i in range(40)])
    assert " red" in phrases
    assert " red fox" not in phrases


def test_a_vocabulary_too_small_is_refused() -> None:
    with pytest.raises(ValueError, match="260 allowed"):
        build_tokenizer(TEXTS, 260)
