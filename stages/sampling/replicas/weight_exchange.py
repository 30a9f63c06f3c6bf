"""Reloads an engine's weights in place, and verifies that they are those of the checkpoint folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stages.models.tensor_file import data_start, read_header, to_bfloat16_bits, weight_bytes
from stages.models.tensors import weight_files
from stages.sampling.endpoint import Endpoint, EndpointError

LOAD_TIMEOUT_S = 600.0
SHORT_TIMEOUT_S = 10.0
_STORED_AS = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
_VOCABULARY_TENSORS = ("embed_tokens.weight", "lm_head.weight")
_VOCABULARY_MULTIPLE = 64
_KEYS_WITHOUT_EFFECT = ("_name_or_path", "transformers_version", "use_cache", "torch_dtype", "dtype")


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
        config = json.loads(path.read_bytes())
        configs.append({key: value for key, value in config.items() if key not in _KEYS_WITHOUT_EFFECT})
    return configs[0] == configs[1]


def sleep(endpoint: Endpoint) -> None:
    """Makes an idle engine give up its GPU memory; `load` wakes it.

    At vLLM's level 2 neither weights nor KV cache are kept. Level 1 would keep the weights in the host's memory, but
    they are older than those that the next turn samples with.

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


def keeps_stale_head(endpoint: Endpoint, model_dir: Path) -> bool:
    """Returns whether a plain vLLM server would keep its old output head after a reload (see server.py).

    Raises:
        OSError, http.client.HTTPException, EndpointError: The engine could not be reached, or refused the request.
    """
    if not json.loads((model_dir / "config.json").read_bytes()).get("tie_word_embeddings", False):
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


def tensor_digests(folder: Path, dtype: str) -> dict[str, str]:
    """Returns the SHA-256 (hex) of a folder's tensors by name, after the cast and padding of an engine.

    Args:
        folder: A checkpoint folder. Tensors that are not stored as BF16, F16 or F32 are left out.
        dtype: The engine's compute type: bfloat16, float16 or float32.
    """
    digests: dict[str, str] = {}
    for path in weight_files(folder):
        start = data_start(path)
        with path.open("rb") as file:
            for name, entry in read_header(path).items():
                begin, end = entry["data_offsets"]
                file.seek(start + begin)
                content = cast_bytes(file.read(end - begin), entry["dtype"], dtype)
                if content is not None:
                    padding = _vocabulary_padding(name, entry["shape"], len(content))
                    digests[name] = hashlib.sha256(content + padding).hexdigest()
    return digests


def _vocabulary_padding(name: str, shape: Sequence[int], size_bytes: int) -> bytes:
    """Returns the zeros that vLLM appends to embedding and output head to fill them up to a multiple of 64 tokens."""
    if not name.endswith(_VOCABULARY_TENSORS) or not shape[0]:
        return b""
    return bytes(size_bytes // shape[0] * (-shape[0] % _VOCABULARY_MULTIPLE))


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
    match stored:
        case "BF16":
            values = (np.frombuffer(content, "<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)
        case "F16" | "F32":
            values = np.frombuffer(content, "<f2" if stored == "F16" else "<f4").astype(np.float32)
        case _:
            return None
    if dtype == "bfloat16":
        return to_bfloat16_bits(values).tobytes()
    with np.errstate(over="ignore"):  # values too large for float16 become infinite, as in the engine
        return (values.astype(np.float16) if dtype == "float16" else values).tobytes()


class WeightCheck:
    """Verifies an engine's weights: compares the SHA-256 of each tensor with that of the folder's tensor.

    The engine fuses some tensors (query, key and value) and packs others for its kernels. The comparison after its
    start shows which tensors it keeps as they are in the file. These must equal the new file after every reload.

    Args:
        endpoint: The engine, just started with `model_dir`.
        model_dir: The folder that it was started with.
        limit_bytes: Checkpoints above this size are not hashed, and the engine's answer is trusted.
        dtype: The engine's compute type.

    Raises:
        ReloadRefusedError: No tensor of the engine equals one of the folder.
        EndpointError, OSError, http.client.HTTPException: The engine did not return its checksums.
    """

    def __init__(self, endpoint: Endpoint, model_dir: Path, limit_bytes: int, dtype: str) -> None:
        self.endpoint, self.limit_bytes, self.dtype = endpoint, limit_bytes, dtype
        self.loaded, self.expected, self.verbatim = dict[str, str](), dict[str, str](), set[str]()
        if weight_bytes(model_dir) > limit_bytes:
            return
        self.loaded, self.expected = self._engine_digests(), tensor_digests(model_dir, self.dtype)
        self.verbatim = {name for name in self.expected if self.loaded.get(name) == self.expected[name]}
        if not self.verbatim:
            raise ReloadRefusedError("no tensor of the engine equals one of the folder it was started with")

    def after_reload(self, model_dir: Path) -> int:
        """Compares the engine with the folder just loaded and returns the number of tensors compared.

        Raises:
            ReloadRefusedError: A tensor differs from the folder's.
            EndpointError, OSError, http.client.HTTPException: The engine did not return its checksums.
        """
        if not self.loaded or weight_bytes(model_dir) > self.limit_bytes:
            return 0
        self.loaded, self.expected = self._engine_digests(), tensor_digests(model_dir, self.dtype)
        wrong = sorted(name for name in self.verbatim if self.loaded.get(name) != self.expected.get(name))
        if wrong:
            raise ReloadRefusedError(f"{len(wrong)} of {len(self.verbatim)} tensors are not the folder's, {wrong[:3]}")
        return len(self.verbatim)

    def _engine_digests(self) -> dict[str, str]:
        answer = self.endpoint.call("POST", "/weight_checker", {"action": "checksum"}, timeout_s=LOAD_TIMEOUT_S)
        return {name.rpartition(":")[2]: digest for name, digest in answer["checksums"].items()}
