"""The stage that trains on texts before GRPO: on the solver's, as a warm start, or on those of a teacher."""

import math
import random
from collections.abc import Sequence
from typing import Annotated, Literal, Self

import polars as pl
from pydantic import Field, model_validator

from artifacts.address import ArtifactAddress
from artifacts.errors import NEW_RUN, BadInputError
from artifacts.identity import Identity, settings_of
from artifacts.reading import Artifact
from artifacts.refs import Checkpoint, Puzzles, Ref, Texts
from artifacts.schemas import PUZZLES, TEXTS, TEXTS_FILE
from stages.context import StageContext
from stages.environments.puzzle import Style, Taught
from stages.environments.tables import taught_passages, thinking_of
from stages.grpo.groups import Branch, Group
from stages.grpo.packing import PackConfig, pack_groups
from stages.models.tokenizers.chat import ChatTokenizer, chat_tokenizer
from stages.models.tokenizers.digest import tokenizer_digest
from stages.sampling.collect import opens_thought
from stages.texts.supervised import check_can_be_sampled, check_fits, check_round_trip, tokens_to_learn
from stages.training.job import EpochOrder, JobSettings, LossConfig, OptimizerConfig
from stages.training.launch import Target, Weights, batch_file, train_and_publish, warn_of_rounding
from stages.training.trainable import TrainableConfig, TrainedConfig

REVISION = 2
_TextsPerStep = Annotated[
    int,
    Field(
        ge=1,
        le=1_000_000,
        description="Number of texts in an optimizer step; with a teacher's, some may have one fewer.",
    ),
]
_Rate = Annotated[
    float,
    Field(
        gt=0,
        le=10.0,
        description="Highest learning rate; ten times the default if it is left out and `trainable` is LoRA.",
    ),
]
_Schedule = Annotated[
    Literal["constant", "linear", "cosine"],
    Field(description="After the warm-up, `linear` and `cosine` fall to 0 after the last step."),
]
_DROP = 'with distil.texts.untrainable = "drop"'


class SftConfig(TrainedConfig):
    """Supervised fine-tuning: cross-entropy on texts, not on their prompts."""

    texts_per_step: _TextsPerStep = 16
    epochs: int = Field(default=1, ge=1, le=1_000_000, description="Passes over the texts.")
    epoch_order: EpochOrder = Field(
        default="shuffled", description="Mini-batches of the passes after the first: drawn again, or the same."
    )
    learning_rate: _Rate = 1e-5
    schedule: _Schedule = "linear"
    warmup_share: float = Field(
        default=0.0, ge=0.0, lt=1.0, description="Share of all steps over which the learning rate rises linearly."
    )
    row_tokens: int = Field(default=2048, ge=16, le=10_000_000, description="Token budget of a row.")
    aggregation: Literal["token_mean", "sequence_mean"] = Field(
        default="token_mean",
        description="How the loss of a step is averaged: over all tokens, or over each text and then over texts.",
    )
    optimizer: OptimizerConfig = Field(default_factory=OptimizerConfig)
    trainable: TrainableConfig = Field(default_factory=TrainableConfig)
    seed: int = Field(default=0, ge=0, description="Seed of the order of the texts, and of the choice of puzzles.")


class WarmStartConfig(SftConfig):
    """Supervised fine-tuning on the solver's texts for train puzzles, which are drawn at random."""

    text: Literal["answers", "derivations", "transcripts"] = Field(
        default="answers",
        description="Texts to train on: only the answers; the derivation step by step and then the answers; or a call "
        "of the environment's solver with all clues, its answer, which is not in the loss, and then the answers.",
    )
    style: Style = Field(
        default="plain",
        description="How derivations are written: premises by number after each statement (`plain`), by number "
        "before it (`terse`), in the words of the clues before it (`cited`), or none (`bare`).",
    )
    steps: int = Field(default=16, ge=1, le=1_000_000, description="Optimizer steps of one pass.")
    texts_per_step: _TextsPerStep = 4
    learning_rate: _Rate = 1e-4
    schedule: _Schedule = "constant"

    @model_validator(mode="after")
    def _style_is_read(self) -> Self:
        if self.text != "derivations":
            self.refuse_unread(("style",), f"with text = '{self.text}'")
        return self

    @property
    def puzzles(self) -> int:
        """Number of puzzles whose texts are trained on."""
        return self.steps * self.texts_per_step

    @property
    def taught(self) -> Taught | None:
        """Style of the derivations to train on, or `transcripts`; None if `text` is `answers`."""
        if self.text == "answers":
            return None
        return self.style if self.text == "derivations" else self.text


