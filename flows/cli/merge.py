"""`deerstalker merge`."""

from typing import Annotated, Literal

from artifacts.store.store import Store
from flows.cli.console.options import STORED, Optional, ProfileName, Repeated, Stored
from flows.cli.console.output import print_json, terminal
from flows.cli.console.prefect_session import prefect_session

_SHOWN = 12


def merge(
    *,
    model: Annotated[tuple[str, ...], Repeated],
    base: Annotated[str | None, Optional] = None,
    method: Literal["arcee_fusion", "average", "task_arithmetic", "ties"] = "arcee_fusion",
    weight: float = 1.0,
    density: float = 0.5,
    profile: ProfileName = "cpu",
    options: Stored = STORED,
) -> None:
    """Runs the merge flow and prints the key of the merged checkpoint, and the tensors that moved most.

    Args:
        model: A model: a run (its promoted checkpoint), RUN@ITERATION or a checkpoint's key; may be repeated.
        base: The model that the others are compared with, named in the same way; none for average.
        method: The method.
        weight: Factor of the differences from the base (task_arithmetic) or of their mean (ties).
        density: Share of each difference that ties keeps: its largest elements.
    """
    settings = {
        "models": list(model), "base": base, "method": method, "weight": weight, "density": density,
    }  # fmt: skip
    store = Store.open(options.store)
    with prefect_session(store, options) as running:
        from flows.config.recipes import load_profile, validate
        from flows.lookup.checkpoints import published_checkpoint
        from flows.merging import MergeRequest, merge_checkpoints
        from stages.models.merging.config import MergedModel

        source = validate(MergedModel, settings, "merge")
        load_profile(profile)
        for name in (*source.models, *([source.base] if source.base else [])):
            published_checkpoint(name, store)
        with running():
            result = merge_checkpoints(MergeRequest(model=source, store=options.store, profile=profile))
    if options.json:
        print_json(result.model_dump(mode="json"))
        return
    from flows.report.summary import figures_table

    facts = result.facts
    tensors = sorted(facts["tensors"].items(), key=lambda item: -item[1]["moved"])
    rows = [[name, *_cells(tensor)] for name, tensor in [("all", facts), *tensors[:_SHOWN]]]
    console = terminal()
    console.print(figures_table(f"merged by {method}: shares of elements", ["elements", "changed", "moved"], rows))
    if facts.get("copied"):
        console.print(
            f"{facts['copied']} tensors were taken whole: most of their elements are equal in both models, so that the "
            "threshold is 0",
            soft_wrap=True,
        )
    console.print(f"checkpoint: {result.checkpoint['key']}", soft_wrap=True)


def _cells(facts: dict[str, float]) -> list[str]:
    return [f"{facts['elements']:.0f}", f"{facts['changed']:.1%}", f"{facts['moved']:.1%}"]
