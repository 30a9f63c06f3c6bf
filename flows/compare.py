"""The same published rollouts under several recipes: grade, pack, finetune and evaluate as sibling artifacts."""

from typing import Any

from prefect import flow
from pydantic import Field

from artifacts.config import Config
from artifacts.layout import RunLayout
from artifacts.manifest import Manifest
from artifacts.reading import Artifact
from artifacts.refs import Batch, Checkpoint, Grades, Ref, Report, TrainingState
from artifacts.store import Store
from flows.candidates import OWN, Candidate, candidates, page_folder, starting_weights
from flows.compare_report import write_report
from flows.figures import mean_known, measurement
from flows.history import read_run
from flows.opening import opened_stages
from flows.recipes import Recipe, load_profile, validate
from flows.session import Stages
from stages.evaluate import evaluate
from stages.finetune import finetune
from stages.grade import grade
from stages.pack import pack


class CompareRequest(Config):
    """What a person asks for."""

    run: str = Field(description="The run whose rollouts are used.")
    iteration: int = Field(default=1, ge=1, le=1_000_000, description="Which of its iterations.")
    recipes: list[str] = Field(
        min_length=1, description=f"Names of recipes, paths of TOML files, or `{OWN}` for the run's own settings."
    )
    overrides: list[str] = Field(default=[], description="Changes of every recipe, `section.key=value` each.")
    store: str = Field(default="./deerstalker-data", description="Where artifacts live.")
    profile: str = Field(default="cpu", description="Name of a profile, or path of a TOML file.")


@flow(name="compare", flow_run_name="compare {request.run}@{request.iteration}", persist_result=False)
def compare(request: CompareRequest) -> dict[str, Any]:
    """Learns from one iteration's rollouts under each recipe, and reports what differs.

    Rollouts, starting weights, optimizer state and the evaluation are the run's; what a recipe brings,
    `flows.candidates` says. A KL term is measured from the model that the run's first iteration began with.

    Args:
        request: Run, iteration, recipes, store and profile.

    Returns:
        A row of figures by recipe, and the report's address.
    """
    store = Store.open(request.store)
    record = read_run(store, request.run)
    own = validate(Recipe, record.recipe, f"recipe of {request.run}")
    tried = candidates(own, request.recipes, request.overrides)
    rollouts = Artifact.at(store, record.layout.iteration(request.iteration, "rollouts"))
    with opened_stages(store, load_profile(request.profile)) as stages:
        names = ", ".join(candidate.name for candidate in tried)
        stages.live.opened(f"comparing {names} on iteration {request.iteration} of {request.run}")
        rows = {
            candidate.name: _learn(stages, record.layout, request.iteration, candidate, own, rollouts)
            for candidate in tried
        }
        key = record.layout.comparison(request.iteration, page_folder(tried, rollouts.ref), "page")
        report = write_report(store, key, f"{request.run}, iteration {request.iteration}", rows)
        return {"run": request.run, "iteration": request.iteration, "recipes": rows, "report": report}


def _learn(
    stages: Stages, layout: RunLayout, number: int, candidate: Candidate, own: Recipe, rollouts: Artifact
) -> dict[str, Any]:
    def at(part: str, kind: Any) -> Any:
        return stages.slot(layout.comparison(number, folder, part), kind, label=candidate.name)

    store, inputs, folder = stages.ctx.store, rollouts.manifest.inputs, candidate.folder(rollouts.ref)
    recipe = candidate.recipe
    policy, puzzles = Ref[Any](**inputs["weights"]), Ref[Any](**inputs["puzzles"])
    first = Artifact.at(store, layout.iteration(1, "rollouts")).manifest.inputs["weights"]
    start = starting_weights(recipe, own, policy, Ref(**first), store)
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
        state_out=at("training_state", TrainingState),
        reference_out=at("reference", Checkpoint),
    )
    report = stages.run(evaluate, own.evaluate, weights.checkpoint, puzzles, split="val", out=at("report", Report))
    made = (Artifact.open(store, ref).manifest for ref in (grades, batch, weights.checkpoint, report))
    return {"taken": candidate.taken, "laid_over": candidate.laid_over(own), **comparison_figures(*made)}


def comparison_figures(grades: Manifest, batch: Manifest, checkpoint: Manifest, report: Manifest) -> dict[str, Any]:
    """What came of a recipe, from the manifests of what it made; None where there is no such number."""
    steps = checkpoint.facts["steps"]

    def mean(name: str) -> float | None:
        return mean_known(step.get(name) for step in steps)

    found: dict[str, Any] = {
        "reward": grades.facts["reward/mean"],
        "uniform_fraction": grades.facts["groups/uniform_fraction"],
        "updates": len(steps),
        "skipped": sum(step.get("skipped", False) for step in steps) or None,
        "learning_rate": mean("learning_rate"),
        "loss": mean("loss"),
        "policy_loss": mean("policy_loss"),
        "kl": mean("kl"),
        "kl_penalty": mean("kl_penalty"),
        "entropy": mean("entropy"),
        "grad_norm": mean("grad_norm"),
        "ratio_mean": mean("ratio_mean"),
        "ratio_max": max((step["ratio_max"] for step in steps if step["ratio_max"] is not None), default=None),
        "clip_low_fraction": mean("clip_low_fraction"),
        "clip_high_fraction": mean("clip_high_fraction"),
        "sampler_gap_mean": mean("sampler_gap_mean"),
        "sampler_ess": mean("sampler_ess"),
    }
    for mode in ("sampled", "greedy"):
        measured = measurement(report.facts, mode)
        accuracy = measured.accuracy if measured else None
        found[f"held_out_{mode}"] = accuracy.mean if accuracy else None
        found[f"held_out_{mode}_low"] = accuracy.low if accuracy else None
        found[f"held_out_{mode}_high"] = accuracy.high if accuracy else None
    return {**found, "batch": batch.facts, "checkpoint": checkpoint.digest}
