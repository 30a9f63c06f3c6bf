"""A plan as a JSON document, as text and as a profile in TOML."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from flows.plan.cluster import GB
from flows.plan.plan import GIB, Layout, Plan
from flows.plan.time import ASSUMED
from stages.context import Profile


def profile_text(layout: Layout, recipe: str, where: str, profile: Profile) -> str:
    """Returns a profile in TOML with the settings of a layout; all other settings are those of the profile `cuda`.

    Args:
        profile: The profile from which the layout was planned; settings that the plan reads are kept.
    """
    chosen = layout.settings
    switch = {True: "true", False: "false"}
    together = "# rendezvous and shared_dir must be set: see docs/cluster.md\n" if chosen.nodes > 1 else ""
    return f"""# {recipe} on {where}, by `deerstalker plan`
gpu_slot = "gpu"

[engine]
memory_share = {chosen.memory_share}
kv_cache_gib = "null"
max_num_seqs = {profile.engine.max_num_seqs}
max_model_len = {profile.engine.max_model_len or '"null"'}
eager = {switch[profile.engine.eager]}
dtype = "{profile.engine.dtype}"
stall_timeout_s = 120.0
tensor_parallel_size = {chosen.tensor_parallel_size}
takes_turns = {switch[chosen.takes_turns]}

[trainer]
device = "cuda"
compute_dtype = "{profile.trainer.compute_dtype}"
processes = {chosen.processes}
nodes = {chosen.nodes}
{together}micro_batch_tokens = {chosen.micro_batch_tokens}
activation_checkpointing = {switch[chosen.activation_checkpointing]}
cpu_offload = {switch[chosen.cpu_offload]}
logprob_chunk_tokens = {chosen.logprob_chunk_tokens}
reshard_after_forward = {switch[profile.trainer.reshard_after_forward]}
"""


def document(made: Plan, price: float) -> dict[str, Any]:
    """Returns a plan as `--json` prints it."""
    size = made.size
    return {
        "gpus": made.cluster.count,
        "gpu": made.cluster.gpu.name,
        "nodes": made.cluster.nodes,
        "parameters": size.parameters,
        "work": asdict(made.work),
        "phases": [{"name": phase.name, "iterations": phase.iterations} for phase in made.phases],
        "given": _layout(made.given, made.cluster.count, price),
        "fitting": made.fitting and _layout(made.fitting, made.cluster.count, price),
        "scaling": [
            {"gpus": other.count, "layout": layout and _layout(layout, other.count, price)}
            for other, layout in made.scaling
        ],
        "not_counted": list(made.not_counted),
    }


def dollars(seconds: float, gpus: int, price: float) -> float:
    """Returns the price of a time, in dollars.

    Args:
        price: Dollars for an hour of one GPU.
    """
    return gpus * seconds / 3600 * price


def _layout(layout: Layout, gpus: int, price: float) -> dict[str, Any]:
    memory, times = layout.memory, layout.times
    return {
        "fits": layout.fits,
        "settings": asdict(layout.settings),
        "memory": {**asdict(memory), "trainer": {**asdict(memory.trainer), "peak": memory.trainer.peak}},
        "times": {**asdict(times), "iteration": times.iteration},
        "phases": [{"iteration": of_one.iteration} for of_one in layout.of_phases],
        "run": layout.run,
        "dollars": {"iteration": dollars(times.iteration, gpus, price), "run": dollars(layout.run, gpus, price)},
    }


def gib(size: float) -> str:
    return f"{size / GIB:.1f} GiB"


def verdict(layout: Layout) -> str:
    """Returns whether a layout fits, with its peaks, as one line."""
    memory = layout.memory
    if layout.lacks:
        return f"does not fit, it needs {layout.lacks}"
    peaks = f"sample {gib(memory.sample)}, train {gib(memory.train)}, save {gib(memory.save)}"
    room = f"of {gib(memory.gpu)} on each GPU"
    return f"{peaks} {room}" if layout.fits else f"does not fit, {gib(memory.missing)} are missing: {peaks} {room}"


def lines(made: Plan) -> Iterator[str]:
    """Yields a plan as lines of text, without its table of other numbers of GPUs."""
    yield (f"{made.cluster}: {made.size}")
    work = made.work
    yield (
        f"{work.sampled} completions of {work.completion:.0f} tokens after prompts of {work.prompt:.0f}, "
        f"{work.sampled_tokens:,.0f} tokens sampled and {work.trained_tokens:,.0f} trained on, in "
        f"{work.rows} rows of {work.row_tokens} tokens in {work.steps} optimizer steps"
    )
    for name, layout in (("profile as it is", made.given), ("fastest that fits", made.fitting)):
        if layout is None:
            yield (f"{name}: no settings fit")
            continue
        yield (f"{name}: {verdict(layout)}")
        yield (f"  {', '.join(f'{key} {value}' for key, value in asdict(layout.settings).items())}")
        memory, trainer, times = layout.memory, layout.memory.trainer, layout.times
        if times.lost_divided < times.lost and not layout.lacks:
            yield (
                f"  trainer processes lose {times.lost:.0%} of a step, because there are too few rows; with "
                f"pack.rows_multiple = {times.row_shares} it would be "
                f"{times.lost_divided:.0%}, spent on repeated prompts"
            )
        yield (
            f"  trainer {gib(trainer.peak)} (weights {gib(trainer.weights)}, moments {gib(trainer.optimizer)}, "
            f"gradients {gib(trainer.gradients)}, gathered {gib(trainer.gathered)}, activations "
            f"{gib(trainer.activations)}, logits {gib(trainer.logits)}), engine weights "
            f"{gib(memory.engine_weights)}, cache {gib(memory.cache)}; host {gib(memory.host)}"
        )
        yield (
            f"  an iteration: {times.iteration:.0f} s, {times.flops:.2g} FLOP; each GPU receives "
            f"{times.link_bytes / GB:,.0f} GB from its machine and {times.network_bytes / GB:,.0f} GB from others; "
            f"{times.store_bytes / GB:,.0f} GB to and from the store; publishes "
            f"{times.published_bytes / 1e6:,.1f} MB"
        )
        if len(made.phases) > 1:
            phases = zip(made.phases, layout.of_phases, strict=True)
            each = ", ".join(f"{one.name!r} {one.iterations} of {times.iteration:.0f} s" for one, times in phases)
            yield f"  iterations of each phase: {each}; the figures above are those of the longest"
    if made.not_counted:
        yield f"not counted, in time or memory: {', '.join(made.not_counted)}"
    yield ASSUMED
