"""Reads and writes Hugging Face folders of weights, under the names of the policy's parameters."""

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import torch
import torch.distributed as dist
from huggingface_hub import split_torch_state_dict_into_shards
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from artifacts.errors import BadInputError
from stages.models.shape import DecoderShape
from stages.models.spellings import write_both_spellings
from stages.models.tensors import FILE_BYTES, WEIGHTS_INDEX, compare, stored_tensors
from stages.models.value_head import VALUE_HEAD, VALUE_HEAD_WEIGHT, ValueHead

_OUTSIDE = {
    "decoder.tok_embeddings.weight": "model.embed_tokens.weight",
    "decoder.norm.scale": "model.norm.weight",
    "head.weight": "lm_head.weight",
    VALUE_HEAD_WEIGHT: VALUE_HEAD_WEIGHT,
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
    """Returns the Hugging Face name of a policy parameter."""
    if name in _OUTSIDE:
        return _OUTSIDE[name]
    layer, inner = name.removeprefix("decoder.layers.").split(".", 1)
    if inner in _INSIDE:
        return f"model.layers.{layer}.{_INSIDE[inner]}"
    module, leaf = inner.rsplit(".", 1)
    return f"model.layers.{layer}.{_MODULES[module]}.{leaf}"


class StoredWeights:
    """The tensors of a checkpoint folder, read one at a time, from one file or from several with an index.

    Args:
        folder: Hugging Face folder.

    Raises:
        BadInputError: There are no readable safetensors weights, or the index does not agree with the files.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stored = stored_tensors(folder)

    def check(self, shape: DecoderShape) -> None:
        """Compares the stored tensors with those of a decoder (see `stages.models.tensors.compare`).

        Raises:
            BadInputError: A tensor is missing, unexpected, or of another shape or type.
        """
        compare(self._folder, shape, self._stored)

    def read(self, names: Iterable[str], shape_of: Callable[[str], torch.Size]) -> Iterator[tuple[str, Tensor]]:
        """Yields policy names with their stored tensors, file by file.

        Args:
            names: Policy names of the tensors to read.
            shape_of: Returns the expected shape of a policy name.

        Yields:
            Name, and tensor of any float dtype on the CPU.

        Raises:
            BadInputError: A stored tensor has another shape than expected, or a file is damaged.
        """
        by_file: dict[Path, list[str]] = {}
        for name in names:
            by_file.setdefault(self._stored[published_name(name)].file, []).append(name)
        for path, names_in_file in by_file.items():
            try:
                with safe_open(path, framework="pt") as file:
                    for name in names_in_file:
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
    shapes: Mapping[str, torch.Size],
    full: Callable[[str], Tensor | None],
    dtype: torch.dtype = torch.bfloat16,
    *,
    heartbeat: Callable[[], None] = lambda: None,
    file_bytes: int = FILE_BYTES,
    value_head: ValueHead | None = None,
) -> None:
    """Writes a Hugging Face folder: the weights, and the source's other files (config, tokenizer and so on).

    Collective; the first process writes, and holds the tensors of one file at a time. Weights larger than `file_bytes`
    are split over several files with an index. huggingface_hub plans the files; they are written here, since its
    `save_torch_state_dict` takes all tensors at once. Both write the same bytes.

    Args:
        source: Folder whose files other than weights are copied.
        out: Folder to make.
        shapes: Shapes of the weights by policy name, in the order in which files are filled.
        full: Returns the full tensor of a policy name on the CPU, of type `dtype`; None on all processes but the first,
            which call it for the same names in the same order.
        dtype: Type of the weights on disk.
        heartbeat: Called after each file of weights to report progress.
        file_bytes: Largest size of a file of weights; a larger tensor gets a file of its own.
        value_head: Form of the head of a value model, which its config.json states; None for a policy.
    """
    first = dist.get_rank() == 0
    if first:
        _write_other_files(source, out, dtype, value_head)
    sizes = {published_name(name): torch.empty(shape, dtype=dtype, device="meta") for name, shape in shapes.items()}
    plan = split_torch_state_dict_into_shards(sizes, max_shard_size=file_bytes)
    policy_names = {published_name(name): name for name in shapes}
    for file, names in plan.filename_to_tensors.items():
        _write_file(out / file, {name: full(policy_names[name]) for name in names})  # frees the tensors of the file
        if first:
            heartbeat()
    if first and plan.is_sharded:
        index = {"metadata": plan.metadata, "weight_map": plan.tensor_to_filename}
        (out / WEIGHTS_INDEX).write_text(json.dumps(index, indent=2) + "\n")


def _write_file(path: Path, tensors: Mapping[str, Tensor | None]) -> None:
    """Writes full tensors to a file; nothing on processes that hold none."""
    if full := {name: tensor.contiguous() for name, tensor in tensors.items() if tensor is not None}:
        save_file(full, path, metadata={"format": "pt"})
        path.chmod(path.with_name("config.json").stat().st_mode)  # safetensors lets only the owner read it


def _write_other_files(source: Path, out: Path, dtype: torch.dtype, value_head: ValueHead | None) -> None:
    out.mkdir(parents=True, exist_ok=True)
    for path in source.iterdir():
        if path.is_file() and not path.name.endswith((".safetensors", ".bin", ".gguf", WEIGHTS_INDEX)):
            shutil.copyfile(path, out / path.name)
    config = json.loads((source / "config.json").read_text())
    config["dtype"] = config["torch_dtype"] = str(dtype).removeprefix("torch.")
    if value_head:
        config[VALUE_HEAD] = value_head
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    write_both_spellings(out)
