"""Reloads an engine's weights in place, and verifies that they are those of the checkpoint folder."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stages.models.adapters import ADAPTER_WEIGHTS, read_adapter_config
from stages.models.shape import read_shape
from stages.models.spellings import both_in_config
from stages.models.tensor_file import ITEM_BYTES, StoredTensor, read_header, to_bfloat16_bits, to_floats
from stages.models.tensors import stored_tensors
from stages.sampling.completions import ADAPTER_PATH
from stages.sampling.endpoint import Endpoint, EndpointError

LOAD_TIMEOUT_S = 600.0
SHORT_TIMEOUT_S = 10.0
_STORED_AS = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
_FLOATS = tuple(_STORED_AS.values())
_FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
"""Tensors that vLLM makes of several, one after the other."""
_VOCABULARY_TENSORS = ("embed_tokens.weight", "lm_head.weight")
_VOCABULARY_MULTIPLE = 64
BLOCKS = 8
"""Number of slices of a tensor that is not compared as a whole."""
LEAST_COUNT = 2048
"""Least number of weights of a tensor that are compared."""
_KEYS_WITHOUT_EFFECT = ("_name_or_path", "transformers_version", "use_cache", "torch_dtype", "dtype")


TensorDigests = tuple[dict[str, str], dict[str, list[tuple[int, int]]]]
"""SHA-256 (hex) of tensors by their names in an engine; and the spans that each was computed from, in weights."""


class ReloadRefusedError(Exception):
    """The engine refused the weights; it must be restarted with the new folder."""


def same_shape(served: Path | None, requested: Path) -> bool:
    """Returns whether two checkpoints have the same config, apart from keys without effect on the shapes of weights."""
    if served is None:
        return False
    configs: list[dict[str, Any]] = []
    for folder in (served, requested):
        path = folder / "config.json"
        if not path.is_file():
            return False
        config = both_in_config(json.loads(path.read_bytes()))
        configs.append({key: value for key, value in config.items() if key not in _KEYS_WITHOUT_EFFECT})
    return configs[0] == configs[1]


def sleep(endpoint: Endpoint) -> None:
    """Makes an idle engine give up its GPU memory; `load` wakes it.

    At vLLM's level 2 neither weights nor KV cache are kept. Level 1 would keep the weights in the host's memory, but
    the next `load` replaces them anyway.

    Raises:
        EndpointError, OSError, http.client.HTTPException: It refused, or could not be reached.
    """
    endpoint.call("POST", "/sleep?level=2", timeout_s=LOAD_TIMEOUT_S)


def load(endpoint: Endpoint, model_dir: Path, *, asleep: bool = False) -> None:
    """Loads the folder's weights into a running engine and resets its prefix cache.

    Args:
        asleep: Whether the engine sleeps. Its weights get their memory back first, its cache last; then it takes
            requests again.

    Raises:
        ReloadRefusedError: The engine answered with an error, or did not reset its prefix cache.
        OSError, http.client.HTTPException: It could not be reached.
    """
    try:
        if asleep:
            endpoint.call("POST", "/wake_up?tags=weights", timeout_s=LOAD_TIMEOUT_S)
        reload = {"method": "reload_weights", "kwargs": {"weights_path": str(model_dir)}, "timeout": LOAD_TIMEOUT_S}
        endpoint.call("POST", "/collective_rpc", reload, timeout_s=LOAD_TIMEOUT_S)
        if asleep:
            endpoint.call("POST", "/wake_up?tags=kv_cache", timeout_s=LOAD_TIMEOUT_S)
        reset = endpoint.call("POST", "/reset_prefix_cache", timeout_s=LOAD_TIMEOUT_S)
    except EndpointError as error:
        raise ReloadRefusedError(str(error)) from error
    if not reset["success"]:
        raise ReloadRefusedError("the prefix cache is still in use")


def load_adapter(endpoint: Endpoint, folder: Path | None, digest: str, dtype: str, *, checked: bool) -> None:
    """Loads a LoRA adapter into a running engine beside its base, and verifies it; None returns to the base.

    Args:
        folder: Checkpoint with an adapter.
        digest: Digest of the checkpoint, which names the adapter in the engine.
        dtype: The engine's compute type.
        checked: Whether the engine's matrices are compared with the file's; not if its processes divide them.

    Raises:
        ReloadRefusedError: The engine answered with an error, or holds other matrices.
        OSError, http.client.HTTPException: It could not be reached.
    """
    request = {} if folder is None else {"name": digest, "folder": str(folder)}
    try:
        endpoint.call("POST", ADAPTER_PATH, request, timeout_s=LOAD_TIMEOUT_S)
        if folder is None or not checked:
            return
        config = read_adapter_config(folder)
        ask = {"method": "adapter_digests", "kwargs": {"rank": config.rank}, "timeout": LOAD_TIMEOUT_S}
        workers = endpoint.call("POST", "/collective_rpc", ask, timeout_s=LOAD_TIMEOUT_S)["results"]
    except EndpointError as error:
        raise ReloadRefusedError(str(error)) from error
    expected = adapter_digests(folder, config.scale, dtype)
    if missing := Counter(expected) - Counter(digest for worker in workers for digest in worker):
        raise ReloadRefusedError(f"{missing.total()} of {len(expected)} matrices of the adapter were not loaded")


def adapter_digests(folder: Path, scale: float, dtype: str) -> list[str]:
    """Returns the SHA-256 (hex) of each matrix of an adapter as an engine holds it: A, and B times the scale.

    Both are cast to the engine's type before B is scaled.
    """
    digests: list[str] = []
    for name, tensor in read_header(folder / ADAPTER_WEIGHTS).items():
        cast = cast_bytes(tensor.read(), tensor.dtype, dtype)
        if cast is None:
            raise ReloadRefusedError(f"{name} has the type {tensor.dtype}")
        if name.endswith(".lora_B.weight"):
            values = np.frombuffer(cast_bytes(cast, _STORED_AS[dtype], "float32") or b"", "<f4") * np.float32(scale)
            cast = cast_bytes(values.tobytes(), "F32", dtype) or b""
        digests.append(hashlib.sha256(cast).hexdigest())
    return digests


def expect_weights(endpoint: Endpoint) -> None:
    """Makes an engine that began with random weights load the next ones from files.

    Raises:
        ReloadRefusedError: The engine answered with an error.
        OSError, http.client.HTTPException: It could not be reached.
    """
    change = {"overrides": {"load_config": {"load_format": "safetensors"}}}
    try:
        endpoint.call(
            "POST", "/collective_rpc", {"method": "update_config", "kwargs": change}, timeout_s=SHORT_TIMEOUT_S
        )
    except EndpointError as error:
        raise ReloadRefusedError(str(error)) from error


def keeps_stale_head(endpoint: Endpoint, model_dir: Path) -> bool:
    """Returns whether a plain vLLM server would keep its old output head after a reload (see server.py).

    Raises:
        BadInputError: The folder's config cannot be read.
        OSError, http.client.HTTPException, EndpointError: The engine could not be reached, or refused the request.
    """
    if not read_shape(model_dir).tied:
        return False
    return "device_config=cpu" in endpoint.call("GET", "/server_info", timeout_s=LOAD_TIMEOUT_S)["vllm_config"]


def set_weight_version(endpoint: Endpoint, digest: str) -> None:
    """Sets the version of the loaded weights to their digest. The engine adds it to every completion.

    Raises:
        ReloadRefusedError: The engine answered with an error.
        OSError, http.client.HTTPException: It could not be reached.
    """
    try:
        endpoint.call("POST", "/update_weight_version", {"new_version": digest}, timeout_s=SHORT_TIMEOUT_S)
    except EndpointError as error:
        raise ReloadRefusedError(str(error)) from error


def spans_of(size: int, share: float) -> list[tuple[int, int]]:
    """Returns the compared spans of a flat tensor: evenly spaced, the first at its start and the last at its end.

    Args:
        size: Number of its weights.
        share: Share of them to compare, above 0; at least `LEAST_COUNT` are compared.

    Returns:
        Pairs of the first weight and the first one after the span; a single pair if the whole tensor is compared.
    """
    count = max(LEAST_COUNT, int(size * share)) // BLOCKS * BLOCKS
    if share >= 1.0 or count >= size:
        return [(0, size)]
    length = count // BLOCKS
    starts = [(size - length) * block // (BLOCKS - 1) for block in range(BLOCKS)]
    return [(start, start + length) for start in starts]


def tensor_digests(
    folder: Path, dtype: str, limit_bytes: int | None = None, names: Collection[str] | None = None
) -> TensorDigests:
    """Returns digests of a folder's tensors as an engine holds them, and what each was computed from.

    An engine holds the tensors of a folder after a cast; some it pads with zeros, and some it appends to others (query,
    key and value; the two inputs of the feed-forward layer). Both the tensors and these fusions have digests.

    Args:
        folder: A checkpoint folder. Tensors that are not stored as BF16, F16 or F32 are left out.
        dtype: The engine's compute type: bfloat16, float16 or float32.
        limit_bytes: Size above which only slices of each tensor are read, of about this size in all; None: no limit.
        names: Names in the engine to which the result is restricted; None for all.

    Returns:
        SHA-256 (hex) by name in the engine; and spans of the flat tensor, in weights, by the same names.
    """
    digests: dict[str, str] = {}
    slices: dict[str, list[tuple[int, int]]] = {}
    item_bytes = ITEM_BYTES[_STORED_AS[dtype]]
    stored = stored_tensors(folder)
    total_bytes = item_bytes * sum(math.prod(tensor.shape) for tensor in stored.values())
    share = 1.0 if limit_bytes is None else limit_bytes / max(1, total_bytes)
    for name, parts in _engine_tensors(stored).items():
        padding = _vocabulary_padding(name, parts[0].shape)
        size = sum(math.prod(part.shape) for part in parts) + padding
        if size == 0 or (names is not None and name not in names) or not all(part.dtype in _FLOATS for part in parts):
            continue
        slices[name], digest = spans_of(size, share), hashlib.sha256()
        for first, end in slices[name]:
            for content in _contents(parts, first, end, dtype):
                digest.update(content)
        digests[name] = digest.hexdigest()
    return digests, slices


def _engine_tensors(stored: Mapping[str, StoredTensor]) -> dict[str, list[StoredTensor]]:
    """Returns the stored tensors that each tensor of an engine consists of, by its name there."""
    tensors = {name: [tensor] for name, tensor in stored.items()}
    for fused, parts in _FUSED.items():
        for name in stored:
            if f".{parts[0]}." in name:
                names = [name.replace(f".{parts[0]}.", f".{part}.") for part in parts]
                if all(part in stored for part in names):
                    tensors[name.replace(f".{parts[0]}.", f".{fused}.")] = [stored[part] for part in names]
    return tensors


def _contents(parts: Sequence[StoredTensor], first: int, end: int, dtype: str) -> Iterator[bytes]:
    """Yields the bytes of a span of tensors that follow one another; zeros after the last of them."""
    offset = 0
    for part in parts:
        size = math.prod(part.shape)
        low, high = max(first, offset), min(end, offset + size)
        if low < high:
            content = cast_bytes(part.read(low - offset, high - offset), part.dtype, dtype)
            assert content is not None  # of a type in `_FLOATS`
            yield content
        offset += size
    if end > offset:
        yield bytes((end - max(first, offset)) * ITEM_BYTES[_STORED_AS[dtype]])


def _vocabulary_padding(name: str, shape: Sequence[int]) -> int:
    """Returns the number of zeros that vLLM appends to embedding and head, to a multiple of 64 tokens."""
    if not name.endswith(_VOCABULARY_TENSORS) or not shape[0]:
        return 0
    return math.prod(shape[1:]) * (-shape[0] % _VOCABULARY_MULTIPLE)


def cast_bytes(content: bytes, stored: str, dtype: str) -> bytes | None:
    """Returns a tensor's bytes after the engine's cast at loading (to the nearest value, ties to even).

    Args:
        content: Its bytes in the file, little endian.
        stored: Its type in the file, by the name that safetensors uses.
        dtype: The engine's compute type.

    Returns:
        The bytes; None if the stored type is not BF16, F16 or F32.
    """
    if stored == _STORED_AS[dtype]:
        return content
    if (values := to_floats(content, stored)) is None:
        return None
    if dtype == "bfloat16":
        return to_bfloat16_bits(values).tobytes()
    with np.errstate(over="ignore"):  # values too large for float16 become infinite, as in the engine
        return (values.astype(np.float16) if dtype == "float16" else values).tobytes()


class WeightCheck:
    """Verifies an engine's weights: compares the SHA-256 of tensors with those of the folder.

    Of a checkpoint above `limit_bytes`, evenly spaced slices of every tensor are compared, of about that size in all.
    The engine packs some tensors for its kernels and divides others among its processes. The comparison after its start
    shows which tensors it keeps as they are in the file. These must equal the new file after every reload, and every
    layer must have some.

    Args:
        endpoint: The engine, just started with `model_dir`; its worker has the mixin `WeightSlices`.
        model_dir: The folder that it was started with.
        limit_bytes: Number of bytes to compare; 0 compares none, and the engine's answer is trusted.
        dtype: The engine's compute type.
        weightless: The engine was started with random weights instead, and loads those of the folder now. Each of its
            tensors must then change or equal the folder's.

    Raises:
        ReloadRefusedError: No tensor of the engine, or none of a layer, equals one of the folder; or it did not load
            one.
        EndpointError, OSError, http.client.HTTPException: The engine did not return its checksums.
    """

    def __init__(
        self, endpoint: Endpoint, model_dir: Path, limit_bytes: int, dtype: str, *, weightless: bool = False
    ) -> None:
        self.endpoint, self.limit_bytes, self.dtype = endpoint, limit_bytes, dtype
        self.verbatim = frozenset[str]()
        expected, slices = tensor_digests(model_dir, dtype, limit_bytes) if limit_bytes else ({}, {})
        random = self._engine_digests(slices) if weightless and limit_bytes else {}
        if weightless:
            load(endpoint, model_dir)
        if not limit_bytes:
            return
        loaded = self._engine_digests(slices)
        if stale := [name for name in random if loaded.get(name) == random[name] != expected[name]]:
            raise ReloadRefusedError(f"{len(stale)} tensors were not loaded, {stale[:3]}")
        self.verbatim = frozenset(name for name in expected if loaded.get(name) == expected[name])
        if not self.verbatim:
            raise ReloadRefusedError("no tensor of the engine equals one of the folder it was started with")
        layers, kept = (_layers(names) for names in (expected, self.verbatim))
        if missing := sorted(layers - kept):
            raise ReloadRefusedError(f"no tensor of layer {missing[0]} of the engine equals one of the folder's")

    def expected(self, model_dir: Path) -> TensorDigests:
        """Returns what `after_reload` compares, as the folder has it; it can be computed while the engine loads."""
        return tensor_digests(model_dir, self.dtype, self.limit_bytes, self.verbatim) if self.verbatim else ({}, {})

    def after_reload(self, folder: TensorDigests) -> int:
        """Compares the engine with the folder just loaded and returns the number of tensors compared.

        Args:
            folder: What `expected` returned for it.

        Raises:
            ReloadRefusedError: A tensor differs from the folder's.
            EndpointError, OSError, http.client.HTTPException: The engine did not return its checksums.
        """
        if not self.verbatim:
            return 0
        expected, slices = folder
        loaded = self._engine_digests(slices)
        wrong = sorted(name for name in self.verbatim if loaded.get(name) != expected.get(name))
        if wrong:
            raise ReloadRefusedError(f"{len(wrong)} of {len(self.verbatim)} tensors are not the folder's, {wrong[:3]}")
        return len(self.verbatim)

    def _engine_digests(self, slices: Mapping[str, Sequence[tuple[int, int]]]) -> dict[str, str]:
        """Returns the engine's digests by name; those on which its processes disagree are empty."""
        request = {"method": "weight_slice_digests", "kwargs": {"slices": slices}, "timeout": LOAD_TIMEOUT_S}
        digests: dict[str, str] = {}
        for worker in self.endpoint.call("POST", "/collective_rpc", request, timeout_s=LOAD_TIMEOUT_S)["results"]:
            for name, digest in worker.items():
                digests[name] = digest if digests.get(name, digest) == digest else ""
        return digests


def _layers(names: Iterable[str]) -> set[int]:
    return {int(name.split(".")[2]) for name in names if name.startswith("model.layers.")}
