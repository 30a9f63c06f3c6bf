"""The engine's side of the comparison of weights (see `stages.sampling.replicas.weight_exchange`).

vLLM adds `WeightSlices` to its worker (`--worker-extension-cls`). The flow never imports this module.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass


class WeightSlices:
    """A mixin of vLLM's worker.

    Attributes:
        model_runner: The worker's own.
    """

    model_runner: Any

    def weight_slice_digests(self, slices: Mapping[str, Sequence[Sequence[int]]]) -> dict[str, str]:
        """Returns the SHA-256 (hex) of slices of this worker's parameters by name.

        Only the slices are copied to the host.

        Args:
            slices: Spans by name of the parameter, in order; the last one ends at the end of the tensor, flat. A name
                whose parameter is missing here, has another size or no plain float type is left out.
        """
        digests: dict[str, str] = {}
        for adapted, parameter in self.model_runner.get_model().named_parameters():
            name = adapted.replace(".base_layer.", ".")  # of a linear map that takes an adapter
            spans = slices.get(name)
            if spans is None or is_traceable_wrapper_subclass(parameter) or not parameter.is_contiguous():
                continue
            if parameter.numel() != spans[-1][1] or not parameter.is_floating_point():
                continue
            flat, digest = parameter.detach().view(-1), hashlib.sha256()
            for first, end in spans:
                digest.update(flat[first:end].cpu().view(torch.uint8).numpy())
            digests[name] = digest.hexdigest()
        return digests

    def adapter_digests(self, rank: int) -> list[str]:
        """Returns the SHA-256 (hex) of each matrix of the loaded LoRA adapter, A and the scaled B, in any order.

        Args:
            rank: Rank of the adapter; the engine keeps it in matrices for the largest rank that it takes.
        """
        digests: list[str] = []
        for module in self.model_runner.lora_manager._adapter_manager.modules.values():
            for a, b in zip(module.lora_a_stacked, module.lora_b_stacked, strict=True):
                for matrix in (a[0, 0, :rank], b[0, 0, :, :rank]):
                    content = matrix.contiguous().cpu().view(torch.uint8).numpy()
                    digests.append(hashlib.sha256(content).hexdigest())
        return digests
