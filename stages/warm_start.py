"""The stage that trains on the solver's answers, so that the model knows their format and GRPO has a signal."""

import random
from typing import Annotated, Literal

import polars as pl
from pydantic import Field

from artifacts.address import ArtifactAddress
from artifacts.config import Config
from artifacts.errors import BadInputError
from artifacts.identity import Added, Identity, settings_of
from artifacts.reading import Artifact
from artifacts.refs import Checkpoint, Puzzles, Ref
from artifacts.schemas import PUZZLES
from stages.context import StageContext
from stages.environments.puzzle import Style, Taught
from stages.environments.tables import taught_passages
from stages.grpo.groups import Branch, Group
from stages.grpo.packing import PackConfig, pack_groups
from stages.models.tokenizers.chat import ChatTokenizer
from stages.texts.supervised import check_fits, check_round_trip
from stages.training.job import EpochOrder, JobSettings, LossConfig, OptimizerConfig
from stages.training.launch import Target, Weights, train_and_publish, warn_of_rounding

REVISION = 1
_OTHER_TEXTS = "choose another model, or another warm_start.text"


class WarmStartConfig(Config):
    """Supervised steps on the solver's texts for train puzzles."""

    text: Literal["answers", "derivations", "transcripts"] = Field(
        default="answers",
        description="Texts to train on: only the answers; the derivation step by step and then the answers; or a call "
        "of the environment's solver with all clues, its answer, which is not in the loss, and then the answers.",
    )
    style: Annotated[Style, Added(before="plain")] = Field(
        default="plain",
        description="How derivations are written: premises by number after each statement, by number before it, or in "
        "the words of the clues before it.",
    )
    steps: int = Field(default=16, ge=1, le=1_000_000, description="Optimizer steps of one pass.")
    puzzles_per_step: int = Field(
        default=4, ge=1, le=1_000_000, description="Number of puzzles in an optimizer step, one text each."
    )
    epochs: int = Field(default=1, ge=1, le=1_000_000, description="Passes over the same puzzles.")
    epoch_order: Annotated[EpochOrder, Added(before="same")] = Field(
        default="shuffled", description="Mini-batches of the passes after the first: drawn again, or the same."
    )
    learning_rate: float = Field(default=1e-4, gt=0, le=10.0, description="Highest learning rate.")
    schedule: Literal["constant", "linear"] = Field(
        default="constant", description="`linear` falls to 0 after the last step."
    )
    warmup_steps: int = Field(
        default=0, ge=0, le=1_000_000, description="Steps over which the learning rate rises linearly."
    )
    row_tokens: int = Field(default=2048, ge=16, le=10_000_000, description="Token budget of a row.")
    optimizer: OptimizerConfig = Field(default_factory=OptimizerConfig)
    seed: int = Field(default=0, ge=0, description="Seed of the choice of puzzles and of the order of later passes.")

    @property
    def taught(self) -> Taught | None:
        """Style of the derivations to train on, or `transcripts`; None if `text` is `answers`."""
        if self.text == "answers":
            return None
        return self.style if self.text == "derivations" else self.text


def warm_start(
    ctx: StageContext,
    config: WarmStartConfig,
    weights: Ref[Checkpoint],
    puzzles: Ref[Puzzles],
    *,
    out: ArtifactAddress[Checkpoint],
) -> Ref[Checkpoint]:
    """Trains on the solver's texts and publishes the checkpoint that GRPO starts from.

    Raises:
        BadInputError: There are fewer train puzzles than the steps need, a text does not fit into a row, or the
            tokenizer does not decode a text's tokens to the same text.
        TransientError: The trainer died or hung.
    """
    inputs = {"weights": weights, "puzzles": puzzles}
    settings = settings_of(config)
    # Settings without effect do not enter the identity.
    if config.epochs == 1:
        settings.pop("epoch_order", None)
    if config.text != "derivations":
        settings.pop("style", None)
    target = Target(Identity.of("warm_start", REVISION, settings, **inputs), out, None, inputs)
    if published := target.published():
        return published.checkpoint
    train = Artifact.open(ctx.store, puzzles).read_table("train.parquet", PUZZLES)
    needed = config.steps * config.puzzles_per_step
    if needed > len(train):
        raise BadInputError(
            "warm_start",
            f"{config.steps} steps of {config.puzzles_per_step} puzzles, but {len(train)} train puzzles",
            f"at least {needed}",
            "raise puzzles.train or lower warm_start.steps",
        )
    chosen = train[random.Random(config.seed).sample(range(len(train)), needed)]
    folder = ctx.local_folder(weights)
    ctx.start_engine_early(folder, weights.digest)  # the next stage samples from a model of this shape
    tokenizer = ChatTokenizer(folder)
    packing = PackConfig(row_tokens=config.row_tokens, updates=config.steps, seed=config.seed)
    groups = taught_groups(config, chosen, tokenizer)
    batch, _ = pack_groups(groups, packing)
    batch.check("warm start batch")
    batch_file = ctx.scratch / "warm-start.safetensors"
    batch_file.write_bytes(batch.to_bytes())
    job_settings = job_settings_of(config)
    trained = train_and_publish(Weights(weights), batch_file, job_settings, target, ctx, label="warm start")
    warn_of_rounding(trained, job_settings, "warm_start.learning_rate", ctx)
    return trained.checkpoint


def job_settings_of(config: WarmStartConfig) -> JobSettings:
    """Returns rates, loss and passes of the warm start; `config.seed` also determines the order of the later passes."""
    return JobSettings(
        learning_rates=tuple(_learning_rate(config, step) for step in range(config.steps * config.epochs)),
        epochs=config.epochs,
        loss=LossConfig(kind="cross_entropy"),
        optimizer=config.optimizer,
        epoch_order=config.epoch_order,
        epoch_seed=config.seed,
    )


def taught_groups(config: WarmStartConfig, puzzles: pl.DataFrame, tokenizer: ChatTokenizer) -> list[Group]:
    """Returns a group for each puzzle: its prompt with the text to train on as the only completion.

    A text is never cut, because a cut one would teach neither its answers nor where to end.

    Raises:
        BadInputError: A prompt with its text does not fit into a row, or the tokens of a text decode to another text.
    """
    groups: list[Group] = []
    for prompt, passages in zip(puzzles["prompt"], taught_passages(puzzles, config.taught), strict=True):
        *first, last = passages
        parts = [
            *((tokenizer.text_ids(part.text), part.by_tool) for part in first),
            (tokenizer.answer_ids(last.text), False),
        ]
        tokens = [token for ids, _ in parts for token in ids]
        by_tool = [told for ids, told in parts for _ in ids]
        check_round_trip(tokenizer, tokens, "".join(part.text for part in passages), _OTHER_TEXTS)
        groups.append(Group(tokenizer.prompt_ids(prompt), [Branch(tokens, [0.0] * len(tokens), 1.0, by_tool)]))
    check_fits(groups, config.row_tokens, "warm_start", config.text, "raise warm_start.row_tokens")
    return groups


def _learning_rate(config: WarmStartConfig, step: int) -> float:
    warmup = min(1.0, (step + 1) / config.warmup_steps) if config.warmup_steps else 1.0
    decay = 1.0 - step / (config.steps * config.epochs) if config.schedule == "linear" else 1.0
    return config.learning_rate * warmup * decay
