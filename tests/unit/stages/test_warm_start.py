"""What the warm start teaches is whole: a text that a row would cut is refused, and the field to change is named.
Also the order of its passes."""

import ast
import json
import re
from pathlib import Path

import polars as pl
import pytest

from artifacts.errors import BadInputError
from artifacts.refs import Checkpoint, Puzzles, Ref
from stages.environments.generate import TIERS, generate
from stages.environments.tables import graded_texts, puzzles_by_id, to_table
from stages.models.from_scratch import ScratchModel
from stages.models.source import materialise
from stages.models.tokenizers.chat import ChatTokenizer
from stages.optional.sft import WarmStartConfig, identity_of, job_settings_of, taught_groups
from stages.texts.supervised import check_can_be_sampled
from tests.support.taught import taught_texts

SMALL = ScratchModel(hidden=32, layers=1, heads=1, kv_heads=1, head_dim=32, intermediate=32)


@pytest.fixture(scope="module")
def table() -> pl.DataFrame:
    return to_table([generate(TIERS["reduced"], seed) for seed in range(12)])


@pytest.fixture(scope="module")
def tokenizer(table: pl.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> ChatTokenizer:
    folder = tmp_path_factory.mktemp("model") / "scratch"
    materialise(SMALL, folder, texts=[*table["prompt"], *taught_texts(table, None)])
    return ChatTokenizer(folder)


def test_every_text_is_taught_to_its_end(table: pl.DataFrame, tokenizer: ChatTokenizer) -> None:
    groups = taught_groups(WarmStartConfig(text="derivations"), table, tokenizer)
    written = [tokenizer.decode(list(group.branches[0].tokens)) for group in groups]
    assert written == taught_texts(table, "plain")
    assert {group.branches[0].tokens[-1] for group in groups} == {tokenizer.eos_ids[0]}


@pytest.mark.parametrize(("ending", "mark"), [("<think>\\n", "\n</think>\n"), ("", "")])
@pytest.mark.parametrize("text", ["answers", "derivations"])
def test_what_is_taught_can_be_graded_after_a_thought_that_the_template_opens(
    table: pl.DataFrame, tokenizer: ChatTokenizer, tmp_path: Path, ending: str, mark: str, text: str
) -> None:
    materialise(SMALL, tmp_path / "thinks", texts=[*table["prompt"], *taught_texts(table, None)])
    template = "{{ messages[0]['content'] }}{{ '" + ending + "' }}"
    (tmp_path / "thinks/chat_template.jinja").write_text(template)
    thinks, config = ChatTokenizer(tmp_path / "thinks"), WarmStartConfig.model_validate({"text": text})
    written = [thinks.decode(list(group.branches[0].tokens)) for group in taught_groups(config, table, thinks)]
    assert written == [f"{mark}{plain}" for plain in taught_texts(table, config.taught)]
    known = puzzles_by_id(table, thought_opened=bool(mark))
    assert all(graded.exact for graded in graded_texts(zip(written, table["prompt_id"], strict=True), known, "strict"))


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


def test_a_limit_that_cuts_most_of_the_texts_is_refused(table: pl.DataFrame, tokenizer: ChatTokenizer) -> None:
    groups = taught_groups(WarmStartConfig(text="derivations"), table, tokenizer)
    lengths = sorted(len(group.branches[0].tokens) for group in groups)
    check_can_be_sampled(groups, lengths[6], "derivations")  # five of twelve are longer at most
    message = (
        rf"sample\.sampling\.max_tokens: {lengths[0] - 1}, but 12 of 12 derivations that the warm start teaches are "
        rf"longer; expected at least {lengths[-1]}, the length of the longest; raise it, or choose another"
    )
    with pytest.raises(BadInputError, match=message):
        check_can_be_sampled(groups, lengths[0] - 1, "derivations")


def test_the_same_texts_under_another_limit_are_another_warm_start() -> None:
    """One that is published is not checked, so it must not be found by a recipe whose limit cuts its texts."""
    weights, puzzles = (
        Ref[Checkpoint]("Checkpoint", "models/m", "1" * 64),
        Ref[Puzzles]("Puzzles", "puzzles/p", "2" * 64),
    )
    digests = [identity_of(WarmStartConfig(), weights, puzzles, limit).digest for limit in (100, 100, 99)]
    assert digests[0] == digests[1] != digests[2]


def test_a_tokenizer_that_does_not_write_a_text_back_is_refused(
    table: pl.DataFrame, tokenizer: ChatTokenizer, tmp_path: Path
) -> None:
    """One that drops the space before words: the model would learn answers that it cannot write."""
    materialise(SMALL, tmp_path / "scratch", texts=[*table["prompt"], *taught_texts(table, None)])
    path = tmp_path / "scratch/tokenizer.json"
    saved = json.loads(path.read_text())
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    path.write_text(json.dumps({**saved, "decoder": {"type": "Sequence", "decoders": [strip, saved["decoder"]]}}))
    lossy = ChatTokenizer(tmp_path / "scratch")
    config = WarmStartConfig(text="derivations", style="terse")
    taught_groups(config, table, tokenizer)
    with pytest.raises(BadInputError, match="the model's tokenizer: it decodes the tokens to") as error:
        taught_groups(config, table, lossy)
    quoted = re.search(r"decodes the tokens to ('.*') instead of ('.*'); expected", str(error.value))
    assert quoted is not None
    written, text = (ast.literal_eval(part) for part in quoted.groups())
    assert written != text
    assert text in taught_texts(table, "terse")[0]


def test_the_seed_decides_the_order_of_later_passes() -> None:
    schedule = job_settings_of(WarmStartConfig(epochs=3, seed=7), 64)
    assert (schedule.epochs, schedule.epoch_order, schedule.epoch_seed) == (3, "shuffled", 7)
    assert job_settings_of(WarmStartConfig(epochs=3, epoch_order="same"), 64).epoch_order == "same"
