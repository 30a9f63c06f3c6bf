"""Decides the value of `pack.row_tokens = "auto"`."""

import math
import os
from collections.abc import Callable
from dataclasses import replace
from typing import cast

from artifacts.errors import BadInputError
from flows.config.model_size import ModelSize, model_size
from flows.config.recipe import Recipe
from flows.plan.cluster import Cluster
from flows.plan.host import engine_bytes, program_bytes, replica_count
from flows.plan.plan import memory_of, possible_settings, process_memory, training_bytes
from flows.plan.workload import Lengths, steps_of, typical_completion
from stages.context import Profile
from stages.grpo.packing import PackConfig
from stages.hardware.compute_type import ComputeType, CudaDevice, cuda_devices, engine_build
from stages.processes.cgroups import usable_cores
from stages.processes.memory import limit_bytes

_UNIT = 64
"""The tokens of a row are a multiple of this number."""
_PROMPT_SHARE = 1 / 4
"""Share of a row that is left for its prompt while no prompt is known, as `workload.longest_prompt` supposes."""


def with_rows(
    recipe: Recipe,
    profile: Profile,
    gpus: tuple[CudaDevice, ...] | None = None,
    room_bytes: int | None = None,
    *,
    lengths: Lengths | None = None,
    size: ModelSize | None = None,
    refuse: bool = True,
) -> Recipe:
    """Returns the recipe with a number for each `pack.row_tokens` that is `auto`.

    A row has room for the longest prompt with a group of completions of the largest length. It is shorter if the
    trainer's memory on this machine requires that, or if a step of completions of typical length would have fewer rows
    than there are trainer processes, but it always has room for the longest prompt with one completion. If the shape of
    the model is unknown, it has no more than that.

    Args:
        gpus: The GPUs; by default those of this machine.
        room_bytes: Memory of the host; by default that of this machine, or the limit of its control groups.
        lengths: Lengths of the prompts; None if they are not known: a prompt then takes a quarter of the least row.
        size: Size of the model; None: as `model_size` finds it.
        refuse: Whether to raise an error if not even the least row fits; otherwise the least row is returned.

    Raises:
        BadInputError: There is no GPU that the profile names, or not even a row for one completion fits.
    """
    devices = cuda_devices() if gpus is None else gpus
    room = room_bytes or limit_bytes() or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    def fits(part: Recipe, size: ModelSize) -> bool:
        return _fits_here(part, profile, size, devices, room, refuse=refuse)

    return _decided(recipe, profile.trainer.row_shares, fits, lengths, size, refuse=refuse)


def planned_rows(recipe: Recipe, profile: Profile, cluster: Cluster) -> Recipe:
    """Returns the recipe with a number for each `auto`: the largest that fits some profile that a plan may choose.

    A run with that profile decides on the same numbers. If nothing fits, it is the least number, and the plan says how
    much memory is missing.
    """

    def fits(part: Recipe, size: ModelSize) -> bool:
        memory = cluster.gpu.memory_bytes
        return any(
            memory_of(part, settings.applied(profile), size, memory).missing == 0
            for settings in possible_settings(part, profile, cluster, offload=False)
        )

    return _decided(recipe, cluster.count, fits, refuse=False)


def _decided(
    recipe: Recipe,
    processes: int,
    fits: Callable[[Recipe, ModelSize], bool],
    lengths: Lengths | None = None,
    size: ModelSize | None = None,
    *,
    refuse: bool,
) -> Recipe:
    if all(pack.row_tokens != "auto" for pack in (recipe.pack, *(phase.pack for phase in recipe.phases))):
        return recipe
    size = size or model_size(recipe.model)
    if lengths is not None and size.shape is not None and size.shape.positions is not None:
        lengths = replace(lengths, context=min(lengths.context or size.shape.positions, size.shape.positions))

    def decided(part: Recipe) -> PackConfig:
        least, most = bounds(part, processes, lengths)
        if size.shape is None:
            return _sized(part.pack, least)
        number = largest(least, most, lambda tokens: fits(_with_row(part, tokens), size))
        if number is None and refuse:
            raise BadInputError(
                "pack.row_tokens",
                f"auto, but the memory of this machine is too small for a row of {least} tokens",
                "room for a prompt and its longest completion",
                "set trainer.activation_checkpointing = true, or lower sample.sampling.max_tokens or "
                "trainer.micro_batch_tokens; `deerstalker plan` says what would fit",
            )
        return _sized(part.pack, number or least)

    packs = [part.pack if part.pack.row_tokens != "auto" else decided(part) for part in recipe.parts]
    if not recipe.phases:
        return recipe.with_packs(packs[0])
    own = recipe.pack  # no iteration reads it: each reads the section of its phase
    if own.row_tokens == "auto":
        own = _sized(own, max(pack.row_size for pack in packs))
    return recipe.with_packs(own, packs)


