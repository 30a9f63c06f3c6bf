"""`deerstalker plan` beside the trainer itself on tensors without data: `python -m tests.benchmarks.plan [--json]`.

The real `Trainer.step` runs on fake tensors, with a fake process group of eight, for models of 1.5, 14 and 32 billion
weights; the plan of the same step on the CPU must agree within 10%. The plans of recipes on GPUs stand beside.
"""

import argparse
import tempfile
import time
import warnings
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from flows.config.model_size import ModelSize, Shape, model_size
from flows.config.recipes import load_profile, load_recipe
from flows.plan.cluster import cluster
from flows.plan.memory import Precision, trainer_memory
from flows.plan.page import document
from flows.plan.plan import make_plan
from stages.training.job import OptimizerConfig, TrainHardware
from tests.support.bars import Bar, add_json_option, tell

AGREEMENT = 0.1
PROCESSES = 8
ROW = 16_384
PROMPT = 1024
SIMULATED = {"open_rs1": "fp32", "openpipe_14b": "bf16", "openpipe_32b": "bf16"}
"""Recipes whose models are simulated, and the precision of their masters."""
PLANNED = {
    "openpipe_14b, 2": ("openpipe_14b", "2x80", 1),
    "openpipe_14b, 8": ("openpipe_14b", "8x80", 1),
    "openpipe_32b, 4": ("openpipe_32b", "4x80", 1),
    "openpipe_32b, 8": ("openpipe_32b", "8x80", 1),
    "open_rs1, 4 x A40": ("open_rs1", "4xA40", 1),
    "dapo, 64": ("dapo", "8x80", 8),
}


def simulate(shape: Shape, master: str) -> dict[str, Any]:
    """Returns bytes and agreement of one step, planned and simulated."""
    from tests.support.simulated_training import decoder_shape, row_columns, simulated_step

    hardware = TrainHardware(
        processes=PROCESSES, compute_dtype="bf16", activation_checkpointing=True, micro_batch_tokens=ROW, device="cpu"
    )
    optimizer = OptimizerConfig.model_validate({"master_dtype": master})
    columns = row_columns(2 * PROCESSES, PROMPT, ROW // PROMPT - 1, PROMPT)
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        simulated = simulated_step(Path(folder), decoder_shape(shape), hardware, columns, optimizer=optimizer)
    size = ModelSize(shape.parameters, "", shape)
    precision = Precision("bf16", optimizer.master_dtype)
    planned = trainer_memory(size, shape.parameters, hardware, precision, ROW, cuda=False)
    return {
        "parameters": shape.parameters,
        "layers": shape.layers,
        "planned": {**asdict(planned), "peak": planned.peak, "resident": planned.resident},
        "simulated": simulated,
        "difference": planned.peak / simulated["total"] - 1,
        "seconds": round(time.perf_counter() - started, 1),
    }


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_json_option(parser)
    parser.add_argument("--layers", type=int, help="simulate only so many layers of each model, to look at the form")
    parser.add_argument("--only", choices=SIMULATED, help="simulate one model")
    arguments = parser.parse_args()
    steps: dict[str, dict[str, Any]] = {}
    for name, master in SIMULATED.items():
        shape = model_size(load_recipe(name).model).shape
        assert shape is not None
        if arguments.only in (None, name):
            steps[name] = simulate(replace(shape, layers=arguments.layers or shape.layers), master)
    plans: dict[str, Any] = {}
    for name, (recipe, gpus, nodes) in PLANNED.items():
        loaded = load_recipe(recipe)
        plans[name] = document(make_plan(loaded, load_profile("cuda"), cluster(gpus, nodes)), loaded.iterations, 2.5)
    tell({"steps": steps, "plans": plans}, bars(steps), lambda: show(steps, plans), as_json=arguments.json)


def bars(steps: dict[str, dict[str, Any]]) -> list[Bar]:
    """Whether plan and simulation agree."""
    return [
        Bar.at_most(
            f"{name}: difference of the planned peak from the simulated, share", abs(step["difference"]), AGREEMENT
        )
        for name, step in steps.items()
    ]


def show(steps: dict[str, dict[str, Any]], plans: dict[str, Any]) -> None:
    """Prints a line for each step and each plan."""
    for name, step in steps.items():
        peaks = f"planned {step['planned']['peak'] / 1e9:.2f} GB, simulated {step['simulated']['total'] / 1e9:.2f} GB"
        print(f"{name}: {step['layers']} layers, {PROCESSES} processes, {peaks}, {step['seconds']} s")
    for name, plan in plans.items():
        layout = plan["fitting"]
        fits = "does not fit" if layout is None else f"{layout['memory']['train'] / 1e9:.1f} GB while training"
        costs = "" if layout is None else f", {layout['times']['iteration']:.0f} s, {layout['times']['limit']}"
        print(f"{name}: {fits}{costs}")


if __name__ == "__main__":
    main()
