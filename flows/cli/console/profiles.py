"""Checks the profile of a command before anything starts."""

from collections.abc import Sequence

from flows.checks.devices import refuse_on_this_machine
from flows.doctor.hardware import load_hardware


def check_devices(profile: str, changes: Sequence[str] = (), *, trains: bool = False, samples: bool = True) -> None:
    """Checks that this machine has the devices of a profile. The flow checks it again on the machine that executes it.

    Args:
        profile: Name of the profile, or path of a TOML file.
        changes: Changes of it, `section.key=value` each.
        trains: Whether the command trains.
        samples: Whether the command samples from an engine.

    Raises:
        BadInputError: There is no such profile, or it does not fit.
    """
    hardware = load_hardware(profile, changes)
    waits = hardware.gpu_slot is not None
    refuse_on_this_machine(hardware.engine, hardware.trainer, trains=trains, samples=samples, waits=waits)
