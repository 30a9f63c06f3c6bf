"""The `compare` flow: trains on the same rollouts under several recipes, and reports the differences."""

from collections.abc import Sequence
from typing import Any

import polars as pl
from prefect import flow
from pydantic import Field

from artifacts.address import ArtifactAddress
from artifacts.config import Config
from artifacts.errors import BadInputError
from artifacts.manifest import Manifest
from artifacts.reading import Artifact
from artifacts.refs import Batch, Checkpoint, Grades, K, OptimizerState, Puzzles, Ref, Report
from artifacts.schemas import ROLLOUTS
from artifacts.store.location import DEFAULT_STORE
from artifacts.store.store import Store
from flows.checks.compared import check_compared_rows, refuse_uncomparable
from flows.compare.candidates import OWN, ComparedRecipe, candidates, page_folder, starting_weights
from flows.compare.comparison_report import write_report
from flows.config.recipe import Recipe
from flows.lookup.history import IterationRecord, RunRecord, read_run
from flows.opening import ProfileName, ProfileOverrides, StoreAddress, fitting_profile, opened_stages
from flows.report.figures import compared
from flows.report.metrics import INTERVAL, Presence, number
from flows.session.calls import Stages
from stages.evaluate import evaluate
from stages.finetune import finetune
from stages.grade import grade
from stages.pack import pack
from stages.statistics.estimates import Interval


class CompareRequest(Config):
    """Parameters of the `compare` flow."""

    run: str = Field(description="Name of the run whose rollouts are used.")
    iteration: int = Field(
        default=1, ge=1, le=1_000_000, description="Number of the iteration whose rollouts are used."
    )
    recipes: list[str] = Field(
        min_length=1, description=f"Names of recipes, paths of TOML files, or `{OWN}` for the run's own settings."
    )
    overrides: list[str] = Field(default=[], description="Changes of every recipe, `section.key=value` each.")
    store: StoreAddress = DEFAULT_STORE
    profile: ProfileName = "cpu"
    profile_overrides: ProfileOverrides = Field(default=[])


@flow(name="compare", flow_run_name="compare {request.run}@{request.iteration}", persist_result=False)
def compare(request: CompareRequest) -> dict[str, Any]:
    """Trains on one iteration's rollouts under each recipe, and reports the differences.

    Each recipe has its own grades, batch, checkpoint and report. Rollouts, starting weights, optimizer state and
    evaluation are the run's; `flows.compare.candidates` says which settings are the recipe's. The reference of a KL
    term is the run's in this iteration, if the recipe has the same kind of reference, else the model from which the
    run's first iteration started.

    Args:
        request: Run, iteration, recipes, store and profile.

    Returns:
        The figures of each recipe, and the address of the report.
    """
    store = Store.open(request.store)
    record = read_run(store, request.run)
    own = record.recipe_at(request.iteration)
    refuse_uncomparable(request.run, own)
    tried = candidates(own, request.recipes, request.overrides)
    rollouts = Artifact.at(store, record.layout.iteration(request.iteration, "rollouts"))
    check_rows(tried, rollouts)
    with opened_stages(store, fitting_profile(request.profile, request.profile_overrides, trains=True)) as stages:
        names = ", ".join(candidate.name for candidate in tried)
        stages.live.opened(f"comparing {names} on iteration {request.iteration} of {request.run}")
        rows = {
            candidate.name: _trained_figures(stages, record, request.iteration, candidate, own, rollouts)
            for candidate in tried
        }
        key = record.layout.comparison(request.iteration, page_folder(tried, rollouts.ref), "page")
        report = write_report(store, key, f"{request.run}, iteration {request.iteration}", rows)
        return {"run": request.run, "iteration": request.iteration, "recipes": rows, "report": report}


