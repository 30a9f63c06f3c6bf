"""The hardware settings of a profile, and the devices and compute types that follow on this machine.

This module loads fast, unlike `flows.config.recipes`.
"""

from collections.abc import Sequence
from typing import Literal

from pydantic import ConfigDict, Field

from artifacts.config import Config
from flows.config.settings import load_settings
from flows.doctor.facts import MachineFacts
from stages.hardware.compute_type import Choice, chosen_type, native_type, training_type
from stages.sampling.config import EngineHardware
from stages.training.worker_group.hardware import TrainHardware

Device = Literal["cpu", "cuda"]
Component = Literal["trainer", "engine"]


class Hardware(Config):
    """The settings of `stages.context.Profile` that concern hardware."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    engine: EngineHardware = Field(default_factory=EngineHardware)
    trainer: TrainHardware = Field(default_factory=TrainHardware)
    tracker: Literal["none", "wandb", "tensorboard"] = "none"
    keep_state_every: int | None = Field(default=None, ge=0, le=1_000_000)
    gpu_slot: str | None = None

    def explicit_type(self, component: Component) -> str | None:
        """Returns the profile's compute type of trainer or engine; None if it is `auto`."""
        value = self.trainer.compute_dtype if component == "trainer" else self.engine.dtype
        return None if value == "auto" else value


def load_hardware(profile: str, changes: Sequence[str]) -> Hardware:
    """Loads the hardware settings of a profile; raises the errors of `flows.config.recipes.load_profile`."""
    return load_settings(Hardware, "profiles", profile, changes)


def device_of(component: Component, hardware: Hardware, machine: MachineFacts) -> Device:
    """Returns the device of trainer or engine.

    The engine's is that of the installed build of vLLM. The trainer's is the profile's or, with `auto`, a GPU if there
    is one.
    """
    if component == "engine":
        return "cuda" if machine.engine and machine.engine[0] == "vllm" else "cpu"
    if hardware.trainer.device == "auto":
        return "cuda" if machine.gpus else "cpu"
    return hardware.trainer.device


def choice_of(component: Component, hardware: Hardware, device: Device, hidden: int | None = None) -> Choice:
    """Returns the compute type of trainer or engine: the profile's or, with `auto`, the faster one on the device.

    Args:
        hidden: Hidden size of the trained model; None if unknown.
    """
    best = training_type(device, hidden) if component == "trainer" else native_type(device)
    return chosen_type(hardware.explicit_type(component) or "auto", best)
