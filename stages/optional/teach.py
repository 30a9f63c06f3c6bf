"""The stage of on-policy distillation: a teacher judges every token that the policy sampled.

A token's advantage is log p_teacher - log p_policy of that token alone, with nothing for later tokens (discount 0), so
that the expected update lowers the divergence KL(policy || teacher) at each token (arXiv 2306.13649; 2601.19897 for a
teacher that is the policy with a demonstration in its prompt).
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
import polars as pl
from pydantic import Field, model_validator
from safetensors.numpy import load_file

from artifacts.address import ArtifactAddress
from artifacts.config import Config
from artifacts.errors import NEW_RUN, BadInputError
from artifacts.identity import Identity
from artifacts.reading import Artifact
from artifacts.refs import Checkpoint, Grades, Puzzles, Ref, Rollouts
from artifacts.schemas import (
    GRADES,
    GRADES_FILE,
    STEPS,
    STEPS_FILE,
    TOKEN_ADVANTAGES,
    TOKEN_ADVANTAGES_FILE,
    as_table,
    tool_marks,
)
from stages.context import StageContext
from stages.environments.puzzle import Style
from stages.environments.tables import read_split, taught_passages
from stages.grading.graded_rollouts import graded_rollouts
from stages.grpo.gae import Floats
from stages.grpo.groups import Branch, Group
from stages.grpo.packing import PackConfig, by_completion, pack_numbered
from stages.models.shape import read_shape
from stages.models.tensors import check_weights
from stages.models.tokenizers.chat import chat_tokenizer
from stages.models.tokenizers.digest import check_same_tokenizer
from stages.training.job import ScoreJob
from stages.training.launch import batch_file

REVISION = 1
POLICY = "policy"
HINT = "A right derivation is:"


class TeachConfig(Config):
    """The teacher of on-policy distillation, and the weight of its verdicts."""

    teacher: str = Field(
        default=POLICY,
        description="The teacher: a checkpoint's key, RUN@ITERATION, a folder, hub:ID or gguf:PACKAGE/FILE, with the "
        "tokenizer of the policy; or `policy`, the policy itself, which needs a `hint`.",
    )
    hint: Literal["none", "derivation"] = Field(
        default="none",
        description="What the teacher's prompt has in addition to the policy's: nothing, or the solver's derivation.",
    )
    style: Style = Field(default="plain", description="Style of the derivation in the hint.")
    weight: float = Field(default=1.0, gt=0.0, le=1e6, description="Factor of the teacher's verdict on a token.")
    clamp: float | None = Field(
        default=None, gt=0.0, le=1e6, description="Bound of the verdict on a token, before `weight`; null: none."
    )
    outcome_weight: float = Field(
        default=0.0, ge=0.0, le=1e6, description="Factor of the advantage of the rewards, which is added; 0: none."
    )

    @model_validator(mode="after")
    def _style_is_read(self) -> Self:
        if self.hint == "none":
            self.refuse_unread(("style",), "with hint = 'none'")
        return self

    def effective(self) -> dict[str, Any]:
        """Returns the settings that enter the identity; the teacher itself is an input."""
        settings = self.model_dump(mode="json")
        del settings["teacher"]
        if self.hint == "none":
            del settings["style"]
        return settings


def teach(
    ctx: StageContext,
    config: TeachConfig,
    teacher: Ref[Checkpoint],
    rollouts: Ref[Rollouts],
    grades: Ref[Grades],
    puzzles: Ref[Puzzles],
    *,
    out: ArtifactAddress[Grades],
) -> Ref[Grades]:
    """Publishes grades with token advantages from the teacher; accuracies and rewards are unchanged.

    Masked completions stay masked. The fact `teacher/kl/mean` estimates KL(policy || teacher) in nats per token, from
    all tokens that the policy wrote.

    Raises:
        BadInputError: The teacher has another tokenizer, a completion does not fit into its context, the rollouts were
            sampled greedily, or a puzzle's environment writes no derivation for the hint.
        IntegrityError: The grades are not those of the rollouts.
        TransientError: The trainer died or hung.
    """
    inputs = {"teacher": teacher, "rollouts": rollouts, "grades": grades, "puzzles": puzzles}
    identity = Identity.of("teach", REVISION, config.effective(), **inputs)
    if published := out.find(identity):
        return published
    sampled, graded = Artifact.open(ctx.store, rollouts), Artifact.open(ctx.store, grades)
    check_same_tokenizer(ctx.store, teacher, Ref(**sampled.manifest.inputs["weights"]), "teach.teacher")
    completions = graded_rollouts(ctx.store, rollouts, grades)
    table = completions.select(list(GRADES.columns))
    train = read_split(ctx.store, puzzles, "train")
    prompts = teacher_prompts(config, train, set(completions["prompt_id"]))
    logprobs = _scored(ctx, teacher, completions, prompts)
    verdicts = [
        Verdicts.of(scored, np.array(sampler), None if marks is None else np.array(marks, np.bool_), config)
        for scored, sampler, marks in zip(
            logprobs, completions["sampler_logprobs"].to_list(), tool_marks(completions), strict=True
        )
    ]
    advantages = _advantages(table, graded, verdicts, config)
    attempt = out.attempt(identity)
    if STEPS_FILE in graded.names():
        attempt.write_table(STEPS_FILE, graded.read_table(STEPS_FILE, STEPS), STEPS)
    means = [
        None if values is None else float(values[verdict.own].mean()) if verdict.own.any() else 0.0
        for values, verdict in zip(advantages, verdicts, strict=True)
    ]
    attempt.write_table(GRADES_FILE, table.with_columns(pl.Series("advantage", means, pl.Float64)), GRADES)
    rows = [
        {"group": group, "sample": sample, "advantages": values.tolist()}
        for (group, sample), values in zip(table.select("group", "sample").rows(), advantages, strict=True)
        if values is not None
    ]
    attempt.write_table(TOKEN_ADVANTAGES_FILE, as_table(rows, TOKEN_ADVANTAGES), TOKEN_ADVANTAGES)
    gaps = np.concatenate([np.zeros(0), *(verdict.gaps[verdict.own] for verdict in verdicts)])
    return attempt.publish(
        {**graded.manifest.facts, "teacher/kl/mean": float(-gaps.mean()) if gaps.size else 0.0}, **inputs
    )


@dataclass(frozen=True)
class Verdicts:
    """A teacher's verdicts on the T tokens of a completion.

    Attributes:
        own: [T] bool, the tokens that the policy wrote.
        gaps: [T] log p_teacher - log p_policy; 0 for the tokens of a tool.
        advantages: [T] the gaps, clamped and weighted.
    """

    own: npt.NDArray[np.bool_]
    gaps: Floats
    advantages: Floats

    @classmethod
    def of(
        cls, teacher: Floats, sampler: Floats, by_tool: npt.NDArray[np.bool_] | None, config: TeachConfig
    ) -> "Verdicts":
        """Returns the verdicts on a completion.

        Args:
            teacher: Log-probabilities of the tokens that the policy wrote, in order.
            sampler: [T] log-probabilities of all tokens under the policy.
            by_tool: [T] whether a tool wrote a token; None: the policy wrote all.
            config: Clamp and weight.
        """
        own = np.ones(sampler.size, np.bool_) if by_tool is None else ~by_tool
        gaps = np.zeros(sampler.size)
        gaps[own] = teacher - sampler[own]
        bound = np.inf if config.clamp is None else config.clamp
        return cls(own, gaps, config.weight * np.clip(gaps, -bound, bound))


def teacher_prompts(config: TeachConfig, train: pl.DataFrame, asked: set[str]) -> dict[str, str]:
    """Returns the prompt that the teacher reads for each puzzle, by its id.

    Args:
        config: The hint.
        train: The train split.
        asked: Ids of the puzzles.

    Raises:
        BadInputError: A puzzle's environment writes no derivation for the hint.
    """
    puzzles = train.filter(pl.col("prompt_id").is_in(asked))
    prompts = dict(zip(puzzles["prompt_id"], puzzles["prompt"], strict=True))
    if config.hint == "none":
        return prompts
    hints = ("".join(part.text for part in parts) for parts in taught_passages(puzzles, config.style))
    return {name: f"{prompt}\n\n{HINT}\n\n{hint}" for (name, prompt), hint in zip(prompts.items(), hints, strict=True)}


def _scored(
    ctx: StageContext, teacher: Ref[Checkpoint], completions: pl.DataFrame, prompts: dict[str, str]
) -> list[Floats]:
    """Returns the teacher's log-probabilities of the tokens that the policy wrote, for each completion."""
    folder = ctx.local_folder(teacher)
    check_weights(folder)
    temperature = json.loads(completions["sampling"][0])["temperature"]
    if temperature == 0.0:
        raise BadInputError(
            "sample.sampling.temperature", "0 with a teacher", "above 0, so that the policy explores", "set it to 1"
        )
    tokenizer = chat_tokenizer(folder)
    token_ids, marks = completions["completion_token_ids"].to_list(), tool_marks(completions)
    groups: list[Group] = []
    number = 0
    for rows in completions.partition_by("group", maintain_order=True):
        members = range(number, number + len(rows))
        branches = [Branch(token_ids[i], [0.0] * len(token_ids[i]), 0.0, marks[i], number=i) for i in members]
        groups.append(Group(tokenizer.prompt_token_ids(prompts[rows["prompt_id"][0]]), branches))
        number += len(rows)
    row_tokens = max(len(group.prompt) + max(len(branch.tokens) for branch in group.branches) for group in groups)
    batch, numbers = pack_numbered(groups, PackConfig(row_tokens=max(row_tokens, 16)))
    remedy = f"{NEW_RUN}, with a teacher of a longer context, a lower sample.sampling.max_tokens or no teach.hint"
    with batch_file(batch, teacher, ctx, where="teach.teacher", remedy=remedy) as file:
        out_file = file.with_name("logprobs.safetensors")
        ctx.worker_group.score(
            ScoreJob(
                checkpoint_dir=folder,
                batch_file=file,
                temperature=temperature,
                hardware=ctx.profile.trainer.on_this_machine(read_shape(folder).embed_dim),
                out_file=out_file,
                events_file=file.with_name("events.jsonl"),
            )
        )
        logprobs = load_file(out_file)["logprobs"].astype(np.float64)
        return by_completion(logprobs, np.where(batch.completion_mask > 0, numbers, -1), len(completions))


def _advantages(
    grades: pl.DataFrame, artifact: Artifact, verdicts: Sequence[Verdicts], config: TeachConfig
) -> list[Floats | None]:
    """Returns the advantages of each completion's tokens; None for a masked one."""
    outcomes: dict[tuple[int, int], Floats] = {}
    if config.outcome_weight and TOKEN_ADVANTAGES_FILE in artifact.names():
        by_token = artifact.read_table(TOKEN_ADVANTAGES_FILE, TOKEN_ADVANTAGES)
        outcomes = {(group, sample): np.array(values) for group, sample, values in by_token.iter_rows()}
    advantages: list[Floats | None] = []
    for (group, sample, outcome), verdict in zip(
        grades.select("group", "sample", "advantage").iter_rows(), verdicts, strict=True
    ):
        if outcome is None:
            advantages.append(None)
        else:
            of_reward = outcomes.get((group, sample), np.full_like(verdict.advantages, outcome))
            advantages.append(verdict.advantages + config.outcome_weight * of_reward)
    return advantages