def sft(
    ctx: StageContext,
    config: SftConfig,
    weights: Ref[Checkpoint],
    texts: Ref[Texts] | Ref[Puzzles],
    *,
    out: ArtifactAddress[Checkpoint],
    max_tokens: int | None = None,
) -> Ref[Checkpoint]:
    """Trains on texts and publishes the checkpoint.

    Tokens that a teacher sampled are kept if its tokenizer is the student's, because the same text may have other
    tokens. Any other text is tokenized here and ends with the end token. A text is never cut, because a cut one would
    teach neither its answers nor where to end.

    `distil` rejects texts that cannot be trained on, unless its config says otherwise.

    Args:
        texts: A teacher's texts, all of which are learned; or, under a `WarmStartConfig`, the puzzles for which the
            solver writes.
        max_tokens: Largest number of tokens of the completions that follow a warm start; None if it is not known.

    Raises:
        BadInputError: There are fewer train puzzles than a warm start takes, a text does not fit into a row, most of
            the solver's texts are longer than `max_tokens`, or the tokenizer does not decode a text's tokens to the
            same text.
        TransientError: The trainer died or hung.
    """
    inputs = {"weights": weights, "texts": texts}
    target = Target(identity_of(config, weights, texts, max_tokens), out, None, inputs)
    if published := target.published():
        return published.checkpoint
    artifact = Artifact.open(ctx.store, texts)
    tokenizer = chat_tokenizer(ctx.local_folder(weights))
    if isinstance(config, WarmStartConfig):
        section, label = "warm_start", "warm start"
        groups = taught_groups(config, _drawn(config, artifact.read_table("train.parquet", PUZZLES)), tokenizer)
        if max_tokens is not None:
            check_can_be_sampled(groups, max_tokens, config.text)
    else:
        section, label = "distil.sft", "sft"
        model_tokens = artifact.manifest.facts["tokenizer"] == tokenizer_digest(ctx.store, weights)
        groups = text_groups(artifact.read_table(TEXTS_FILE, TEXTS), tokenizer, keep_tokens=model_tokens)
        remedy = f"{NEW_RUN}, {_DROP} or a higher distil.sft.row_tokens"
        check_fits(groups, config.row_tokens, section, "texts", remedy)
    job_settings = job_settings_of(config, len(groups))
    updates = len(job_settings.learning_rates) // config.epochs
    batch, _ = pack_groups(groups, PackConfig(row_tokens=config.row_tokens, updates=updates, seed=config.seed))
    batch.check("sft batch")
    remedy = f"{NEW_RUN}, with shorter texts or a model with a longer context"
    with batch_file(batch, weights, ctx, where=section, remedy=remedy) as file:
        trained = train_and_publish(Weights(weights), file, job_settings, target, ctx, label=label)
    warn_of_rounding(trained, job_settings, f"{section}.learning_rate", ctx)
    return trained.checkpoint


def identity_of(
    config: SftConfig, weights: Ref[Checkpoint], texts: Ref[Texts] | Ref[Puzzles], max_tokens: int | None = None
) -> Identity:
    """Returns the identity of what `sft` publishes, with `max_tokens`, so that texts are checked against each limit."""
    limit = {} if max_tokens is None else {"max_tokens": max_tokens}
    return Identity.of("sft", REVISION, {**settings_of(config), **limit}, weights=weights, texts=texts)


