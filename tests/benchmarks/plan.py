"""`deerstalker plan` beside the trainer itself on tensors without data: `python -m tests.benchmarks.plan [--json]`.

The real `Trainer.step` runs on fake tensors, with a fake process group of eight, for models of 1.5, 14 and 32 billion
weights; the plan of the same step on the CPU must agree within 10%. The output also has the plans of recipes on
GPUs. `--measured 1 2 4` takes real steps with
1, 2 and 4 processes on this machine. Their peak memory must also agree within 10%; four processes take 15 GB.

`--only time [--sizes 20M ...]` takes none of these steps. It runs iterations of models of three sizes on this CPU, and
compares their seconds in engine and trainer with the plan's, whose data sheet follows from rates measured here.
A smaller model than these tells what a token costs the engine besides arithmetic. No model is warm-started, because
short answers would leave little but fixed costs to compare. A CPU without native bf16 computes in fp32; the plan counts
bytes of bf16, so the bandwidth of that CPU counts half.
"""

import argparse
import os
import tempfile
import time
import warnings
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from artifacts.store.store import Store
from flows.config.model_size import LayerSizes, ModelSize, model_size
from flows.config.recipes import load_profile, load_recipe
from flows.lookup.history import read_run
from flows.plan.cluster import Cluster, Gpu, cluster
from flows.plan.memory import BYTES, Precision, trainer_memory
from flows.plan.page import document
from flows.plan.plan import GIB, make_plan
from flows.plan.time import ON_GPUS, iteration_times
from flows.plan.workload import work_of
from stages.hardware.compute_type import native_type
from stages.training.job import OptimizerConfig
from stages.training.worker_group.hardware import TrainHardware
from tests.benchmarks.machine_speed import measured_machine
from tests.support.bars import Bar, parser_of, tell
from tests.support.installed import ONE_ENGINE, TINY
from tests.support.processes import own_memory
from tests.support.whole_runs import train

AGREEMENT = 0.1
PROCESSES = 8
ROW = 16_384
PROMPT = 1024
_TYPE = native_type("cpu").type
"""The type in which this CPU computes what is measured."""
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


def simulate(shape: LayerSizes, master: str) -> dict[str, Any]:
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


MEASURED = LayerSizes(32_000, 1536, 4, 1536, 256, 8960, tied=False)
"""A model that fits on a machine with 16 GiB, as wide as the one of 1.5 billion weights."""
MEASURED_ROW = 1024
_FREED_AT_ONCE = {"MALLOC_MMAP_THRESHOLD_": str(1 << 16)}
"""Makes malloc return freed memory to the kernel, so that the memory of a process is that of its live tensors."""


def measure(processes: int) -> dict[str, Any]:
    """Returns the peak of gloo processes that take a step, the largest one's, and the planned one.

    Both are of live tensors. The trainer's malloc also keeps freed ones: 9% with one process.
    """
    from torch import multiprocessing

    with tempfile.TemporaryDirectory() as folder, patch.dict(os.environ, _FREED_AT_ONCE):
        multiprocessing.spawn(_take_step, (processes, folder), nprocs=processes)  # pyright: ignore[reportPrivateImportUsage]
        peaks = [int(path.read_text()) for path in Path(folder).glob("peak-*")]
    size = ModelSize(MEASURED.parameters, "", MEASURED)
    hardware = _hardware(processes)
    planned = trainer_memory(
        size, MEASURED.parameters, hardware, Precision(_TYPE, "fp32"), MEASURED_ROW, cuda=False
    ).peak
    return {"processes": processes, "measured": max(peaks), "planned": planned, "difference": planned / max(peaks) - 1}


def _hardware(processes: int) -> TrainHardware:
    return TrainHardware(processes=processes, compute_dtype=_TYPE, micro_batch_tokens=MEASURED_ROW, device="cpu")


