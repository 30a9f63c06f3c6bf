"""The stage that trains on texts: supervised fine-tuning, as after rejection sampling or from a stronger teacher."""

import math
from typing import Literal

import polars as pl
from pydantic import Field

from artifacts.address import ArtifactAddress
from artifacts.errors import NEW_RUN
from artifacts.identity import Identity, settings_of
from artifacts.reading import Artifact
from artifacts.refs import Checkpoint, Ref, Texts
from artifacts.schemas import TEXTS, TEXTS_FILE
from stages.context import StageContext
from stages.grpo.groups import Branch, Group
from stages.grpo.packing import PackConfig, pack_groups
from stages.models.tokenizers.chat import ChatTokenizer
from stages.models.tokenizers.digest import tokenizer_digest
from stages.texts.supervised import check_fits, check_round_trip, tokens_to_learn
from stages.training.job import EpochOrder, JobSettings, LossConfig, OptimizerConfig
from stages.training.launch import Target, Weights, train_and_publish, warn_of_rounding
from stages.training.trainable import TrainableConfig, TrainedConfig

REVISION = 1
_DROP = 'with distil.texts.untrainable = "drop"'


class SftConfig(TrainedConfig):
    """Supervised fine-tuning on all texts of an artifact: cross-entropy on the texts, not on their prompts."""

    texts_per_step: int = Field(
        default=16, ge=1, le=1_000_000, description="Number of texts in an optimizer step; the last may have fewer."
    )
    epochs: int = Field(default=1, ge=1, le=1_000_000, description="Passes over the texts.")
    epoch_order: EpochOrder = Field(
        default="shuffled", description="Mini-batches of the passes after the first: drawn again, or the same."
    )
    learning_rate: float = Field(
        default=1e-5,
        gt=0,
        le=10.0,
        description="Highest learning rate; 1e-4 if it is left out and `trainable` is LoRA.",
    )
    schedule: Literal["constant", "linear", "cosine"] = Field(
        default="linear", description="After the warm-up, `linear` and `cosine` fall to 0 after the last step."
    )
    warmup_share: float = Field(
        default=0.0, ge=0.0, lt=1.0, description="Share of all steps over which the learning rate rises linearly."
    )
    row_tokens: int = Field(default=2048, ge=16, le=10_000_000, description="Token budget of a row.")
    aggregation: Literal["token_mean", "sequence_mean"] = Field(
        default="token_mean",
        description="Divisor of the loss of a step: its tokens, or each text's and then the texts.",
    )
    optimizer: OptimizerConfig = Field(default_factory=OptimizerConfig)
    trainable: TrainableConfig = Field(default_factory=TrainableConfig)
    seed: int = Field(default=0, ge=0, description="Seed of the order of the texts.")


def sft(
    ctx: StageContext,
    config: SftConfig,
    weights: Ref[Checkpoint],
    texts: Ref[Texts],
    *,
    out: ArtifactAddress[Checkpoint],
) -> Ref[Checkpoint]:
    """Trains on texts and publishes the checkpoint.

    Tokens that a teacher sampled are kept if its tokenizer is the student's, because the same text may have other
    tokens. Any other text is tokenized here and ends with the end token.

    `distil` rejects texts that cannot be trained on, unless its config says otherwise.

    Raises:
        BadInputError: A text does not fit into a row, or the tokenizer does not decode its tokens to the same text.
        TransientError: The trainer died or hung.
    """
    inputs = {"weights": weights, "texts": texts}
    settings = settings_of(config)
    if config.epochs == 1:
        settings.pop("epoch_order", None)  # without effect
    target = Target(Identity.of("sft", REVISION, settings, **inputs), out, None, inputs)
    if published := target.published():
        return published.checkpoint
    artifact = Artifact.open(ctx.store, texts)
    table = artifact.read_table(TEXTS_FILE, TEXTS)
    folder = ctx.local_folder(weights)
    own_tokens = artifact.manifest.facts["tokenizer"] == tokenizer_digest(ctx.store, weights)
    groups = text_groups(table, ChatTokenizer(folder), keep_tokens=own_tokens)
    remedy = f"{NEW_RUN}, {_DROP} or a higher distil.sft.row_tokens"
    check_fits(groups, config.row_tokens, "distil.sft", "texts", remedy)
    packing = PackConfig(
        row_tokens=config.row_tokens, minibatch_size=config.texts_per_step, minibatch_unit="puzzles", seed=config.seed
    )
    steps = math.ceil(len(groups) / config.texts_per_step) * config.epochs
    job_settings = JobSettings(
        learning_rates=tuple(learning_rate_of(config, step, steps) for step in range(steps)),
        epochs=config.epochs,
        loss=LossConfig(kind="cross_entropy", aggregation=config.aggregation),
        optimizer=config.optimizer,
        trainable=config.trainable,
        epoch_order=config.epoch_order,
        epoch_seed=config.seed,
    )
    batch, _ = pack_groups(groups, packing)
    batch.check("sft batch")
    batch_file = ctx.scratch / "sft.safetensors"
    batch_file.write_bytes(batch.to_bytes())
    trained = train_and_publish(Weights(weights), batch_file, job_settings, target, ctx, label="sft")
    warn_of_rounding(trained, job_settings, "distil.sft.learning_rate", ctx)
    return trained.checkpoint


def text_groups(texts: pl.DataFrame, tokenizer: ChatTokenizer, *, keep_tokens: bool) -> list[Group]:
    """Returns a group for each text: its prompt with the text as the only completion.

    Args:
        texts: Rows of the `texts` schema.
        tokenizer: The student's.
        keep_tokens: Whether the teacher's tokens are the student's. They are kept if they end with an end token.

    Raises:
        BadInputError: The tokens of a text decode to another text.
    """
    prompts = {prompt: tokenizer.prompt_ids(prompt) for prompt in texts["prompt"].unique(maintain_order=True)}
    groups: list[Group] = []
    for prompt, text, sampled in texts.select("prompt", "text", "token_ids").iter_rows():
        tokens = tokens_to_learn(tokenizer, text, sampled if keep_tokens else None)
        if tokens is not sampled:
            check_round_trip(tokenizer, tokens, text, f"{NEW_RUN}, {_DROP} or another model")
        groups.append(Group(prompts[prompt], [Branch(tokens, [0.0] * len(tokens), 1.0)]))
    return groups


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
