"""The stage that turns graded rollouts into the tensors of one finetune."""

from dataclasses import asdict

import polars as pl

from artifacts.address import ArtifactAddress
from artifacts.errors import IntegrityError
from artifacts.identity import Identity
from artifacts.reading import Artifact
from artifacts.refs import Batch, Grades, Ref, Rollouts, Values
from artifacts.schemas import TOKEN_ADVANTAGES, TOKEN_ADVANTAGES_FILE, tool_marks
from artifacts.tensors import BATCH_FILE
from stages.context import StageContext
from stages.grading.graded_rollouts import graded_rollouts
from stages.grpo.groups import Branch, Group
from stages.grpo.packing import PackConfig, pack_groups
from stages.sampling.config import KEPT_GROUPS
from stages.sampling.resample import UNIFORM_TOLERANCE

REVISION = 1


def pack(
    ctx: StageContext,
    config: PackConfig,
    rollouts: Ref[Rollouts],
    grades: Ref[Grades],
    values: Ref[Values] | None = None,
    *,
    out: ArtifactAddress[Batch],
    mixed_only: bool = False,
) -> Ref[Batch]:
    """Packs graded groups into the rows of a batch and publishes it.

    `uniform_groups` decides about groups without a signal (all advantages 0). Completions without an advantage (null
    in the grades) are left out and counted, as are those that `overlong` drops; so are groups of which no completion
    remains. If dynamic sampling was used, only the groups that it kept are packed. The batch may have no rows.

    Args:
        values: Artifact of the stage `value`, whose token advantages replace the advantages of the grades; None
            without a critic.
        mixed_only: Leave out groups whose completions all have the same accuracy, whatever their rewards. Dynamic
            sampling would have replaced these groups.

    Raises:
        BadInputError: A completion does not fit into a row after its prompt, and `overlong` is `refuse`.
        IntegrityError: The grades or the token advantages are not those of the rollouts, or the batch breaks an
            invariant.
    """
    settings = {**config.model_dump(mode="json"), "mixed_only": mixed_only}
    identity = Identity.of("pack", REVISION, settings, rollouts=rollouts, grades=grades, values=values)
    if published := out.find(identity):
        return published
    sampled = Artifact.open(ctx.store, rollouts)
    graded = graded_rollouts(ctx.store, rollouts, grades)
    all_groups = graded["group"].n_unique()
    for name in sampled.names(".json"):
        if name.startswith(KEPT_GROUPS):
            graded = graded.filter(pl.col("group").is_in(sampled.read_json(name)))
    if mixed_only:
        spread = pl.col("accuracy").max() - pl.col("accuracy").min()
        graded = graded.filter(spread.over("group") > UNIFORM_TOLERANCE)
    trained = graded.filter(pl.col("advantage").is_not_null())
    masked = len(graded) - len(trained)
    if config.completions == "right":
        trained = trained.filter(pl.col("exact"))
    by_token = Artifact.open(ctx.store, grades if values is None else values)
    if TOKEN_ADVANTAGES_FILE in by_token.names():
        trained = _with_token_advantages(trained, by_token)
    groups = [_group(rows) for rows in trained.partition_by("group", maintain_order=True)]
    informative = [group for group in groups if any(any(branch.advantages) for branch in group.branches)]
    batch, facts = pack_groups(informative if config.uniform_groups == "dropped" else groups, config)
    batch.check(out.key)
    attempt = out.attempt(identity)
    attempt.write_bytes(BATCH_FILE, batch.to_bytes())
    left_out = {"uniform_groups": all_groups - len(informative), "masked_completions": masked}
    return attempt.publish({**asdict(facts), **left_out}, rollouts=rollouts, grades=grades, values=values)


def _with_token_advantages(trained: pl.DataFrame, source: Artifact) -> pl.DataFrame:
    """Returns the completions with a list of advantages, one for each token, in place of one advantage."""
    by_token = source.read_table(TOKEN_ADVANTAGES_FILE, TOKEN_ADVANTAGES).rename({"advantages": "advantage"})
    keys = ["group", "sample"]
    joined = trained.drop("advantage").join(by_token, on=keys, validate="1:1", maintain_order="left")
    lengths = joined["advantage"].list.len() == joined["completion_token_ids"].list.len()
    if len(joined) != len(trained) or not lengths.all():
        raise IntegrityError(
            f"{source.key}/{TOKEN_ADVANTAGES_FILE}",
            f"advantages of {int(lengths.sum())} whole completions",
            f"one for each token of {len(trained)} completions",
            "repeat the stage that made it",
        )
    return joined


def _group(rows: pl.DataFrame) -> Group:
    columns = ("completion_token_ids", "sampler_logprobs", "advantage")
    branches = zip(*(rows[name].to_list() for name in columns), tool_marks(rows), rows["exact"].to_list(), strict=True)
    return Group(rows["prompt_token_ids"][0].to_list(), [Branch(*branch) for branch in branches], rows["group"][0])
