"""Finds prompts that leave no room for an answer, before anything is sampled."""

from typing import Any

import polars as pl

from artifacts.errors import BadInputError
from artifacts.reading import Artifact
from artifacts.refs import Checkpoint, PromptLengths, Puzzles, Ref
from artifacts.schemas import LENGTHS_FILE, PROMPT_LENGTHS
from flows.config.recipe import Recipe
from flows.config.settings import validate
from flows.lookup.preparation import dropped_line
from flows.session import Session, Stages
from stages.count import address_of, count
from stages.optional import shorten as shortening
from stages.optional.shorten import ShortenConfig, shorten
from stages.prepare import SPLITS

_OTHERS = "use a model with a longer context, or leave such puzzles out of the set"
"""Remedy for models beside the policy, such as teachers: `puzzles.overlong` is about the policy's context."""


def prompt_lengths(stages: Stages, model: Ref[Checkpoint], puzzles: Ref[Puzzles], split: str = "train") -> list[int]:
    """Returns the tokens of each prompt of a split, chat template included; they are counted once (see `counted`)."""
    table = Artifact.open(stages.ctx.store, counted(stages, model, puzzles)).read_table(LENGTHS_FILE, PROMPT_LENGTHS)
    return table.filter(pl.col("split") == split)["tokens"].to_list()


def counted(stages: Stages, model: Ref[Checkpoint], puzzles: Ref[Puzzles]) -> Ref[PromptLengths]:
    """Returns the tokens of each prompt of a set under a model's tokenizer; counts them unless the store has them."""
    return stages.run(count, model, puzzles, out=address_of(stages.ctx.store, model, puzzles))


def fitting_puzzles(run: Session, model: Ref[Checkpoint], puzzles: Ref[Puzzles]) -> Ref[Puzzles]:
    """Returns the puzzles of a run whose prompts leave room for an answer: the set itself, or a shorter one.

    Raises:
        BadInputError: A prompt leaves no room and the recipe does not drop it, or too few puzzles are left.
    """
    if run.recipe.puzzles.overlong == "refuse":
        remedy = 'set puzzles.overlong = "drop" to leave such puzzles out, or use a model with a longer context'
        refuse_overlong(run, model, puzzles, remedy=remedy)
        return puzzles
    lengths = counted(run, model, puzzles)
    limit, overlong = _overlong(run, lengths)
    if limit is None or overlong.is_empty():
        return puzzles
    config = ShortenConfig(context_tokens=limit)
    out = shortening.address_of(run.ctx.store, config, puzzles, lengths)
    shorter = run.run(shorten, config, puzzles, lengths, out=out)
    facts = Artifact.open(run.ctx.store, shorter).manifest.facts
    run.live.line(dropped_line(facts))
    left = {split: facts[split] for split in SPLITS if split in facts}
    recipe = run.recipe.model_dump(mode="json")
    validate(Recipe, {**recipe, "puzzles": {**recipe["puzzles"], **left}}, "puzzles without overlong prompts")
    return shorter


def refuse_overlong(
    stages: Stages, model: Ref[Checkpoint], puzzles: Ref[Puzzles], split: str | None = None, *, remedy: str = _OTHERS
) -> None:
    """Checks that every prompt leaves room for an answer of a model.

    Args:
        model: The model that is asked.
        puzzles: The puzzle set.
        split: Split of the set; None for all.
        remedy: What the user can do.

    Raises:
        BadInputError: A prompt leaves no room.
    """
    limit, overlong = _overlong(stages, counted(stages, model, puzzles))
    if split is not None:
        overlong = overlong.filter(pl.col("split") == split)
    if limit is None or overlong.is_empty():
        return
    longest = overlong.sort("tokens", descending=True).row(0, named=True)
    others = f", and {len(overlong) - 1} more overlong prompts" if len(overlong) > 1 else ""
    raise BadInputError(
        f"puzzle {longest['puzzle_id']} of {longest['split']}",
        f"a prompt of {longest['tokens']} tokens{others}",
        f"fewer than {limit}, the context of {model.key}",
        remedy,
    )


def _overlong(stages: Stages, lengths: Ref[PromptLengths]) -> tuple[int | None, pl.DataFrame]:
    """Returns the model's context on this machine, and the prompts that fill it: rows of `prompt_lengths`."""
    positions, own = _facts(stages, lengths)["positions"], stages.ctx.profile.engine.max_model_len
    limit = min((tokens for tokens in (positions, own) if tokens is not None), default=None)
    table = Artifact.open(stages.ctx.store, lengths).read_table(LENGTHS_FILE, PROMPT_LENGTHS)
    return limit, table.filter(pl.lit(False) if limit is None else pl.col("tokens") >= limit)


def _facts(stages: Stages, lengths: Ref[PromptLengths]) -> dict[str, Any]:
    return Artifact.open(stages.ctx.store, lengths).manifest.facts
