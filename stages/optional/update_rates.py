"""The stage that adds the pass rates of an iteration to those before it; nothing is sampled for it."""

from artifacts.address import ArtifactAddress
from artifacts.identity import Identity
from artifacts.reading import Artifact
from artifacts.refs import Grades, PassRates, Ref, Rollouts
from artifacts.schemas import PASS_RATES, PASS_RATES_FILE
from stages.context import StageContext
from stages.curriculum.pass_rates import RUN, rate_figures, rates, updated
from stages.grading.graded_rollouts import graded_rollouts
from stages.sampling.turns import own_lengths

REVISION = 1


def update_rates(
    ctx: StageContext,
    rollouts: Ref[Rollouts],
    grades: Ref[Grades],
    before: Ref[PassRates] | None,
    *,
    iteration: int,
    out: ArtifactAddress[PassRates],
) -> Ref[PassRates]:
    """Publishes the pass rates with those of an iteration's puzzles in place of older ones of the run.

    All groups that were sampled count, including those that dynamic sampling does not train on.

    Args:
        rollouts: The completions of the iteration.
        grades: Their grades.
        before: The pass rates before the iteration; None if nothing was rated.
        iteration: Number of the iteration.

    Raises:
        IntegrityError: The grades are not those of the rollouts.
    """
    identity = Identity.of(
        "update_rates", REVISION, {"iteration": iteration}, rollouts=rollouts, grades=grades, pass_rates=before
    )
    if published := out.find(identity):
        return published
    graded = graded_rollouts(ctx.store, rollouts, grades)
    graded = graded.with_columns(own_lengths(graded).alias("tokens"))
    older = None if before is None else Artifact.open(ctx.store, before).read_table(PASS_RATES_FILE, PASS_RATES)
    newer = rates(graded, name=RUN, iteration=iteration, weights_digest=graded["weights_digest"][0])
    pass_rates = updated(older, newer)
    attempt = out.attempt(identity)
    attempt.write_table(PASS_RATES_FILE, pass_rates, PASS_RATES)
    facts = {"puzzles": len(newer), "rated": pass_rates["prompt_id"].n_unique(), "rates": rate_figures(pass_rates)}
    return attempt.publish(facts, rollouts=rollouts, grades=grades, pass_rates=before)
