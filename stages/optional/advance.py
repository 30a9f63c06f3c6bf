"""The stage that decides after an iteration whether the phase of the run has ended."""

from pydantic import Field

from artifacts.address import ArtifactAddress
from artifacts.config import Config
from artifacts.identity import Identity
from artifacts.reading import Artifact
from artifacts.refs import Grades, Ref, Report, Transition
from artifacts.store.store import Store
from stages.context import StageContext
from stages.curriculum.plateau import Plateau, has_plateaued
from stages.curriculum.progress import PROGRESS_FILE, PhaseProgress, read_progress

REVISION = 1
_FACTS = {"reward": "reward/mean", "train_accuracy": "accuracy/mean", "train_exact": "exact/mean"}
"""Names of the figures in the facts of grades."""


class PhaseEnd(Config):
    """The end of a phase: after `iterations` or by the rule `until`, whichever comes first.

    A phase with neither lasts until the run ends.
    """

    iterations: int | None = Field(
        default=None, ge=1, le=1_000_000, description="Number of iterations; the maximum if `until` is set."
    )
    until: Plateau | None = Field(default=None, description="Rule that ends the phase by a figure.")

    @property
    def is_open(self) -> bool:
        """Whether it ends only with the run."""
        return self.iterations is None and self.until is None


class AdvanceConfig(PhaseEnd):
    """The phase that an iteration belongs to, and how it ends."""

    phase: int = Field(ge=0, description="Number of the phase, from 0.")
    since: int = Field(ge=1, description="First iteration of the phase.")


def advance(
    ctx: StageContext,
    config: AdvanceConfig,
    grades: Ref[Grades],
    report: Ref[Report],
    before: Ref[Transition] | None,
    *,
    iteration: int,
    out: ArtifactAddress[Transition],
) -> Ref[Transition]:
    """Records whether the phase of an iteration ended with it.

    Args:
        grades: Grades of the iteration's rollouts.
        report: Its evaluation on the validation split.
        before: The record of the previous iteration; None in iteration 1.
        iteration: Number of the iteration.
    """
    identity = Identity.of(
        "advance", REVISION, {**config.model_dump(mode="json"), "iteration": iteration},
        grades=grades, report=report, before=before,
    )  # fmt: skip
    if published := out.find(identity):
        return published
    values = _values(config, grades, report, before, ctx.store)
    ended, reason = _phase_end(config, values, iteration)
    progress = PhaseProgress(phase=config.phase, since=config.since, values=values, ended=ended, reason=reason)
    attempt = out.attempt(identity)
    attempt.write_json(PROGRESS_FILE, progress.as_json())
    # People read the facts, where the first phase is 1.
    facts = {"phase": config.phase + 1, "since": config.since, "ended": ended, "reason": reason}
    return attempt.publish(facts, grades=grades, report=report, before=before)


def _values(
    config: AdvanceConfig, grades: Ref[Grades], report: Ref[Report], before: Ref[Transition] | None, store: Store
) -> list[float]:
    """Returns the watched figure after each iteration of the phase."""
    if config.until is None:
        return []
    metric = config.until.metric
    if metric in _FACTS:
        value = Artifact.open(store, grades).manifest.facts[_FACTS[metric]]
    else:
        value = Artifact.open(store, report).manifest.facts[metric.removesuffix("_accuracy")]["accuracy"]["mean"]
    earlier = None if before is None else read_progress(before, store)
    return [*(earlier.values if earlier and earlier.since == config.since else []), value]


def _phase_end(config: AdvanceConfig, values: list[float], iteration: int) -> tuple[bool, str]:
    done, rule = iteration - config.since + 1, config.until
    if config.iterations is not None and done >= config.iterations:
        return True, f"{done} iterations are done"
    if rule is not None and has_plateaued(values, rule):
        earlier = max(values[: -rule.plateau_iterations])
        return True, (
            f"{rule.metric} has not risen above {earlier:.4g} by more than {rule.min_delta:g} for "
            f"{rule.plateau_iterations} iterations"
        )
    left = "" if config.iterations is None else f" of {config.iterations}"
    return False, f"iteration {done}{left} of the phase"