def check_rows(tried: Sequence[ComparedRecipe], rollouts: Artifact) -> None:
    """Checks that the rows of each candidate have room for the longest completion of the rollouts with its prompt.

    Raises:
        BadInputError: The rows of a candidate are too short, and its `pack.overlong` is `refuse`.
    """
    columns = ("prompt_token_ids", "completion_token_ids")
    prompts, completions = (rollouts.read_tables(ROLLOUTS)[name].list.len() for name in columns)
    longest = int((prompts + completions).cast(pl.Int64).to_numpy().max(initial=0))
    for candidate in tried:
        check_compared_rows(candidate.name, candidate.recipe.pack, longest)


def _trained_figures(
    stages: Stages, record: RunRecord, number: int, candidate: ComparedRecipe, own: Recipe, rollouts: Artifact
) -> dict[str, Any]:
    """Runs grade, pack, finetune and evaluate for a candidate, and returns its figures."""

    def at(part: str, kind: type[K]) -> ArtifactAddress[K]:
        return stages.address(layout.comparison(number, folder, part), kind, label=candidate.name)

    store, inputs, folder = stages.ctx.store, rollouts.manifest.inputs, candidate.folder(rollouts.ref)
    layout, recipe = record.layout, candidate.recipe
    policy, puzzles = Ref[Checkpoint](**inputs["weights"]), Ref[Puzzles](**inputs["puzzles"])
    first = Artifact.at(store, layout.iteration(1, "rollouts")).manifest.inputs["weights"]
    reference = reference_of(record, number, recipe, Ref(**first))
    start = starting_weights(recipe, record, number, policy, reference, store)
    grades = stages.run(grade, recipe.grade, rollouts.ref, puzzles, out=at("grades", Grades))
    batch = stages.run(
        pack,
        recipe.pack,
        rollouts.ref,
        grades,
        mixed_only=candidate.mixed_only,
        out=at("batch", Batch),
    )
    weights = stages.run(
        finetune,
        recipe.finetune,
        start,
        batch,
        iteration=number,
        out=at("checkpoint", Checkpoint),
        state_out=at("optimizer_state", OptimizerState),
        reference_out=at("reference", Checkpoint),
    )
    report = stages.run(evaluate, own.evaluate, weights.checkpoint, puzzles, split="val", out=at("report", Report))
    manifests = (Artifact.open(store, ref).manifest for ref in (grades, batch, weights.checkpoint, report))
    return {"taken": candidate.taken, "laid_over": candidate.laid_over(own), **comparison_figures(*manifests)}


def reference_of(record: RunRecord, number: int, recipe: Recipe, first: Ref[Checkpoint]) -> Ref[Checkpoint]:
    """Returns the reference of a KL term: the one that the run trained this iteration with, if it has the same kind.

    Raises:
        BadInputError: The reference follows from earlier iterations, and this one is not trained yet.
    """
    kind, own = recipe.finetune.reference, record.recipe_at(number)
    trained = next((item.manifests.get("finetune") for item in record.iterations if item.number == number), None)
    used = trained.inputs.get("reference") if trained is not None else None
    if used is not None and kind == own.finetune.reference:
        return Ref(**used)
    if kind in ("periodic", "ema") and kind == own.finetune.reference and number > 1:
        found = f"no finetune of iteration {number}, whose reference is {kind}"
        raise BadInputError(f"run {record.layout.run}", found, "a trained iteration", "name an earlier iteration")
    return first


def comparison_figures(grades: Manifest, batch: Manifest, checkpoint: Manifest, report: Manifest) -> dict[str, Any]:
    """Returns the figures of a recipe by name, from the manifests of its artifacts; None if not measured.

    The bounds of an interval are stored under the figure's name with `_low` and `_high`.
    """
    record = IterationRecord(1, {"grade": grades, "pack": batch, "finetune": checkpoint, "evaluate": report})
    figures: dict[str, Any] = {}
    for item in compared():
        value, name = item.read(record), item.compared_as
        hidden = item.presence is Presence.WHERE_NONZERO and not number(value)
        figures[name] = None if hidden else number(value)
        if item.compare == INTERVAL:
            bounds = value if isinstance(value, Interval) else None
            figures |= {f"{name}_low": bounds.low if bounds else None, f"{name}_high": bounds.high if bounds else None}
    return {**figures, "batch": batch.facts, "checkpoint": checkpoint.digest}
