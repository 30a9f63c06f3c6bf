"""The phrase tokenizer: what becomes one token, and that nothing is lost."""

import hashlib
import random
import re

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.config.recipes import load_recipe
from stages.environments.generate import TIERS, PuzzleConfig, generate, generate_nth
from stages.environments.logic_puzzles.answers import write_answer
from stages.environments.puzzle import Style
from stages.environments.tables import names_of, to_table
from stages.models.tokenizers.phrase_tokenizer import (
    ASSISTANT,
    END_OF_TURN,
    SPECIAL_TOKENS,
    USER,
    build_tokenizer,
    learn_phrases,
)
from tests.support.taught import taught_texts

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


@pytest.mark.parametrize(("board", "digest"), [("answers_only", "1211a1dca5762fc0"), ("small", "c3077f6020cc7e6d")])
def test_a_tokenizer_of_answers_stays_as_it_is(board: str, digest: str) -> None:
    """Checkpoints in use were trained with it: 40 prompts and their answers, in one JSON text."""
    config = load_recipe(board).puzzles.puzzle if board == "answers_only" else TIERS[board]
    puzzles = [generate(config, seed) for seed in range(40)]
    texts = [item.prompt for item in puzzles] + [write_answer(item) for item in puzzles]
    assert hashlib.sha256(build_tokenizer(texts, 4096).to_str().encode()).hexdigest()[:16] == digest


CAST = to_table([generate(load_recipe("answers_only").puzzles.puzzle, seed) for seed in range(64)])
BOARD = PuzzleConfig(suspects=(3, 3), weapons=(2, 2), rooms=(3, 3), connectives=False)
DRAWN = to_table([generate(BOARD, seed) for seed in range(64)])


@pytest.mark.parametrize(("style", "most"), [("plain", 80), ("terse", 65), ("cited", 90)])
@pytest.mark.parametrize("table", [CAST, DRAWN], ids=["cast", "drawn"])
def test_a_derivation_takes_few_tokens_and_names_keep_their_own(table: pl.DataFrame, style: Style, most: int) -> None:
    derivations, names = taught_texts(table, style), names_of(table)
    texts = [*table["prompt"], *derivations]
    tokenizer = build_tokenizer(texts, 4096, names)
    assert build_tokenizer(texts[::-1], 4096, names[::-1]).to_str() == tokenizer.to_str()
    encoded = [tokenizer.encode(text).ids for text in derivations]
    assert [tokenizer.decode(ids) for ids in encoded] == derivations
    mean = sum(map(len, encoded)) / len(encoded)
    assert mean <= (most if table is CAST else most * 1.2)
    written = [tokenizer.decode([token_id]) for ids in encoded for token_id in ids]
    assert {" was in the", " was murdered by"} <= set(written)
    mixed = [piece for piece in set(written) if any(name in piece and piece.strip() != name for name in names)]
    assert mixed == []
    assert [piece for piece in set(written) if re.search(r"\d", piece) and re.search(r"[ (,]\d+\D", piece)] == []


def test_prompts_are_hardly_longer_with_derivations() -> None:
    for table in (CAST, DRAWN):
        answers = build_tokenizer([*table["prompt"], *taught_texts(table, None)], 4096)
        running = build_tokenizer([*table["prompt"], *taught_texts(table, "terse")], 4096, names_of(table))
        tokens = [sum(len(tokenizer.encode(text).ids) for text in table["prompt"]) for tokenizer in (answers, running)]
        assert tokens[1] <= tokens[0] * 1.02


NAMES_IN_TEXTS = st.lists(st.sampled_from(["Ada", "Mr. Bo", "cat", "Hall"]), min_size=1, max_size=4, unique=True)


@given(st.lists(st.text(min_size=1, max_size=30), min_size=1, max_size=8), NAMES_IN_TEXTS)
def test_running_text_of_any_kind_is_kept(texts: list[str], names: list[str]) -> None:
    clean = [text for text in texts if not any(token in text for token in SPECIAL_TOKENS)]
    clean = [*clean, *(f"{text}\n{name}{text} {name}" for text, name in zip(clean, names, strict=False))]
    tokenizer = build_tokenizer([*clean, *clean, *clean], 4096, names)
    for text in clean:
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_words_between_names_are_joined_the_most_frequent_pair_first() -> None:
    """By hand: ' was', ' in' and ' the' always stand together; ' the' also follows ' near' once, which is too rare."""
    texts = [f"{name} was in the {room}." for name in ("Ada", "Bo") for room in ("Hall", "Study") for _ in range(3)]
    phrases = learn_phrases([*texts, "Ada is near the Hall."], ["Ada", "Bo", "Hall", "Study"])
    assert phrases == sorted(["Ada", "Bo", " Hall", " Study", " was in the", ".", " is", " near", " the"])


def test_with_whole_lines_every_clue_step_and_answer_is_one_token() -> None:
    derivations, names = taught_texts(CAST, "bare"), names_of(CAST)
    tokenizer = build_tokenizer([*CAST["prompt"], *derivations], 4096, names, whole_lines=True)
    for text in derivations:
        written = tokenizer.encode(text)
        assert tokenizer.decode(written.ids) == text
        assert [token.strip("\n") for token in written.tokens] == [line for line in text.splitlines() if line]
    for prompt, clues in CAST.select("prompt", "num_clues").iter_rows():
        written = tokenizer.encode(prompt)
        assert tokenizer.decode(written.ids) == prompt
        assert len(written.ids) == clues + 2  # what stands before all clues and after them
        assert {token[:3] for token in written.tokens[1:-1]} == {"\n- "}  # the first clue is no other token


def test_with_whole_lines_the_prompts_of_several_boards_have_no_byte() -> None:
    """No board's text is a block that all prompts share: each of their lines follows others on another board."""
    boards = [
        PuzzleConfig(
            suspects=(suspects, suspects), weapons=(2, 2), rooms=(rooms, rooms), connectives=False, referents=False,
            fixed_cast=True, fixed_rooms=True, questions="placements",
        )
        for suspects, rooms in ((3, 3), (4, 3), (4, 4))
    ]  # fmt: skip
    table = to_table([generate_nth(board, 1, number) for number in range(40) for board in boards])
    tokenizer = build_tokenizer(
        [*table["prompt"], *taught_texts(table, "bare")], 4096, names_of(table), whole_lines=True
    )
    tokens = [tokenizer.encode(prompt).tokens for prompt in table["prompt"]]
    assert max(map(len, tokens)) < 30
    assert all(len(token) > 1 for prompt in tokens for token in prompt)


@given(st.lists(st.text(min_size=1, max_size=30), min_size=1, max_size=8))
def test_whole_lines_of_any_kind_are_kept(texts: list[str]) -> None:
    clean = [text for text in texts if not any(token in text for token in SPECIAL_TOKENS)]
    clean = [*clean, *(f"Names:\n\n{text}\n\n{text}" for text in clean)]
    if clean:
        tokenizer = build_tokenizer(clean, 4096, whole_lines=True)
        assert [tokenizer.decode(tokenizer.encode(text).ids) for text in clean] == clean