def job_settings_of(config: SftConfig, texts: int) -> JobSettings:
    """Returns rates, loss and passes for a number of texts; the seed also determines the order of later passes."""
    steps = math.ceil(texts / config.texts_per_step) * config.epochs
    return JobSettings(
        learning_rates=tuple(learning_rate_of(config, step, steps) for step in range(steps)),
        epochs=config.epochs,
        loss=LossConfig(kind="cross_entropy", aggregation=config.aggregation),
        optimizer=config.optimizer,
        trainable=config.trainable.merging(),
        epoch_order=config.epoch_order,
        epoch_seed=config.seed,
    )


def text_groups(texts: pl.DataFrame, tokenizer: ChatTokenizer, *, keep_tokens: bool) -> list[Group]:
    """Returns a group for each text of a teacher: its prompt with the text as the only completion.

    Args:
        texts: Rows of the `texts` schema.
        tokenizer: The student's.
        keep_tokens: Whether the teacher's tokens are the student's. They are kept if they end with an end token.

    Raises:
        BadInputError: The tokens of a text decode to another text.
    """
    prompts = {prompt: tokenizer.prompt_token_ids(prompt) for prompt in texts["prompt"].unique(maintain_order=True)}
    groups: list[Group] = []
    for prompt, text, sampled in texts.select("prompt", "text", "token_ids").iter_rows():
        tokens = tokens_to_learn(tokenizer, text, sampled if keep_tokens else None)
        if tokens is not sampled:
            check_round_trip(tokenizer, tokens, text, f"{NEW_RUN}, {_DROP} or another model")
        groups.append(_group(prompts[prompt], tokens))
    return groups


def _drawn(config: WarmStartConfig, train: pl.DataFrame) -> pl.DataFrame:
    """Returns the puzzles for which the solver writes."""
    if config.puzzles > len(train):
        raise BadInputError(
            "warm_start",
            f"{config.steps} steps of {config.texts_per_step} texts, but {len(train)} train puzzles",
            f"at least {config.puzzles}",
            "raise puzzles.train or lower warm_start.steps",
        )
    return train[random.Random(config.seed).sample(range(len(train)), config.puzzles)]


def taught_groups(config: WarmStartConfig, puzzles: pl.DataFrame, tokenizer: ChatTokenizer) -> list[Group]:
    """Returns a group for each puzzle: its prompt with the solver's text as the only completion.

    Raises:
        BadInputError: A prompt with its text does not fit into a row, the tokens of a text decode to another text, or
            no text can end the thought that the prompt opens (see `opens_thought`).
    """
    groups: list[Group] = []
    opened = opens_thought(tokenizer, thinking_of(puzzles))
    texts = taught_passages(puzzles, config.taught, thought_opened=opened)
    for prompt, passages in zip(puzzles["prompt"], texts, strict=True):
        *first, last = passages
        parts = [
            *((tokenizer.text_ids(part.text), part.by_tool) for part in first),
            (tokenizer.answer_ids(last.text), False),
        ]
        tokens = [token for ids, _ in parts for token in ids]
        text, remedy = "".join(part.text for part in passages), "choose another model, or another warm_start.text"
        check_round_trip(tokenizer, tokens, text, remedy)
        groups.append(
            _group(tokenizer.prompt_token_ids(prompt), tokens, [by_tool for ids, by_tool in parts for _ in ids])
        )
    check_fits(groups, config.row_tokens, "warm_start", config.text, "raise warm_start.row_tokens")
    return groups


def _group(prompt: Sequence[int], tokens: Sequence[int], by_tool: Sequence[bool] | None = None) -> Group:
    return Group(prompt, [Branch(tokens, [0.0] * len(tokens), 1.0, by_tool)])


def learning_rate_of(config: SftConfig, step: int, steps: int) -> float:
    """Returns the learning rate of an optimizer step.

    Args:
        config: Rate, schedule and warm-up.
        step: Number of the step, from 0.
        steps: Number of all steps.
    """
    rising = math.ceil(config.warmup_share * steps)
    if step < rising:
        return config.learning_rate * (step + 1) / rising
    done = (step - rising) / (steps - rising)
    match config.schedule:
        case "constant":
            return config.learning_rate
        case "linear":
            return config.learning_rate * (1.0 - done)
        case "cosine":
            return config.learning_rate * 0.5 * (1.0 + math.cos(math.pi * done))
