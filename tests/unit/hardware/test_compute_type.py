"""The compute type follows the CPU's flags, on this machine and on older ones that the variables imitate."""

import json
import subprocess
import sys
from typing import Any

import pytest

from artifacts.errors import BadInputError
from flows.config.compute_types import compute_types
from flows.config.recipes import load_profile
from stages.hardware import compute_type
from stages.hardware.compute_type import NARROW, NATIVE_BF16_FLAGS, cpu_flags, native_type
from stages.sampling.config import EngineHardware
from stages.training.worker_group.hardware import TrainHardware
from tests.support.machines import older_cpu

ASK = """
import json, torch
from stages.hardware.compute_type import cpu_flags, native_type
from stages.sampling.config import EngineHardware
from stages.training.worker_group.hardware import TrainHardware
from flows.config.compute_types import compute_types
from flows.config.recipes import load_profile
print(json.dumps({
    "choice": vars(native_type("cpu")), "avx512": any(flag.startswith("avx512") for flag in cpu_flags()),
    "trainer": TrainHardware(device="cpu").on_this_machine().compute_dtype,
    "engine": EngineHardware().on_this_machine().dtype,
    "torch": [torch.cpu._is_avx512_supported(), torch.cpu._is_amx_tile_supported()],
    "auto": compute_types(load_profile("cpu"), 896),
    "slow": compute_types(load_profile("cpu", ["trainer.compute_dtype=bf16"]), None),
}))
"""


@pytest.fixture(scope="module")
def on_avx2() -> dict[str, Any]:
    """What a process finds that takes this CPU for one with AVX2 only."""
    done = subprocess.run(
        [sys.executable, "-c", ASK], env=older_cpu("AVX2"), capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


@pytest.mark.long
def test_a_cpu_without_native_bf16_computes_in_fp32(on_avx2: dict[str, Any]) -> None:
    assert on_avx2["choice"] == {"type": "fp32", "reason": "the CPU has neither avx512_bf16 nor amx_bf16"}
    assert (on_avx2["trainer"], on_avx2["engine"], on_avx2["avx512"]) == ("fp32", "float32", False)
    assert on_avx2["torch"] == [False, False]


def test_a_run_begins_with_the_choice_and_its_reason(on_avx2: dict[str, Any]) -> None:
    reason = "the CPU has neither avx512_bf16 nor amx_bf16"
    assert on_avx2["auto"] == [f"trainer computes in fp32, engine in float32 ({reason})"]


def test_an_explicit_choice_that_is_slow_is_warned_of_with_the_measured_factor(on_avx2: dict[str, Any]) -> None:
    choice, warning = on_avx2["slow"]
    assert choice.startswith("trainer computes in bf16 (as the profile says), engine in float32 (the CPU has neither")
    assert warning.startswith("warning: trainer.compute_dtype = bf16 is ") and '"auto" selects fp32' in warning
    assert float(warning.split(" is ")[1].split(" times")[0]) > 2


@pytest.mark.parametrize("level", ["SSE41", "AVX", "AVX2", "AVX2_VNNI_2", "AVX512_CORE"])
def test_no_level_below_native_bf16_computes_in_it(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compute_type, "_cpu_flags", lambda: ("sse4_1", "avx", "avx2", "avx512_bf16", "amx_bf16"))
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    assert native_type("cpu").type == "bf16"
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", level)
    assert native_type("cpu").type == "fp32"


def test_this_machine_computes_in_bf16_where_its_flags_say_so() -> None:
    native = bool(cpu_flags() & NATIVE_BF16_FLAGS)
    assert native_type("cpu").type == ("bf16" if native else "fp32")
    assert TrainHardware(device="cpu").on_this_machine().compute_dtype == native_type("cpu").type


@pytest.mark.skipif(native_type("cpu").type == "fp32", reason="this CPU has no native bf16 to choose against")
def test_a_narrow_model_trains_in_fp32_even_where_bf16_is_native() -> None:
    on_cpu = TrainHardware(device="cpu")
    assert on_cpu.on_this_machine(hidden=NARROW - 1).compute_dtype == "fp32"
    assert on_cpu.on_this_machine(hidden=NARROW).compute_dtype == "bf16"
    (line,) = compute_types(load_profile("cpu", ["trainer.device=cpu"]), 128)
    assert line.startswith("trainer computes in fp32 (a hidden size of 128 is too small to gain from bf16 on a CPU)")
    explicit = compute_types(load_profile("cpu", ["trainer.device=cpu", "trainer.compute_dtype=fp32"]), 128)
    assert len(explicit) == 1, "the type that auto takes must not be warned of"


def test_an_explicit_type_stays() -> None:
    for dtype in ("bf16", "fp32"):
        assert TrainHardware(compute_dtype=dtype).on_this_machine().compute_dtype == dtype
    assert EngineHardware(dtype="float16").on_this_machine().dtype == "float16"


def test_an_unknown_type_names_those_there_are() -> None:
    with pytest.raises(
        BadInputError, match=r"engine\.dtype: Input should be 'auto', 'bfloat16', 'float16' or 'float32'"
    ):
        load_profile("cpu", ["engine.dtype=half"])
    assert compute_types(load_profile("cpu"), 896)


def test_engines_that_run_elsewhere_are_none_of_this_machines_business() -> None:
    elsewhere = load_profile("cpu", ["engine.external_urls=['http://127.0.0.1:9']"])
    (line,) = compute_types(elsewhere, None)
    assert line.startswith("trainer computes in ") and "engine" not in line
    assert elsewhere.engine.computes_in is None
    beside = elsewhere.engine.model_copy(update={"replicas": 1})
    assert beside.computes_in == EngineHardware().on_this_machine().dtype
