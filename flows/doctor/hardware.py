"""The part of a profile that `deerstalker doctor` reads, and what it means on this machine; cheap to import."""

from collections.abc import Sequence
from typing import Literal

from pydantic import ConfigDict, Field

from artifacts.config import Config
from flows.config.settings import load_settings
from flows.doctor.facts import MachineFacts, SoftwareFacts
from stages.hardware.compute_type import Choice, native_type, training_type
from stages.sampling.config import EngineHardware
from stages.training.job import TrainHardware

Device = Literal["cpu", "cuda"]
Part = Literal["trainer", "engine"]


class Hardware(Config):
    """Settings of `stages.context.Profile` without those that say how a flow runs."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    engine: EngineHardware = Field(default_factory=EngineHardware)
    trainer: TrainHardware = Field(default_factory=TrainHardware)
    tracker: Literal["none", "wandb", "tensorboard"] = "none"

    @property
    def starts_engines(self) -> bool:
        """Whether engines start on this machine, none being external or some being named beside those that are."""
        return not self.engine.external_urls or self.engine.replicas != "auto"

    def explicit_type(self, part: Part) -> str | None:
        """The compute type that the profile names for trainer or engine; None where it leaves it to the machine."""
        value = self.trainer.compute_dtype if part == "trainer" else self.engine.dtype
        return None if value == "auto" else value


def load_hardware(profile: str, changes: Sequence[str]) -> Hardware:
    """Loads a profile as `flows.config.recipes.load_profile` does, and raises as that does."""
    return load_settings(Hardware, "profiles", profile, changes)


def device_of(part: Part, hardware: Hardware, machine: MachineFacts, software: SoftwareFacts) -> Device:
    """Where trainer or engine compute: as the profile says, or by what is installed and there."""
    if part == "engine":
        return "cuda" if software.engine and software.engine[0] == "vllm" else "cpu"
    if hardware.trainer.device == "auto":
        return "cuda" if machine.gpus else "cpu"
    return hardware.trainer.device


def choice_of(part: Part, hardware: Hardware, device: Device, hidden: int | None = None) -> Choice:
    """The compute type of trainer or engine: the profile's where it names one, else the quicker on the device.

    Args:
        hidden: Hidden size of the model that is trained; None: any.

    Raises:
        DeerstalkerError: The system names no flags of the CPU, and matrix products could not be timed.
    """
    explicit = hardware.explicit_type(part)
    if explicit is None:
        return training_type(device, hidden) if part == "trainer" else native_type(device)
    return Choice("fp32" if explicit in ("fp32", "float32") else "bf16", "as the profile says")
