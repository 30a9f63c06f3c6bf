"""The parts of torchtune that the trainer uses, imported without torchtune's own initializer.

`import torchtune` loads datasets (with pandas and Hugging Face datasets) and a dozen model families: 1.4 s of CPU time,
and tens of seconds if there is no bytecode yet. The parts that are used here need none of that.
"""

import importlib.util
import sys
from types import ModuleType


def _enter_package(name: str) -> None:
    """Registers a package in `sys.modules` without running its `__init__`, so that its submodules can be imported."""
    if name in sys.modules:
        return
    spec = importlib.util.find_spec(name)
    if spec is None or spec.submodule_search_locations is None:
        raise ModuleNotFoundError(f"{name} is not installed", name=name)
    package = ModuleType(name)
    package.__path__ = list(spec.submodule_search_locations)
    package.__spec__ = spec
    sys.modules[name] = package


_enter_package("torchtune")

from torchtune.modules import (  # noqa: E402
    FeedForward,
    RMSNorm,
    TransformerDecoder,
    TransformerSelfAttentionLayer,
)
from torchtune.modules.peft import LoRALinear  # noqa: E402

__all__ = [
    "FeedForward",
    "LoRALinear",
    "RMSNorm",
    "TransformerDecoder",
    "TransformerSelfAttentionLayer",
]
