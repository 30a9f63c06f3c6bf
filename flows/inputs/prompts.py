"""Finds prompts that leave no room for an answer, before anything is sampled."""

import math

import polars as pl

from artifacts.errors import BadInputError
from artifacts.reading import Artifact
from artifacts.refs import Checkpoint, PromptLengths, Puzzles, Ref
from artifacts.schemas import LENGTHS_FILE, PROMPT_LENGTHS
from flows.config.recipe import Recipe
from flows.config.settings import validate
from flows.lookup.preparation import dropped_line
from flows.session.calls import Stages
from flows.session.session import Session
from stages.count_tokens import address_of, count_tokens
from stages.optional import drop_overlong as dropping
from stages.optional.drop_overlong import DropOverlongConfig, drop_overlong
from stages.prepare import SPLITS

_OTHERS = "use a model with a longer context, or leave such puzzles out of the set"
"""Remedy for models other than the policy, such as teachers: `puzzles.overlong` is for the policy's context."""


def counted(stages: Stages, model: Ref[Checkpoint], puzzles: Ref[Puzzles]) -> Ref[PromptLengths]:
    """Returns the tokens of each prompt of a set under a model's tokenizer; counts them unless the store has them."""
    return stages.run(count_tokens, model, puzzles, out=address_of(stages.ctx.store, model, puzzles))


def fitting_puzzles(session: Session, model: Ref[Checkpoint], puzzles: Ref[Puzzles]) -> tuple[Ref[Puzzles], list[int]]:
    """Returns the puzzles of a run whose prompts leave room for an answer, and the tokens of their train prompts.

    The puzzles are the set itself, or one without overlong prompts if the recipe drops them.

    Raises:
        BadInputError: A prompt leaves no room and the recipe does not drop it, or too few puzzles are left.
    """
    lengths = counted(session, model, puzzles)
    limit, prompts = _prompts(session, lengths)
    if session.recipe.puzzles.overlong == "refuse":
        remedy = 'set puzzles.overlong = "drop" to leave such puzzles out, or use a model with a longer context'
        _refuse(prompts.filter(pl.col("tokens") >= limit), limit, model, remedy)
    else:
        if (begun := _begun_limit(session, puzzles)) is not None:
            begun_with = prompts.filter(pl.col("tokens") < begun)
            remedy = "set engine.max_model_len as it was when the run began: its puzzles are those that fitted then"
            _refuse(begun_with.filter(pl.col("tokens") >= limit), limit, model, remedy)
            limit = begun
        if not prompts.filter(pl.col("tokens") >= limit).is_empty():
            puzzles = _dropped(session, puzzles, lengths, int(limit))
    fitting = prompts.filter(pl.col("tokens") < limit, pl.col("split") == "train")
    return puzzles, fitting["tokens"].to_list()


def _begun_limit(session: Session, puzzles: Ref[Puzzles]) -> float | None:
    """Returns the limit by which a run that has begun leaves prompts out of these puzzles; None if it has not begun.

    It is the context of the machine on which the run began, and infinite if no prompt was overlong there.
    """
    store = session.ctx.store
    if not session.has(0, "report"):
        return None
    begun_with = Artifact.at(store, session.layout.iteration(0, "report")).manifest.inputs["puzzles"]
    if begun_with["digest"] == puzzles.digest:
        return math.inf
    made = Artifact.at(store, begun_with["key"]).manifest
    shortened = made.identity.stage == dropping.STAGE and made.inputs["puzzles"]["digest"] == puzzles.digest
    return made.identity.config["context_tokens"] if shortened else None


def _dropped(session: Session, puzzles: Ref[Puzzles], lengths: Ref[PromptLengths], limit: int) -> Ref[Puzzles]:
    config = DropOverlongConfig(context_tokens=limit)
    out = dropping.address_of(session.ctx.store, config, puzzles, lengths)
    kept = session.run(drop_overlong, config, puzzles, lengths, out=out)
    facts = Artifact.open(session.ctx.store, kept).manifest.facts
    session.live.line(dropped_line(facts))
    left = {split: facts[split] for split in SPLITS if split in facts}
    recipe = session.recipe.model_dump(mode="json")
    validate(Recipe, {**recipe, "puzzles": {**recipe["puzzles"], **left}}, "puzzles without overlong prompts")
    return kept


def refuse_overlong(stages: Stages, model: Ref[Checkpoint], puzzles: Ref[Puzzles]) -> None:
    """Checks that every train prompt leaves room for an answer of a model other than the policy.

    Raises:
        BadInputError: A prompt leaves no room.
    """
    limit, prompts = _prompts(stages, counted(stages, model, puzzles))
    _refuse(prompts.filter(pl.col("tokens") >= limit, pl.col("split") == "train"), limit, model, _OTHERS)


def _refuse(overlong: pl.DataFrame, limit: float, model: Ref[Checkpoint], remedy: str) -> None:
    if overlong.is_empty():
        return
    longest = overlong.sort("tokens", descending=True).row(0, named=True)
    others = f", and {len(overlong) - 1} more overlong prompts" if len(overlong) > 1 else ""
    raise BadInputError(
        f"puzzle {longest['prompt_id']} of {longest['split']}",
        f"a prompt of {longest['tokens']} tokens{others}",
        f"fewer than {limit}, the context of {model.key}",
        remedy,
    )


def _prompts(stages: Stages, lengths: Ref[PromptLengths]) -> tuple[float, pl.DataFrame]:
    """Returns the model's context on this machine in tokens (infinite if unknown), and the table of prompt lengths."""
    artifact = Artifact.open(stages.ctx.store, lengths)
    limits = (artifact.manifest.facts["positions"], stages.ctx.profile.engine.max_model_len)
    limit = min((tokens for tokens in limits if tokens is not None), default=math.inf)
    return limit, artifact.read_table(LENGTHS_FILE, PROMPT_LENGTHS)
