"""Reports other runs on the devices of a run, except those with a permit of the same server (see `gpu_permit`).

Without `deerstalker up` each command has its own server, so that a permit does not separate runs.
"""

import os
from collections.abc import Callable
from pathlib import Path

from prefect.settings import PREFECT_API_URL

from artifacts.store.store import Store
from stages.context import Profile
from stages.hardware.compute_type import cuda_devices
from stages.processes.device_use import DeviceUse, announce


def device_names(profile: Profile) -> tuple[str, ...]:
    """Returns the UUIDs of the GPUs that a run may use; without GPUs, the names of the cores."""
    gpus = () if profile.trainer.device == "cpu" else cuda_devices()
    names = tuple(gpu.uuid or f"GPU {number}" for number, gpu in enumerate(gpus))
    return names or tuple(f"core {number}" for number in sorted(os.sched_getaffinity(0)))


def say_who_computes_here(folder: Path, run: str, store: Store, profile: Profile, say: Callable[[str], None]) -> None:
    """Writes a note in the run's temporary folder that it computes here, and reports the other runs that do.

    Args:
        folder: The run's temporary folder.
        run: Name of the flow run.
        store: The run's store.
        profile: The profile, which names the devices and the limit of the run's permit.
        say: Called with a line for each other run.
    """
    permit = "" if profile.gpu_slot is None else f"{profile.gpu_slot} of {PREFECT_API_URL.value()}"
    use = DeviceUse(run=run, store=store.url, process_id=os.getpid(), devices=device_names(profile), permit=permit)
    for other in announce(folder, use):
        shared = sorted(set(use.devices).intersection(other.devices))
        gpus = not shared[0].startswith("core ")
        where = ", ".join(shared) if gpus else f"{len(shared)} CPU core{'s' * (len(shared) != 1)}"
        harm = "each is slower, and memory may not suffice for both" if gpus else "each is slower"
        say(
            f"warning: {where}: run {other.run!r} (process {other.process_id}) computes there, too; expected one run "
            f"at a time: {harm}; wait for its end, or let one wait for the other: `deerstalker up`, then "
            "`--set-profile gpu_slot=gpu` for both"
        )
