"""Weights in the Hugging Face layout, read into and written from the policy's parameters."""

import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from artifacts.errors import BadInputError
from stages.models.shape import DecoderShape
from stages.models.tensors import WEIGHTS, WEIGHTS_INDEX, compare, stored_tensors

FILE_BYTES = 4 << 30

_OUTSIDE = {
    "decoder.tok_embeddings.weight": "model.embed_tokens.weight",
    "decoder.norm.scale": "model.norm.weight",
    "head.weight": "lm_head.weight",
}
_INSIDE = {
    "sa_norm.scale": "input_layernorm.weight",
    "mlp_norm.scale": "post_attention_layernorm.weight",
    "attn.q_norm.scale": "self_attn.q_norm.weight",
    "attn.k_norm.scale": "self_attn.k_norm.weight",
}
_MODULES = {
    "attn.q_proj": "self_attn.q_proj",
    "attn.k_proj": "self_attn.k_proj",
    "attn.v_proj": "self_attn.v_proj",
    "attn.output_proj": "self_attn.o_proj",
    "mlp.w1": "mlp.gate_proj",
    "mlp.w2": "mlp.down_proj",
    "mlp.w3": "mlp.up_proj",
}


def published_name(name: str) -> str:
    """The Hugging Face name of a policy parameter."""
    if name in _OUTSIDE:
        return _OUTSIDE[name]
    layer, inner = name.removeprefix("decoder.layers.").split(".", 1)
    if inner in _INSIDE:
        return f"model.layers.{layer}.{_INSIDE[inner]}"
    module, leaf = inner.rsplit(".", 1)
    return f"model.layers.{layer}.{_MODULES[module]}.{leaf}"


class StoredWeights:
    """Tensors of a checkpoint folder, read one at a time, in one file or in several with an index.

    Args:
        folder: Hugging Face folder.

    Raises:
        BadInputError: there are no readable safetensors weights, or the index does not agree with the files.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stored = stored_tensors(folder)

    def check(self, shape: DecoderShape) -> None:
        """Compares what is stored with the tensors of a decoder (see `stages.models.tensors.compare`).

        Raises:
            BadInputError: A tensor is missing, left over, or of another shape or type.
        """
        compare(self._folder, shape, self._stored)

    def read(self, names: Iterable[str], shape_of: Callable[[str], torch.Size]) -> Iterator[tuple[str, Tensor]]:
        """Yields policy names with their stored tensors (any float dtype, on the CPU).

        Raises:
            BadInputError: a stored tensor has another shape than config.json implies, or a file is damaged.
        """
        by_file: dict[Path, list[str]] = {}
        for name in names:
            by_file.setdefault(self._stored[published_name(name)].file, []).append(name)
        for path, inside in by_file.items():
            try:
                with safe_open(path, framework="pt") as file:
                    for name in inside:
                        tensor = file.get_tensor(published_name(name))
                        if tensor.shape != shape_of(name):
                            raise BadInputError(
                                f"{path}: {published_name(name)}", str(list(tensor.shape)), str(list(shape_of(name)))
                            )
                        yield name, tensor
            except (OSError, SafetensorError) as error:
                raise BadInputError(str(path), f"unreadable ({error})", "weights in safetensors") from error


def write_checkpoint(
    source: Path,
    out: Path,
    weights: dict[str, Tensor],
    dtype: torch.dtype = torch.bfloat16,
    *,
    beat: Callable[[], None] = lambda: None,
    file_bytes: int = FILE_BYTES,
) -> None:
    """Writes a Hugging Face folder: weights, and config, tokenizer and other files as in the source.

    Weights of more than `file_bytes` are cut into several files with an index.

    Args:
        source: folder whose files other than weights are copied.
        out: folder to make.
        weights: full tensors by policy name, any float dtype.
        dtype: of the weights on disk.
        beat: called after each file of weights.
        file_bytes: how large a file of weights may be; a larger tensor goes alone.
    """
    out.mkdir(parents=True, exist_ok=True)
    for path in source.iterdir():
        if path.is_file() and not path.name.endswith((".safetensors", ".bin", ".gguf", WEIGHTS_INDEX)):
            shutil.copyfile(path, out / path.name)
    config = json.loads((source / "config.json").read_text())
    config.pop("torch_dtype", None)
    config["dtype"] = str(dtype).removeprefix("torch.")
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    groups = _cut(weights, dtype.itemsize, file_bytes)
    file_of: dict[str, str] = {}
    for number, names in enumerate(groups, 1):
        file = WEIGHTS if len(groups) == 1 else f"model-{number:05d}-of-{len(groups):05d}.safetensors"
        tensors = {published_name(name): weights[name].detach().to("cpu", dtype).contiguous() for name in names}
        save_file(tensors, out / file, metadata={"format": "pt"})
        (out / file).chmod((out / "config.json").stat().st_mode)  # safetensors makes it private
        file_of |= dict.fromkeys(tensors, file)
        beat()
    if len(groups) > 1:
        total = sum(tensor.numel() for tensor in weights.values()) * dtype.itemsize
        index = {"metadata": {"total_size": total}, "weight_map": file_of}
        (out / WEIGHTS_INDEX).write_text(json.dumps(index, indent=2) + "\n")


def _cut(weights: dict[str, Tensor], itemsize: int, file_bytes: int) -> list[list[str]]:
    """Names of weights in order, cut into groups of at most so many bytes."""
    groups: list[list[str]] = [[]]
    filled = 0
    for name, tensor in weights.items():
        size = tensor.numel() * itemsize
        if groups[-1] and filled + size > file_bytes:
            groups.append([])
            filled = 0
        groups[-1].append(name)
        filled += size
    return groups
