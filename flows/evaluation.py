"""The `evaluate` flow: evaluates one checkpoint on one set of puzzles or on a suite, outside any run."""

from typing import Any, cast

from prefect import flow
from pydantic import Field

from artifacts.config import Config
from artifacts.documents.document import Document
from artifacts.identity import Identity
from artifacts.layout import Shared, shared_key
from artifacts.reading import Artifact
from artifacts.refs import Checkpoint, Puzzles, Ref, Report
from artifacts.schemas import RESULTS
from artifacts.store.location import DEFAULT_STORE
from artifacts.store.store import Store
from flows.config.limits import cut_below_training, evaluated_as_trained
from flows.inputs.models import fetched
from flows.inputs.suites import measured_puzzles
from flows.lookup.checkpoints import trained_sampling
from flows.opening import ProfileName, ProfileOverrides, StoreAddress, fitting_profile, opened_stages
from stages.environments.puzzle import Grader
from stages.environments.tables import graders_of, read_split
from stages.environments.thoughts import thought_opened
from stages.evaluate import REVISION, EvaluateConfig, evaluate, regrade
from stages.statistics.totals import totals
from stages.strategies.figures import stored_figures


class EvaluationRequest(Config):
    """Parameters of the `evaluate` flow."""

    checkpoint: str = Field(description="A checkpoint, in any form that `deerstalker evaluate --help` lists.")
    puzzles: str | None = Field(
        default=None, description="A JSON file in the published format, or RUN:SPLIT; null: those of the suite."
    )
    suite: str | None = Field(
        default=None, description="Name of a suite in the package, or path of its TOML file; not with `puzzles`."
    )
    store: StoreAddress = DEFAULT_STORE
    profile: ProfileName = "cpu"
    profile_overrides: ProfileOverrides = Field(default=[])
    config: EvaluateConfig = Field(
        default_factory=EvaluateConfig,
        description="Number of puzzles, and sampling; limits that are not set are those of the checkpoint's run.",
    )


class Evaluation(Document):
    """Result of the `evaluate` flow.

    Attributes:
        checkpoint: Ref of the checkpoint, as JSON.
        puzzles: Number of puzzles.
        report: Address of the stored report.
        gradings: Totals (see `stages.statistics.totals.totals`) by grader; all grade the same completions.
        tasks: Totals by environment, read by the first grader; empty if the puzzles are of one environment.
        strategies: Figures of test-time strategies by name (see `ReportFigures.strategies`), read by the config's
            grader; those that the config names, or all if it names none.
        reliability: Figures of k samples, by k (see `ReportFigures.reliability`).
    """

    checkpoint: dict[str, Any]
    puzzles: int
    report: str
    gradings: dict[str, dict[str, Any]]
    tasks: dict[str, dict[str, Any]]
    strategies: dict[str, dict[str, Any]] = Field(default_factory=dict[str, dict[str, Any]])
    reliability: dict[str, dict[str, Any]] = Field(default_factory=dict[str, dict[str, Any]])


@flow(name="evaluate", flow_run_name="evaluate {request.checkpoint}", persist_result=False)
def evaluate_checkpoint(request: EvaluationRequest) -> Evaluation:
    """Evaluates a checkpoint with the sampling modes of the config, and grades its completions with every grader.

    Args:
        request: Checkpoint, puzzles, store, profile and settings.
    """
    store = Store.open(request.store)
    with opened_stages(store, fitting_profile(request.profile, request.profile_overrides)) as stages:
        stages.live.opened(f"evaluating {request.checkpoint} on {request.puzzles or request.suite}")
        trained = trained_sampling(request.checkpoint, store)
        config = evaluated_as_trained(request.config, trained)
        for line in cut_below_training(config.sampled, trained, "sampled") if trained else ():
            stages.live.line(line)
        puzzles, split, config = measured_puzzles(request.puzzles, request.suite, config, stages)
        checkpoint = fetched(stages, request.checkpoint, puzzles)
        out = stages.address(_key(config, split, checkpoint, puzzles), Report)
        report = stages.run(evaluate, config, checkpoint, puzzles, split=split, out=out)
        published = Artifact.open(store, report)
        results = published.read_table("results.parquet", RESULTS)
        strategies = stored_figures(published).chosen(config.strategies)
        solutions = read_split(store, puzzles, split)
        return Evaluation(
            checkpoint=checkpoint.as_json(),
            puzzles=results["prompt_id"].n_unique(),
            report=f"{store.url}/{report.key}",
            gradings={
                grader: totals(
                    regrade(
                        results,
                        solutions,
                        cast(Grader, grader),
                        thought_opened=thought_opened(published.manifest.facts),
                    )
                ).as_json()
                for grader in graders_of(solutions)
            },
            tasks=published.manifest.facts.get("tasks", {}),
            **strategies.as_json(),
        )


def _key(config: EvaluateConfig, split: str, checkpoint: Ref[Checkpoint], puzzles: Ref[Puzzles]) -> str:
    """Returns the key of the report, another one for each revision of the stage."""
    settings = {**config.identity_settings, "split": split}
    identity = Identity.of("evaluation", REVISION, settings, weights=checkpoint, puzzles=puzzles)
    return shared_key(Shared.EVALUATIONS, split, identity)
