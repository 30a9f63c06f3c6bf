"""LoRA adapters in the layout of PEFT, and checkpoints that consist of an adapter and a link to their base.

A checkpoint of a LoRA run has no weights of its own but the adapter: `adapter_model.safetensors` and
`adapter_config.json`, as PEFT writes and reads them, beside config and tokenizer. Where it is read, the link `base`
leads to the folder of the full weights.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from artifacts.errors import BadInputError
from stages.models.adapter_config import ADAPTER_CONFIG, PLAIN, PROJECTIONS, AdapterConfig, Projection
from stages.models.json_file import read_json, shown

ADAPTER_WEIGHTS = "adapter_model.safetensors"
BASE_LINK = "base"
_MOST_ALPHA = 1e9
_PREFIX = "base_model.model."
"""Prefix of the names that PEFT gives to the modules of a model."""


def has_adapter(folder: Path) -> bool:
    """Returns whether a checkpoint folder holds an adapter instead of full weights."""
    return (folder / ADAPTER_CONFIG).is_file()


def adapter_of(folder: Path) -> AdapterConfig | None:
    """Returns the settings of the adapter that a checkpoint folder holds; None if it holds full weights."""
    return read_adapter_config(folder) if has_adapter(folder) else None


def base_of(folder: Path) -> Path:
    """Returns the folder of the full weights: the base of an adapter, or any other folder itself.

    Raises:
        BadInputError: The folder holds an adapter without a base.
    """
    if not has_adapter(folder):
        return folder
    if not (folder / BASE_LINK).is_dir():
        remedy = "name the base as the model, and the adapter as model.adapter"
        raise BadInputError(str(folder), "an adapter without its base", "a model with full weights", remedy)
    return (folder / BASE_LINK).resolve()


def with_base(folder: Path, base: Path, out: Path) -> Path:
    """Makes a folder of links to an adapter's files and to its base, and returns it; an existing one is reused.

    Args:
        folder: Adapter folder.
        base: Folder of the full weights.
        out: The folder to make.
    """
    out.mkdir(parents=True, exist_ok=True)
    for name, target in {BASE_LINK: base, **{path.name: path for path in folder.iterdir()}}.items():
        link = out / name
        if not link.is_symlink() or link.readlink() != target.absolute():
            link.unlink(missing_ok=True)
            with suppress(FileExistsError):  # another thread made the same link
                link.symlink_to(target.absolute())
    return out


def read_adapter_config(folder: Path) -> AdapterConfig:
    """Reads the settings of an adapter.

    Raises:
        BadInputError: The file is missing or damaged, or the adapter is not plain LoRA.
    """
    path = folder / ADAPTER_CONFIG
    settings = read_json(path)
    for name, allowed in PLAIN.items():
        value = settings.get(name, None if name == "peft_type" else allowed[0])
        if value not in allowed:
            remedy = "merge it into its base with PEFT, and use the merged model"
            raise BadInputError(f"{path}: {name}", shown(value), f"plain LoRA, which has {allowed[0]!r}", remedy)
    rank, alpha, names = settings.get("r"), settings.get("lora_alpha"), settings.get("target_modules")
    if type(rank) is not int or rank < 1 or not isinstance(alpha, int | float) or not 0 < alpha <= _MOST_ALPHA:
        found = f"r {shown(rank)}, lora_alpha {shown(alpha)}"
        raise BadInputError(str(path), found, f"two numbers above 0, alpha at most {_MOST_ALPHA:g}")
    known = isinstance(names, list) and all(name in PROJECTIONS for name in cast("list[Any]", names))
    if not known or not names:
        raise BadInputError(f"{path}: target_modules", shown(names), f"some of {', '.join(PROJECTIONS)}")
    base, revision = (
        name if isinstance(name := settings.get(key), str) else None for key in ("base_model_name_or_path", "revision")
    )
    rslora = settings.get("use_rslora") is True
    chosen = cast("list[Projection]", names)
    projections: tuple[Projection, ...] = tuple(name for name in PROJECTIONS if name in chosen)
    return AdapterConfig(rank, float(alpha), rslora, projections, base, revision)


def tensor_name(weight: str, side: str) -> str:
    """Returns PEFT's name of an adapter's tensor, such as `base_model.model.model.layers.0....q_proj.lora_A.weight`.

    Args:
        weight: Hugging Face name of the adapted weight.
        side: `A` [rank, in] or `B` [out, rank].
    """
    return f"{_PREFIX}{weight.removesuffix('.weight')}.lora_{side}.weight"


def adapted_weights(config: AdapterConfig, weights: Mapping[str, Sequence[int]]) -> list[str]:
    """Returns those of a model's weights that the adapter changes."""
    return [name for name in weights if name.endswith(tuple(f".{p}.weight" for p in config.projections))]
