"""What the warm start teaches is whole: a text that a row would cut is refused, and the field to change is named."""

import polars as pl
import pytest

from artifacts.errors import BadInputError
from stages.models.chat import ChatTokenizer
from stages.models.scratch import ScratchModel
from stages.models.source import materialise
from stages.puzzles.generate import TIERS, generate
from stages.puzzles.tables import taught_texts, to_table
from stages.warm_start import WarmStartConfig, taught_groups

SMALL = ScratchModel(hidden=32, layers=1, heads=1, kv_heads=1, head_dim=32, intermediate=32)


@pytest.fixture(scope="module")
def table() -> pl.DataFrame:
    return to_table([generate(TIERS["reduced"], seed) for seed in range(12)])


@pytest.fixture(scope="module")
def tokenizer(table: pl.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> ChatTokenizer:
    folder = tmp_path_factory.mktemp("model") / "scratch"
    materialise(SMALL, folder, texts=[*table["prompt"], *taught_texts(table, "answers")])
    return ChatTokenizer(folder)


def test_every_text_is_taught_to_its_end(table: pl.DataFrame, tokenizer: ChatTokenizer) -> None:
    groups = taught_groups(WarmStartConfig(text="derivations"), table, tokenizer)
    written = [tokenizer.decode(list(group.branches[0].tokens)) for group in groups]
    assert written == taught_texts(table, "derivations")
    assert {group.branches[0].tokens[-1] for group in groups} == {tokenizer.eos_ids[0]}


def test_a_row_that_would_cut_a_text_is_refused(table: pl.DataFrame, tokenizer: ChatTokenizer) -> None:
    groups = taught_groups(WarmStartConfig(text="derivations"), table, tokenizer)
    longest = max(group.size_tokens for group in groups)
    written = max(len(group.branches[0].tokens) for group in groups)
    taught_groups(WarmStartConfig(text="derivations", row_tokens=longest), table, tokenizer)
    message = (
        rf"warm_start\.row_tokens: {longest - 1}, but \d+ of 12 prompts with their derivations are longer; "
        rf"expected at least {longest}; raise warm_start\.row_tokens; .* max_tokens of {written}$"
    )
    with pytest.raises(BadInputError, match=message):
        taught_groups(WarmStartConfig(text="derivations", row_tokens=longest - 1), table, tokenizer)
    with pytest.raises(BadInputError, match=r"warm_start\.row_tokens: 16, but 12 of 12"):  # not even the prompt fits
        taught_groups(WarmStartConfig(row_tokens=16), table, tokenizer)
