"""If on PYTHONPATH, makes torch report to vLLM the CPU that ONEDNN_MAX_CPU_ISA names: see `tests.support.machines`.

oneDNN and MKL read variables, but vLLM chooses its kernels by `torch.cpu`, which asks the processor itself.
"""

import importlib.abc
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

ABOVE = {
    "AVX2": ("_is_avx512_supported", "_is_avx512_bf16_supported", "_is_amx_tile_supported", "_is_amx_fp16_supported"),
    "AVX512_CORE": ("_is_avx512_bf16_supported", "_is_amx_tile_supported", "_is_amx_fp16_supported"),
    "AVX512_CORE_BF16": ("_is_amx_tile_supported", "_is_amx_fp16_supported"),
}
"""Functions of `torch.cpu` that return False on a CPU of each level."""


class _TorchCpu(importlib.abc.MetaPathFinder):
    """Finds `torch.cpu` as usual, and changes its answers once it is loaded."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "torch.cpu":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        assert spec is not None and spec.loader is not None
        execute = spec.loader.exec_module

        def execute_and_change(module: ModuleType) -> None:
            execute(module)
            for name in ABOVE[os.environ["ONEDNN_MAX_CPU_ISA"]]:
                assert hasattr(module, name)
                setattr(module, name, lambda: False)

        setattr(spec.loader, "exec_module", execute_and_change)  # noqa: B010
        return spec


if os.environ.get("ONEDNN_MAX_CPU_ISA") in ABOVE:
    sys.meta_path.insert(0, _TorchCpu())