def bounds(recipe: Recipe, processes: int, lengths: Lengths | None = None) -> tuple[int, int]:
    """Returns the least and the largest size of a row: for one completion at its longest, and for the whole group.

    If a step is not counted in rows, the largest size also leaves a row for each process in a step whose completions
    have the length that plans assume.

    Args:
        processes: Number of trainer processes.
        lengths: Lengths of the prompts; None if they are not known.
    """
    sampling, groups = recipe.sample.sampling, recipe.sample.puzzles_per_iteration
    if lengths is None:
        least = sampling.max_tokens / (1 - _PROMPT_SHARE)
        most = least * sampling.samples_per_prompt
    else:
        least = lengths.longest(sampling)
        most = least + (sampling.samples_per_prompt - 1) * max(0, least - lengths.prompt)
    if processes > 1 and recipe.pack.minibatch_unit != "rows":
        steps = steps_of(recipe, groups)
        most = min(most, groups * sampling.samples_per_prompt * typical_completion(sampling) / (steps * processes))
    return _rounded_up(least), _rounded_up(max(least, most))


def _rounded_up(tokens: float) -> int:
    return _UNIT * math.ceil(tokens / _UNIT)


def largest(least: int, most: int, fits: Callable[[int], bool]) -> int | None:
    """Returns the largest multiple of `_UNIT` between two multiples that fits; None if the least does not fit."""
    if not fits(least):
        return None
    low, high = least // _UNIT, most // _UNIT
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle * _UNIT) else (low, middle - 1)
    return low * _UNIT


def _with_row(part: Recipe, tokens: int) -> Recipe:
    return part.model_copy(update={"pack": _sized(part.pack, tokens)})


def _sized(pack: PackConfig, tokens: int) -> PackConfig:
    return pack.model_copy(update={"row_tokens": tokens})


def _fits_here(
    part: Recipe,
    profile: Profile,
    size: ModelSize,
    devices: tuple[CudaDevice, ...],
    room_bytes: int,
    *,
    refuse: bool,
) -> bool:
    trainer, engine = profile.trainer, profile.engine
    if trainer.device == "cuda" or (trainer.device == "auto" and devices):
        if not devices and not refuse:
            return False
        if not devices:
            raise BadInputError(
                "pack.row_tokens", "auto, for a trainer on GPUs that this machine lacks", "a number",
                "write the number that `deerstalker plan` prints, or begin the run on a machine with GPUs",
            )  # fmt: skip
        gpu = min(device.memory_bytes for device in devices)
        memory = memory_of(part, profile, size, gpu)
        return training_bytes(memory.trainer, trainer) <= gpu if engine.elsewhere else memory.missing == 0
    compute = trainer.on_this_machine(size.shape.hidden if size.shape else None).compute_dtype
    one = process_memory(part, trainer, size, cast("ComputeType", compute), cuda=False)
    engine_on_cuda = engine_build()[0] == "vllm"
    replicas = replica_count(engine, size, usable_cores(), len(devices), cuda=engine_on_cuda)
    of_engines = 0.0
    if not engine_on_cuda:
        kind: ComputeType = "fp32" if engine.on_this_machine().dtype == "float32" else "bf16"
        of_engines = engine_bytes(engine, size, kind, replicas, cuda=False)
    return trainer.processes * one.peak + of_engines + program_bytes(replicas) <= room_bytes


def described(recipe: Recipe, before: Recipe) -> list[str]:
    """Returns a line for each number that was decided: `before` is the recipe with its `auto`."""
    packs = [("pack", before.pack, recipe.pack)]
    packs += [
        (f"phases.{number}.pack", old.pack, new.pack)
        for number, (old, new) in enumerate(zip(before.phases, recipe.phases, strict=True))
    ]
    return [f"{name}.row_tokens: {new.row_size} (auto)" for name, old, new in packs if old.row_tokens == "auto"]
