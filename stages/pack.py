"""The stage that turns graded rollouts into the tensors of one finetune."""

from dataclasses import asdict

import polars as pl

from artifacts.identity import Identity
from artifacts.reading import Artifact
from artifacts.refs import Batch, Grades, Ref, Rollouts
from artifacts.schemas import GRADES, ROLLOUTS
from artifacts.slot import Slot
from artifacts.tensors import BATCH_FILE
from stages.context import StageContext
from stages.grpo.packing import Branch, Group, PackConfig, pack_groups
from stages.sampling.config import KEPT_GROUPS_FILE

REVISION = 1


def pack(
    config: PackConfig, rollouts: Ref[Rollouts], grades: Ref[Grades], *, out: Slot[Batch], ctx: StageContext
) -> Ref[Batch]:
    """Packs every group that carries a signal; a group without (all rewards equal) has no gradient and is left out.

    Of rollouts from dynamic sampling, only the groups that it kept take part. A batch may have no rows, where no group
    carries a signal.

    Raises:
        BadInputError: A prompt alone fills a row.
        IntegrityError: The grades do not belong to the rollouts, or the batch breaks an invariant.
    """
    identity = Identity.of("pack", REVISION, config, rollouts=rollouts, grades=grades)
    if found := out.find(identity):
        return found
    sampled = Artifact.open(ctx.store, rollouts)
    graded = (
        sampled.read_tables(ROLLOUTS)
        .join(Artifact.open(ctx.store, grades).read_tables(GRADES), on=["puzzle_id", "group", "sample"], validate="1:1")
        .sort("group", "sample")
    )
    all_groups = graded["group"].n_unique()
    if KEPT_GROUPS_FILE in sampled.names():
        graded = graded.filter(pl.col("group").is_in(sampled.read_json(KEPT_GROUPS_FILE)))
    groups = [_group(rows) for rows in graded.partition_by("group", maintain_order=True)]
    batch, facts = pack_groups([group for group in groups if any(b.advantage for b in group.branches)], config)
    batch.check(out.key)
    attempt = out.attempt(identity)
    attempt.write_bytes(BATCH_FILE, batch.to_bytes())
    return attempt.publish(
        {**asdict(facts), "uniform_groups": all_groups - facts.groups}, rollouts=rollouts, grades=grades
    )


def _group(rows: pl.DataFrame) -> Group:
    return Group(
        prompt=rows["prompt_token_ids"][0].to_list(),
        branches=[
            Branch(tokens, logprobs, advantage)
            for tokens, logprobs, advantage in zip(
                rows["completion_token_ids"].to_list(),
                rows["sampler_logprobs"].to_list(),
                rows["advantage"],
                strict=True,
            )
        ],
    )
