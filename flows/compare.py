"""The same published rollouts under several recipes: grade, pack, finetune and evaluate as sibling artifacts."""

from collections.abc import Sequence
from typing import Any

from prefect import flow
from pydantic import BaseModel, ConfigDict, Field

from artifacts.layout import RunLayout
from artifacts.manifest import Manifest
from artifacts.reading import Artifact
from artifacts.refs import Batch, Checkpoint, Grades, Ref, Report, TrainingState
from artifacts.store import Store
from flows.compare_report import write_report
from flows.figures import mean_known, measurement
from flows.history import read_run
from flows.opening import opened_stages
from flows.recipes import Recipe, load_profile, load_recipe, overridden, validate
from flows.session import Stages
from stages.evaluate import evaluate
from stages.finetune import finetune
from stages.grade import grade
from stages.pack import pack
from stages.training.launch import Weights, state_beside

OWN = "own"
"""Stands for the settings that the run itself was made with."""


class CompareRequest(BaseModel):
    """What a person asks for."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    run: str = Field(description="The run whose rollouts are used.")
    iteration: int = Field(default=1, ge=1, description="Which of its iterations.")
    recipes: list[str] = Field(
        min_length=1, description=f"Names of recipes, paths of TOML files, or `{OWN}` for the run's own settings."
    )
    overrides: list[str] = Field(default=[], description="Changes of every recipe, `section.key=value` each.")
    store: str = Field(default="./deerstalker-data", description="Where artifacts live.")
    profile: str = Field(default="cpu", description="Name of a profile, or path of a TOML file.")


@flow(name="compare", flow_run_name="compare {request.run}@{request.iteration}", persist_result=False)
def compare(request: CompareRequest) -> dict[str, Any]:
    """Learns from one iteration's rollouts under each recipe, and reports what differs.

    Only `grade`, `pack` and `finetune` are taken from the recipes; rollouts, starting weights, optimizer state and the
    evaluation are the run's. A KL term is measured from the model that the run's first iteration began with.

    Args:
        request: Run, iteration, recipes, store and profile.

    Returns:
        A row of figures by recipe, and the report's address.
    """
    store = Store.open(request.store)
    record = read_run(store, request.run)
    own = validate(Recipe, record.recipe, f"recipe of {request.run}")
    candidates = {name: _recipe(name, own, request.overrides) for name in request.recipes}
    rollouts = Artifact.at(store, record.layout.iteration(request.iteration, "rollouts"))
    with opened_stages(store, load_profile(request.profile)) as stages:
        stages.live.opened(f"comparing {', '.join(candidates)} on iteration {request.iteration} of {request.run}")
        rows = {
            name: _candidate(stages, record.layout, request.iteration, name, recipe, own, rollouts)
            for name, recipe in candidates.items()
        }
        key = record.layout.comparison(request.iteration, "-".join(map(_slug, candidates)), "page")
        report = write_report(store, key, f"{request.run}, iteration {request.iteration}", rows)
        return {"run": request.run, "iteration": request.iteration, "recipes": rows, "report": report}


def _recipe(name: str, own: Recipe, overrides: Sequence[str]) -> Recipe:
    """The run's recipe with the learning settings of another.

    Raises:
        BadInputError: There is no such recipe, or its settings contradict the run's, as a temperature would.
    """
    base = own if name == OWN else load_recipe(name)
    parts = {part: getattr(base, part).model_dump(mode="json") for part in ("grade", "pack", "finetune")}
    return validate(Recipe, overridden({**own.model_dump(mode="json"), **parts}, overrides), name)


def _candidate(
    stages: Stages,
    layout: RunLayout,
    number: int,
    name: str,
    recipe: Recipe,
    own: Recipe,
    rollouts: Artifact,
) -> dict[str, Any]:
    def at(part: str, kind: Any) -> Any:
        return stages.slot(layout.comparison(number, _slug(name), part), kind)

    store, inputs = stages.ctx.store, rollouts.manifest.inputs
    policy, puzzles = Ref[Any](**inputs["weights"]), Ref[Any](**inputs["puzzles"])
    first = Artifact.at(store, layout.iteration(1, "rollouts")).manifest.inputs["weights"]
    start = Weights(policy, state_beside(policy, store), reference=Ref(**first))
    grades = stages.run(grade, recipe.grade, rollouts.ref, puzzles, label=name, out=at("grades", Grades))
    batch = stages.run(pack, recipe.pack, rollouts.ref, grades, label=name, out=at("batch", Batch))
    weights = stages.run(
        finetune,
        recipe.finetune,
        start,
        batch,
        label=name,
        iteration=number,
        out=at("checkpoint", Checkpoint),
        state_out=at("training_state", TrainingState),
        reference_out=at("reference", Checkpoint),
    )
    report = stages.run(
        evaluate, own.evaluate, weights.checkpoint, puzzles, label=name, split="val", out=at("report", Report)
    )
    return _figures(*(Artifact.open(store, ref).manifest for ref in (grades, batch, weights.checkpoint, report)))


def _figures(grades: Manifest, batch: Manifest, checkpoint: Manifest, report: Manifest) -> dict[str, Any]:
    steps = checkpoint.facts["steps"]
    sampled, greedy = (measurement(report.facts, mode) for mode in ("sampled", "greedy"))

    def mean(name: str) -> float | None:
        return mean_known(step[name] for step in steps)

    return {
        "reward": grades.facts["reward/mean"],
        "uniform_fraction": grades.facts["groups/uniform_fraction"],
        "updates": len(steps),
        "learning_rate": mean("learning_rate"),
        "policy_loss": mean("policy_loss"),
        "entropy": mean("entropy"),
        "grad_norm": mean("grad_norm"),
        "ratio_mean": mean("ratio_mean"),
        "ratio_max": max((step["ratio_max"] for step in steps), default=None),
        "clip_low_fraction": mean("clip_low_fraction"),
        "clip_high_fraction": mean("clip_high_fraction"),
        "sampler_gap_mean": mean("sampler_gap_mean"),
        "held_out_sampled": sampled.accuracy.mean if sampled else None,
        "held_out_greedy": greedy.accuracy.mean if greedy else None,
        "batch": batch.facts,
        "checkpoint": checkpoint.digest,
    }


def _slug(name: str) -> str:
    return name.rpartition("/")[2].removesuffix(".toml")
