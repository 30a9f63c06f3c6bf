"""Reads and writes Hugging Face folders of weights, under the names of the policy's parameters."""

import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path

import torch
import torch.distributed as dist
from huggingface_hub import split_torch_state_dict_into_shards
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from artifacts.errors import BadInputError
from stages.models.adapter_config import ADAPTER_CONFIG, AdapterConfig
from stages.models.adapters import ADAPTER_WEIGHTS, base_of, has_adapter, read_adapter_config, tensor_name
from stages.models.json_file import write_json
from stages.models.shape import DecoderShape, read_shape
from stages.models.spellings import state_dtype, write_both_spellings
from stages.models.tensors import FILE_BYTES, WEIGHTS_INDEX, compare, stored_tensors
from stages.models.value_head import VALUE_HEAD, VALUE_HEAD_WEIGHT, ValueHead

_WEIGHT_FILES = (".safetensors", ".bin", ".gguf", WEIGHTS_INDEX, ADAPTER_CONFIG)
_OUTSIDE = {
    "decoder.tok_embeddings.weight": "model.embed_tokens.weight",
    "decoder.norm.scale": "model.norm.weight",
    "head.weight": "lm_head.weight",
    VALUE_HEAD_WEIGHT: VALUE_HEAD_WEIGHT,
}
_MODULES = {
    "attn.q_norm": "self_attn.q_norm",
    "attn.k_norm": "self_attn.k_norm",
    "attn.qkv_proj": "self_attn.qkv_proj",
    "attn.q_proj": "self_attn.q_proj",
    "attn.k_proj": "self_attn.k_proj",
    "attn.v_proj": "self_attn.v_proj",
    "attn.output_proj": "self_attn.o_proj",
    "mlp.w1": "mlp.gate_proj",
    "mlp.w2": "mlp.down_proj",
    "mlp.w3": "mlp.up_proj",
    "mlp.router": "mlp.gate",
}


_FUSED_GATE = "mlp.gate_up_proj"
_EXPERT = re.compile(r"mlp\.(experts\.\d+)\.(\w+)")


def published_name(name: str, shape: DecoderShape) -> str:
    """Returns the Hugging Face name of a policy parameter."""
    if name in _OUTSIDE:
        return _OUTSIDE[name]
    layer, inner = name.removeprefix("decoder.layers.").split(".", 1)
    module, leaf = inner.rsplit(".", 1)
    fused = {"mlp.w1": _FUSED_GATE} if shape.fused else {}
    if expert := _EXPERT.fullmatch(module):
        published = _MODULES[f"mlp.{expert[2]}"].replace("mlp.", f"mlp.{expert[1]}.")
    else:
        published = (_MODULES | asdict(shape.norms) | fused)[module]
    return f"model.layers.{layer}.{published}.{leaf.replace('scale', 'weight')}"


def adapter_name(name: str, shape: DecoderShape) -> str:
    """Returns PEFT's name of an adapter's parameter."""
    stem, _, side = name.removesuffix(".weight").rpartition(".lora_")
    return tensor_name(published_name(f"{stem}.weight", shape), side.upper())


