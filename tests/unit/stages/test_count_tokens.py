"""The tokens of all prompts of a set are counted once for a tokenizer, and overlong prompts are left out by them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from artifacts.address import ArtifactAddress
from artifacts.identity import Identity
from artifacts.reading import Artifact
from artifacts.refs import Checkpoint, Puzzles, Ref
from artifacts.schemas import LENGTHS_FILE, PROMPT_LENGTHS, PUZZLES
from stages.context import StageContext
from stages.count_tokens import address_of, count_tokens
from stages.environments.puzzle import Puzzle
from stages.environments.tables import to_table
from stages.models.tokenizers.chat import ChatTokenizer
from stages.optional import drop_overlong as dropping
from stages.optional.drop_overlong import DropOverlongConfig, drop_overlong
from tests.support.speaker import Opener

FOREIGN = "漢字" * 700  # 4,200 bytes and tokens, in fewer characters than the prompts of puzzles have


@pytest.fixture
def ctx(opened: Opener) -> StageContext:
    return opened("store", {}).ctx


@pytest.fixture
def made(ctx: StageContext, puzzles: list[Puzzle]) -> Ref[Puzzles]:
    attempt = ArtifactAddress(ctx.store, "puzzles/foreign", Puzzles).attempt(Identity.of("made", 1, {}))
    attempt.write_table("train.parquet", to_table([*puzzles[:8], replace(puzzles[8], prompt=FOREIGN)]), PUZZLES)
    attempt.write_table("val.parquet", to_table(puzzles[9:]), PUZZLES)
    return attempt.publish({"train": 9, "val": 3, "seconds": 1.0, "file": "questions.jsonl"})


def model_at(ctx: StageContext, folder: Path, key: str, **changes: str) -> Ref[Checkpoint]:
    """A checkpoint with the files of a folder, some of them changed."""
    attempt = ArtifactAddress(ctx.store, key, Checkpoint).attempt(Identity.of("fetch", 1, {"key": key}))
    for file in sorted(folder.iterdir()):
        attempt.write_bytes(file.name, changes.get(file.stem, "").encode() or file.read_bytes())
    return attempt.publish()


def test_tokens_are_counted_once_for_a_set_and_a_tokenizer(ctx: StageContext, model: Path, made: Ref[Puzzles]) -> None:
    first, trained = model_at(ctx, model, "first"), model_at(ctx, model, "trained", model="other weights")
    lengths = count_tokens(ctx, first, made, out=address_of(ctx.store, first, made))
    tokenizer, artifact = ChatTokenizer(model), Artifact.open(ctx.store, lengths)
    for row in artifact.read_table(LENGTHS_FILE, PROMPT_LENGTHS).iter_rows(named=True):
        prompts = Artifact.open(ctx.store, made).read_table(f"{row['split']}.parquet", PUZZLES)
        prompt = dict(prompts.select("prompt_id", "prompt").iter_rows())[row["prompt_id"]]
        assert row["tokens"] == len(tokenizer.prompt_token_ids(prompt))
    assert artifact.manifest.facts["longest"]["train"] == len(tokenizer.prompt_token_ids(FOREIGN)) > 4200
    assert artifact.manifest.facts["positions"] == 4096
    assert count_tokens(ctx, trained, made, out=address_of(ctx.store, trained, made)).reused
    settings = json.loads((model / "tokenizer_config.json").read_text())
    settings["chat_template"] = "Be brief." + settings["chat_template"]
    other = model_at(ctx, model, "other", tokenizer_config=json.dumps(settings))
    assert not count_tokens(ctx, other, made, out=address_of(ctx.store, other, made)).reused


def test_overlong_prompts_are_left_out_and_counted(ctx: StageContext, model: Path, made: Ref[Puzzles]) -> None:
    weights = model_at(ctx, model, "model")
    lengths = count_tokens(ctx, weights, made, out=address_of(ctx.store, weights, made))
    config = DropOverlongConfig(context_tokens=4096)
    out = dropping.address_of(ctx.store, config, made, lengths)
    left = Artifact.open(ctx.store, drop_overlong(ctx, config, made, lengths, out=out))
    whole = Artifact.open(ctx.store, made)
    train, val = (left.read_table(f"{split}.parquet", PUZZLES) for split in ("train", "val"))
    assert train.equals(whole.read_table("train.parquet", PUZZLES).head(8))
    assert val.equals(whole.read_table("val.parquet", PUZZLES))
    assert {name: left.manifest.facts[name] for name in ("train", "val", "dropped", "file")} == {
        "train": 8, "val": 3, "dropped": {"train": 1, "val": 0}, "file": "questions.jsonl",
    }  # fmt: skip
