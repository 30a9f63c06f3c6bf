"""Slices of weights that engine and checkpoint are compared by, and the engine's side of the comparison.

vLLM adds `WeightSlices` to its worker (`--worker-extension-cls`), so this module imports nothing of the flow.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

BLOCKS = 8
"""Number of slices of a tensor that is not compared as a whole."""
LEAST_COUNT = 2048
"""Least number of weights of a tensor that are compared."""


def spans_of(size: int, share: float) -> list[tuple[int, int]]:
    """Returns the compared spans of a flat tensor: evenly spaced, the first at its start and the last at its end.

    Args:
        size: Number of its weights.
        share: Share of them to compare, above 0; at least `LEAST_COUNT` are compared.

    Returns:
        Pairs of first weight and first weight behind; a single pair if the whole tensor is compared.
    """
    count = max(LEAST_COUNT, int(size * share)) // BLOCKS * BLOCKS
    if share >= 1.0 or count >= size:
        return [(0, size)]
    length = count // BLOCKS
    starts = [(size - length) * block // (BLOCKS - 1) for block in range(BLOCKS)]
    return [(start, start + length) for start in starts]


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
                whose parameter is missing here or has another size is left out, as is one of no plain float type.
        """
        import torch
        from torch.utils._python_dispatch import is_traceable_wrapper_subclass

        digests: dict[str, str] = {}
        for name, parameter in self.model_runner.get_model().named_parameters():
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