def _take_step(rank: int, processes: int, folder: str) -> None:
    """Takes two steps in a process of a group, and writes by how much its resident memory grew at most."""
    import torch
    import torch.distributed as dist
    from safetensors.numpy import save_file

    from stages.training.model.master_weights import TrainedWeights
    from stages.training.trainer import Trainer
    from stages.training.trainer_batch import TrainerBatch
    from tests.support.jobs import train_job
    from tests.support.simulated_training import decoder_shape, row_columns

    torch.set_num_threads(1)
    place = Path(folder)
    store = dist.FileStore(str(place / "meeting"), processes)  # pyright: ignore[reportPrivateImportUsage]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=processes)
    hardware, batch_file = _hardware(processes), place / f"batch-{rank}.safetensors"
    save_file(row_columns(2 * processes, 128, MEASURED_ROW // 128 - 1, 128), batch_file)
    batch = TrainerBatch(batch_file, MEASURED.vocabulary)
    before = own_memory("VmRSS")
    weights = TrainedWeights(decoder_shape(MEASURED), hardware, torch.device("cpu"), processes > 1)
    with torch.no_grad():
        for parameter in weights.masters.values():
            parameter.fill_(0.01)
        weights.refresh()
    job = train_job(
        checkpoint_dir=place, batch_file=batch_file, learning_rates=[1e-6] * 2, hardware=hardware,
        out_checkpoint_dir=place / "out", events_file=place / "events",
    )  # fmt: skip
    trainer = Trainer(weights, job, batch, lambda: None)
    for number in range(2):
        trainer.step(0, batch.steps[0], number + 1)
    (place / f"peak-{rank}").write_text(str(own_memory("VmHWM") - before))
    dist.destroy_process_group()


SMALLEST = {"hidden": 128, "layers": 4, "heads": 2, "kv_heads": 2, "head_dim": 64, "intermediate": 352}
"""A model of a million weights: its engine is busy with its own work."""
TIMED: dict[str, dict[str, int]] = {
    "20M": {"hidden": 512, "layers": 6, "heads": 8, "kv_heads": 8, "head_dim": 64, "intermediate": 1408},
    "60M": {"hidden": 768, "layers": 8, "heads": 12, "kv_heads": 12, "head_dim": 64, "intermediate": 2112},
    "130M": {"hidden": 1024, "layers": 10, "heads": 16, "kv_heads": 16, "head_dim": 64, "intermediate": 2816},
}
"""Models whose iterations are timed, by their number of weights."""
TIME_AGREEMENT = 0.25
ITERATION = 2
"""The iteration that counts: the first one starts the engine and the trainer."""


PRODUCTS_SHARE = 0.8
"""Share of a data sheet's FLOP/s that the fastest matrix products reach. The plan's own shares are of the data sheet.

An H100 SXM reaches 794.5 of 989 TFLOP/s ("Maximum Achievable Matmul FLOPS", S. Bekman, Machine Learning Engineering).
"""


def machine_as_gpu() -> Gpu:
    """Returns this machine's data sheet, from matrix products on all cores and the triad, each the best of several."""
    import torch

    from tests.support.trainer_work import matmul_peak

    dtype, bytes_of_bf16 = (torch.bfloat16, 1.0) if _TYPE == "bf16" else (torch.float32, 0.5)
    rate = 1e9 * measured_machine()["memory_gb_per_s"] * bytes_of_bf16
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return Gpu("CPU", 0, memory, matmul_peak(dtype=dtype) / PRODUCTS_SHARE, rate, rate, rate)


def time_iteration(sizes: dict[str, int], gpu: Gpu, token_seconds: float) -> dict[str, Any]:
    """Runs two iterations of a model, and returns measured and planned seconds of the second one.

    The plan's work is replaced by what the iteration counted, so that only the time model is compared.
    """
    cores = len(os.sched_getaffinity(0))
    changes = [f"model.{key}={value}" for key, value in sizes.items()]
    changes += ["iterations=2", "warm_start=null", "finetune.learning_rate=1e-5", "pack.uniform_groups=kept"]
    changes += ["sample.sampling.max_tokens=128", "sample.sampling.samples_per_prompt=8"]
    told = [f"engine.threads={cores}", f"trainer.threads={cores}", "engine.kv_cache_gib=1", "engine.max_num_seqs=512"]
    told += [f"engine.dtype={'bfloat16' if _TYPE == 'bf16' else 'float32'}", f"trainer.compute_dtype={_TYPE}"]
    with tempfile.TemporaryDirectory() as folder:
        train(str(TINY), "timed", folder, changes, str(ONE_ENGINE), told)
        (item,) = [one for one in read_run(Store.open(folder), "timed").iterations if one.number == ITERATION]
    recipe, profile = load_recipe(str(TINY), changes), load_profile(str(ONE_ENGINE), told)
    shape, seconds = model_size(recipe.model).shape, item.seconds()
    assert shape is not None and profile.engine.kv_cache_gib is not None
    sampled, packed = item.facts("sample"), item.facts("pack")
    completions = recipe.sample.puzzles_per_iteration * recipe.sample.sampling.samples_per_prompt
    prompts = packed["used_tokens"] - packed["completion_tokens"]
    work = replace(
        work_of(recipe, sampled["completion_tokens"] / completions, prompts / packed["groups"]),
        trained_tokens=packed["used_tokens"], loss_tokens=packed["completion_tokens"],
        rows=packed["rows"], steps=packed["minibatches"],
    )  # fmt: skip
    state = 3 * BYTES[recipe.finetune.optimizer.master_dtype] * shape.parameters * recipe.finetune.carry_state
    cache = profile.engine.kv_cache_gib * GIB
    one, trainer, engine = Cluster(gpu, 1), profile.trainer, profile.engine
    times = iteration_times(
        recipe,
        shape,
        work,
        one,
        trainer,
        engine,
        cache,
        2 * shape.parameters,
        state,
        efficiency=replace(ON_GPUS, token=token_seconds),
    )
    measured = seconds["sample"] + seconds["evaluate"] + seconds["finetune"]
    return {
        "parameters": shape.parameters,
        "sampled_tokens": work.sampled_tokens,
        "measured": {part: seconds[part] for part in ("sample", "evaluate", "finetune")},
        "planned": asdict(times),
        "difference": times.iteration / measured - 1,
    }


def main() -> None:
    """Entry point."""
    parser = parser_of(__doc__)
    parser.add_argument("--layers", type=int, help="simulate only so many layers of each model, to look at the form")
    parser.add_argument("--only", choices=[*SIMULATED, "none", "time"], help="simulate one model or none; or time")
    parser.add_argument("--sizes", choices=list(TIMED), nargs="+", default=list(TIMED), help="models to time")
    parser.add_argument("--measured", type=int, nargs="*", default=[], help="measure groups of so many processes")
    arguments = parser.parse_args()
    figures, held = time_figures(arguments) if arguments.only == "time" else memory_figures(arguments)
    tell(figures, held, as_json=arguments.json)


def time_figures(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[Bar]]:
    """Measures iterations; returns figures and bars."""
    gpu = machine_as_gpu()
    least = time_iteration(SMALLEST, gpu, token_seconds=0)
    missing = least["measured"]["sample"] + least["measured"]["evaluate"] - least["planned"]["sample"]
    token_seconds = missing / least["sampled_tokens"]
    timed = {name: time_iteration(TIMED[name], gpu, token_seconds) for name in arguments.sizes}
    machine = asdict(gpu) | {"token_seconds": token_seconds, "compute_type": _TYPE}
    return {"machine": machine, "times": timed}, time_bars(timed)


def memory_figures(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[Bar]]:
    """Simulates steps, measures groups, and plans; returns figures and bars."""
    measured = [measure(processes) for processes in arguments.measured]
    steps: dict[str, dict[str, Any]] = {}
    for name, master in SIMULATED.items():
        shape = model_size(load_recipe(name).model).shape
        assert shape is not None
        if arguments.only in (None, name):
            steps[name] = simulate(replace(shape, layers=arguments.layers or shape.layers), master)
    plans: dict[str, Any] = {}
    for name, (recipe, gpus, nodes) in PLANNED.items():
        loaded = load_recipe(recipe)
        plans[name] = document(make_plan(loaded, load_profile("cuda"), cluster(gpus, nodes)), 2.5)["fitting"]
    figures = {"steps": steps, "measured": measured, "plans": plans}
    held = [*bars(steps, measured), *bars_of_rows(plans)]
    return figures, held


def bars_of_rows(plans: dict[str, Any]) -> list[Bar]:
    """Whether steps of few rows keep eight processes busy with `pack.rows_multiple`."""
    return [
        Bar.at_most(f"{name}: share of a step that processes lose with pack.rows_multiple",
                    plan["times"]["lost_divided"], 0.15)
        for name, plan in plans.items()
        if name.startswith("openpipe") and plan
    ]  # fmt: skip


def bars(steps: dict[str, dict[str, Any]], measured: list[dict[str, Any]]) -> list[Bar]:
    """Whether the plan agrees with simulated and with measured steps."""
    return [
        Bar.at_most(
            f"{group['processes']} processes: difference of the planned peak from the measured, share",
            abs(group["difference"]),
            AGREEMENT,
        )
        for group in measured
    ] + [
        Bar.at_most(
            f"{name}: difference of the planned peak from the simulated, share", abs(step["difference"]), AGREEMENT
        )
        for name, step in steps.items()
    ]


def time_bars(timed: dict[str, dict[str, Any]]) -> list[Bar]:
    """Whether the plan's seconds agree with those of iterations."""
    name = "difference of the planned iteration from the measured, share"
    return [Bar.at_most(f"{size}: {name}", abs(row["difference"]), TIME_AGREEMENT) for size, row in timed.items()]


if __name__ == "__main__":
    main()
