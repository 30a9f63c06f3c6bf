"""Exchanges an engine's weights in place, and proves that they are the ones in the checkpoint folder."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from .endpoint import Endpoint, EndpointError

IGNORED_CONFIG = ("_name_or_path", "transformers_version", "use_cache", "torch_dtype", "dtype")


class ReloadRefused(Exception):
    """The engine did not take the weights; restart it with the new folder."""


def same_shape(served: Path | None, wanted: Path) -> bool:
    """Tell whether two checkpoints have the same config, apart from what says nothing about the weights' shape."""
    if served is None:
        return False
    configs: list[dict[str, Any]] = []
    for folder in (served, wanted):
        path = folder / "config.json"
        if not path.is_file():
            return False
        config = json.loads(path.read_bytes())
        configs.append({key: value for key, value in config.items() if key not in IGNORED_CONFIG})
    return configs[0] == configs[1]


def load(endpoint: Endpoint, model_dir: Path, digest: str, *, timeout_s: float) -> None:
    """Load the folder's weights into a running engine, drop what it cached of the old ones, and name the new ones.

    Raises:
        ReloadRefused: The engine answered with an error, or would not drop its prefix cache.
        OSError, http.client.HTTPException: It could not be reached.
    """
    try:
        reload = {"method": "reload_weights", "kwargs": {"weights_path": str(model_dir)}, "timeout": timeout_s}
        endpoint.call("POST", "/collective_rpc", reload, timeout_s=timeout_s)
        reset = endpoint.call("POST", "/reset_prefix_cache", timeout_s=timeout_s)
    except EndpointError as error:
        raise ReloadRefused(str(error)) from error
    if not reset["success"]:
        raise ReloadRefused("the prefix cache is still in use")
    name_version(endpoint, digest, timeout_s=timeout_s)


def name_version(endpoint: Endpoint, digest: str, *, timeout_s: float) -> None:
    """Give the loaded weights their digest as version; the engine stamps it on every completion.

    Raises:
        ReloadRefused: The engine answered with an error.
        OSError, http.client.HTTPException: It could not be reached.
    """
    try:
        endpoint.call("POST", "/update_weight_version", {"new_version": digest}, timeout_s=timeout_s)
    except EndpointError as error:
        raise ReloadRefused(str(error)) from error


def tensor_digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of the raw bytes of every tensor in a folder's safetensors files, by name."""
    digests: dict[str, str] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            header_bytes = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(header_bytes))
            for name, entry in header.items():
                if name == "__metadata__":
                    continue
                begin, end = entry["data_offsets"]
                file.seek(8 + header_bytes + begin)
                digests[name] = hashlib.sha256(file.read(end - begin)).hexdigest()
    return digests


def verify(endpoint: Endpoint, model_dir: Path, limit_bytes: int, *, timeout_s: float) -> int:
    """Compare the engine's tensors with the folder's, where both have one of the same name.

    The engine fuses or lays out some tensors (query, key and value for one), which are skipped; norms and embeddings
    always compare on a single device. Spread over several devices only the norms are whole.

    Args:
        limit_bytes: Larger checkpoints are not read again; the engine's own word has to do.

    Returns:
        The number of tensors that were compared.

    Raises:
        ReloadRefused: A tensor differs, or none could be compared.
    """
    if sum(path.stat().st_size for path in model_dir.glob("*.safetensors")) > limit_bytes:
        return 0
    answer = endpoint.call("POST", "/weight_checker", {"action": "checksum"}, timeout_s=timeout_s)
    loaded = {name.rpartition(":")[2]: digest for name, digest in answer["checksums"].items()}
    expected = tensor_digests(model_dir)
    common = loaded.keys() & expected.keys()
    wrong = sorted(name for name in common if loaded[name] != expected[name])
    if wrong or not common:
        raise ReloadRefused(f"{len(wrong)} of {len(common)} tensors differ from the folder's, {wrong[:3]}")
    return len(common)
