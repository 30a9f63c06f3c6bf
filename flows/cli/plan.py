"""`deerstalker plan`."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from artifacts.errors import BadInputError
from flows.cli.console.options import OUTPUT, Optional, Output, ProfileChanges, ProfileName, RecipeChanges, shipped
from flows.cli.console.output import print_json, print_line, terminal

if TYPE_CHECKING:
    from flows.plan.plan import Layout, Plan

_GIB = 1 << 30


def plan(
    *,
    recipe: Annotated[str, Parameter(help=f"Name of a recipe ({shipped('recipes')}), or path of a TOML file.")],
    gpus: str,
    profile: ProfileName = "cuda",
    nodes: int = 1,
    price: float = 2.5,
    completion_tokens: Annotated[int | None, Optional] = None,
    prompt_tokens: Annotated[int | None, Optional] = None,
    write: Annotated[Path | None, Optional] = None,
    set_: RecipeChanges = (),
    set_profile: ProfileChanges = (),
    options: Output = OUTPUT,
) -> None:
    """Prints the plan of a recipe on GPUs that this machine need not have.

    Args:
        gpus: GPUs of a machine, as 8x80 (gigabytes) or 4xA40.
        nodes: Number of machines.
        price: Dollars for an hour of one GPU.
        completion_tokens: Mean length of a completion; by default half of the limit, or an eighth of one above 256.
        prompt_tokens: Mean length of a prompt; by default half of what the recipe's rows leave.
        write: File in which the fastest profile that fits is written; it must not exist.
    """
    from flows.config.recipes import load_profile, load_recipe
    from flows.plan.cluster import cluster
    from flows.plan.plan import make_plan

    for name, value in (("nodes", nodes), ("completion-tokens", completion_tokens), ("prompt-tokens", prompt_tokens)):
        if value is not None and value < 1:
            raise BadInputError(f"--{name}", str(value), "at least 1")
    if not 0 <= price < 1e6:
        raise BadInputError("--price", str(price), "dollars, from 0")
    if write is not None and write.exists():
        raise BadInputError("--write", str(write), "a file that does not exist")
    settings = load_recipe(recipe, set_)
    loaded = load_profile(profile, set_profile)
    made = make_plan(settings, loaded, cluster(gpus, nodes), completion_tokens, prompt_tokens)
    if write is not None:
        if made.fitting is None:
            raise BadInputError("--write", str(write), "a plan that fits", "no setting of the profile fits these GPUs")
        write.write_text(profile_text(made.fitting, recipe, str(made.cluster)))
    if options.json:
        print_json(document(made, settings.iterations, price))
    else:
        _print(made, settings.iterations, price)


def profile_text(layout: "Layout", recipe: str, where: str) -> str:
    """Returns a profile in TOML with the settings of a layout; the rest is as in the profile `cuda`."""
    chosen = layout.settings
    switch = {True: "true", False: "false"}
    together = "# rendezvous and shared_dir must be set: see the RUNBOOK\n" if chosen.nodes > 1 else ""
    return f"""# {recipe} on {where}, by `deerstalker plan`
gpu_slot = "gpu"

[engine]
memory_share = {chosen.memory_share}
kv_cache_gib = "null"
max_num_seqs = 1024
eager = false
stall_timeout_s = 120.0
tensor_parallel_size = {chosen.tensor_parallel_size}

[trainer]
device = "cuda"
processes = {chosen.processes}
nodes = {chosen.nodes}
{together}micro_batch_tokens = {chosen.micro_batch_tokens}
activation_checkpointing = {switch[chosen.activation_checkpointing]}
cpu_offload = {switch[chosen.cpu_offload]}
logprob_chunk_tokens = {chosen.logprob_chunk_tokens}
"""


def document(made: "Plan", iterations: int, price: float) -> dict[str, Any]:
    """Returns a plan as `--json` prints it."""
    size = made.size
    return {
        "gpus": made.cluster.count,
        "gpu": made.cluster.gpu.name,
        "nodes": made.cluster.nodes,
        "parameters": size.parameters,
        "work": asdict(made.work),
        "given": _layout(made.given, made.cluster.count, iterations, price),
        "fitting": made.fitting and _layout(made.fitting, made.cluster.count, iterations, price),
        "scaling": [
            {"gpus": other.count, "layout": layout and _layout(layout, other.count, iterations, price)}
            for other, layout in made.scaling
        ],
    }


def _layout(layout: "Layout", gpus: int, iterations: int, price: float) -> dict[str, Any]:
    memory, times = layout.memory, layout.times
    dollars = gpus * times.iteration / 3600 * price
    return {
        "fits": layout.fits,
        "settings": asdict(layout.settings),
        "memory": {**asdict(memory), "trainer": {**asdict(memory.trainer), "peak": memory.trainer.peak}},
        "times": {**asdict(times), "iteration": times.iteration},
        "dollars": {"iteration": dollars, "run": dollars * iterations},
    }


def _gib(size: float) -> str:
    return f"{size / _GIB:.1f} GiB"


def _print(made: "Plan", iterations: int, price: float) -> None:
    from rich.table import Table

    print_line(f"{made.cluster}: {made.size}")
    work = made.work
    print_line(
        f"{work.sampled} completions of {work.completion:.0f} tokens after prompts of {work.prompt:.0f}, "
        f"{work.rows} rows in {work.steps} optimizer steps"
    )
    for name, layout in (("profile as it is", made.given), ("fastest that fits", made.fitting)):
        if layout is None:
            print_line(f"{name}: none, whatever the profile")
            continue
        print_line(f"{name}: {verdict(layout)}")
        print_line(f"  {', '.join(f'{key} {value}' for key, value in asdict(layout.settings).items())}")
        memory, trainer = layout.memory, layout.memory.trainer
        print_line(
            f"  trainer {_gib(trainer.peak)} (weights {_gib(trainer.weights)}, moments {_gib(trainer.optimizer)}, "
            f"gradients {_gib(trainer.gradients)}, gathered {_gib(trainer.gathered)}, activations "
            f"{_gib(trainer.activations)}, logits {_gib(trainer.logits)}), engine weights "
            f"{_gib(memory.engine_weights)}, cache {_gib(memory.cache)}; host {_gib(memory.host)}"
        )
    table = Table("GPUs", "sample s", "train s", "save s", "idle", "$/iteration", "$/run", "limit")
    for other, layout in made.scaling:
        if layout is None:
            table.add_row(str(other.count), *["-"] * 6, "memory")
            continue
        times, dollars = layout.times, other.count * layout.times.iteration / 3600 * price
        row = [f"{times.sample:.0f}", f"{times.train:.0f}", f"{times.save:.0f}", f"{times.idle:.0%}"]
        table.add_row(str(other.count), *row, f"{dollars:.2f}", f"{dollars * iterations:.0f}", times.limit)
    terminal().print(table)


def verdict(layout: "Layout") -> str:
    """Returns whether a layout fits, with the peaks of its phases, as one line."""
    memory = layout.memory
    peaks = f"sample {_gib(memory.sample)}, train {_gib(memory.train)}, save {_gib(memory.save)}"
    room = f"of {_gib(memory.gpu)} on each GPU"
    return f"{peaks} {room}" if layout.fits else f"does not fit, {_gib(memory.missing)} are missing: {peaks} {room}"
