"""Checks the profile of a command before anything starts."""

from flows.checks.devices import refuse_on_this_machine
from flows.cli.console.options import Machine
from flows.doctor.hardware import load_hardware


def check_devices(machine: Machine, *, trains: bool = False, samples: bool = True) -> None:
    """Checks that this machine has the devices of a profile. The flow checks it again on the machine that executes it.

    Args:
        machine: The profile and its changes.
        trains: Whether the command trains.
        samples: Whether the command samples from an engine.

    Raises:
        BadInputError: There is no such profile, or it does not fit.
    """
    hardware = load_hardware(machine.profile, machine.set_profile)
    waits = hardware.gpu_slot is not None
    refuse_on_this_machine(hardware.engine, hardware.trainer, trains=trains, samples=samples, waits=waits)
