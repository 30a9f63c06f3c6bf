"""LoRA adapters of random numbers, as PEFT saves them."""

from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from stages.models.adapter_config import AdapterConfig
from stages.models.adapters import ADAPTER_WEIGHTS, adapted_weights, tensor_name
from stages.models.shape import read_shape
from stages.models.tensors import tensors_of

CONFIG = AdapterConfig(4, 8.0, False, ("q_proj", "down_proj"))


def save_adapter(folder: Path, base: Path, config: AdapterConfig = CONFIG) -> Path:
    """Writes an adapter of a model folder and returns its folder."""
    draw, weights = np.random.default_rng(0), tensors_of(read_shape(base))
    folder.mkdir()
    config.write(folder)
    tensors: dict[str, Any] = {}
    for name in adapted_weights(config, weights):
        rows, columns = weights[name]
        tensors[tensor_name(name, "A")] = draw.normal(size=(config.rank, columns)).astype(np.float32)
        tensors[tensor_name(name, "B")] = draw.normal(size=(rows, config.rank)).astype(np.float32)
    save_file(tensors, folder / ADAPTER_WEIGHTS)
    return folder