class StoredWeights:
    """The tensors of a checkpoint folder, read one at a time, from one file or from several with an index.

    The adapter of a checkpoint that has one is added to the weights of its base.

    Args:
        folder: Hugging Face folder.

    Raises:
        BadInputError: There are no readable safetensors weights, or the index does not agree with the files.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._shape = base_of(folder), read_shape(folder)
        self._stored = stored_tensors(self._folder)
        self._adapter = folder if has_adapter(folder) else None

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
            BadInputError: A stored tensor has another shape than expected, a file is damaged, or the adapter is of
                another kind than plain LoRA.
        """
        published = {name: published_name(name, self._shape) for name in names}
        adapter = read_adapter(self._adapter) if self._adapter else {}
        scale = read_adapter_config(self._adapter).scale if self._adapter else 1.0
        by_file: dict[Path, list[str]] = {}
        for name in published:
            by_file.setdefault(self._stored[published[name]].file, []).append(name)
        for path, names_in_file in by_file.items():
            try:
                with safe_open(path, framework="pt") as file:
                    for name in names_in_file:
                        tensor = file.get_tensor(published[name])
                        if tensor.shape != shape_of(name):
                            raise BadInputError(
                                f"{path}: {published[name]}", str(list(tensor.shape)), str(list(shape_of(name)))
                            )
                        if (a := adapter.get(tensor_name(published[name], "A"))) is not None:
                            b = adapter[tensor_name(published[name], "B")]
                            tensor = tensor.float() + scale * (b.float() @ a.float())
                        yield name, tensor
            except (OSError, SafetensorError) as error:
                raise BadInputError(str(path), f"unreadable ({error})", "weights in safetensors") from error


def read_adapter(folder: Path) -> dict[str, Tensor]:
    """Returns the tensors of an adapter by PEFT's names.

    Raises:
        BadInputError: The file is damaged.
    """
    path = folder / ADAPTER_WEIGHTS
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise BadInputError(str(path), f"unreadable ({error})", "an adapter in safetensors") from error


def write_adapter(source: Path, out: Path, config: AdapterConfig, tensors: Mapping[str, Tensor | None]) -> None:
    """Writes a checkpoint of an adapter: PEFT's two files, and the source's files other than weights.

    Collective; only the first process has tensors, and writes.

    Args:
        source: Folder whose other files are copied.
        out: Folder to make.
        config: The adapter's settings.
        tensors: Tensors by PEFT's names, float32 on the CPU; None on all processes but the first.
    """
    if dist.get_rank() == 0:
        out.mkdir(parents=True, exist_ok=True)
        copy_other_files(source, out)
        if has_adapter(source):
            named = read_adapter_config(source)
            config = replace(config, base=named.base, revision=named.revision)
        config.write(out)
        _write_file(out / ADAPTER_WEIGHTS, tensors)


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
        value_head: Form of the head of a critic, which its config.json states; None for a policy.
    """
    first = dist.get_rank() == 0
    if first:
        _write_other_files(source, out, dtype, value_head)
    decoder = read_shape(source)
    policy_names = {published_name(name, decoder): name for name in shapes}
    sizes = {name: torch.empty(shapes[own], dtype=dtype, device="meta") for name, own in policy_names.items()}
    plan = split_torch_state_dict_into_shards(sizes, max_shard_size=file_bytes)
    for file, names in plan.filename_to_tensors.items():
        _write_file(out / file, {name: full(policy_names[name]) for name in names})  # frees the tensors of the file
        if first:
            heartbeat()
    if first and plan.is_sharded:
        index = {"metadata": plan.metadata, "weight_map": plan.tensor_to_filename}
        write_json(out / WEIGHTS_INDEX, index)


def _write_file(path: Path, tensors: Mapping[str, Tensor | None]) -> None:
    """Writes full tensors to a file; nothing on processes that hold none."""
    if full := {name: tensor.contiguous() for name, tensor in tensors.items() if tensor is not None}:
        save_file(full, path, metadata={"format": "pt"})
        path.chmod(path.with_name("config.json").stat().st_mode)  # safetensors creates it readable by the owner only


def copy_other_files(source: Path, out: Path) -> None:
    """Copies the files of a model folder that hold no weights and describe no adapter."""
    for path in source.iterdir():
        if path.is_file() and not path.name.endswith(_WEIGHT_FILES):
            shutil.copyfile(path, out / path.name)


def _write_other_files(source: Path, out: Path, dtype: torch.dtype, value_head: ValueHead | None) -> None:
    out.mkdir(parents=True, exist_ok=True)
    copy_other_files(source, out)
    state_dtype(out, str(dtype).removeprefix("torch."), **({VALUE_HEAD: value_head} if value_head else {}))
    write_both_spellings(out)
