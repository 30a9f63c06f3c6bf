"""Writes the settings of a model folder in the spellings of transformers 4 and 5, so that tools on either read them.

transformers 5 saves `rope_theta` and the scaling of rotations inside `rope_parameters`, `dtype` instead of
`torch_dtype`, and in `tokenizer_config.json` the class `TokenizersBackend` and a list of `extra_special_tokens`.
transformers 4 reads 10,000 for a `rope_theta` inside another table, and fails on the other two. Both versions read what
is written here.
"""

import json
from pathlib import Path
from typing import Any, cast

from stages.models.json_file import read_json

_NEW_CLASS, _CLASS = "TokenizersBackend", "PreTrainedTokenizerFast"
"""Class of a tokenizer without rules of its own, in transformers 5 and in both versions."""


def write_both_spellings(folder: Path) -> None:
    """Rewrites `config.json` and `tokenizer_config.json` of a model folder; a file that has both spellings stays.

    Raises:
        BadInputError: One of them cannot be read.
    """
    for name, both in (("config.json", both_in_config), ("tokenizer_config.json", _both_in_tokenizer_config)):
        path = folder / name
        if path.is_file() and (changed := both(before := read_json(path))) != before:
            path.write_text(json.dumps(changed, indent=2) + "\n", encoding="utf-8")


def both_in_config(config: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings of a `config.json` in both spellings; equal for two configs that say the same."""
    config = dict(config)
    if dtype := config.get("dtype") or config.get("torch_dtype"):
        config["dtype"] = config["torch_dtype"] = dtype
    stated = {**_table(config, "rope_parameters"), **_table(config, "rope_scaling")}
    scaling = {key: value for key, value in stated.items() if key != "rope_theta"}
    theta = stated.get("rope_theta") or config.get("rope_theta")
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if theta:
        config["rope_theta"] = theta
        config["rope_parameters"] = {**scaling, "rope_theta": theta, "rope_type": kind}
    if kind != "default":
        config["rope_scaling"] = {**scaling, "rope_type": kind}
    return config


def _both_in_tokenizer_config(settings: dict[str, Any]) -> dict[str, Any]:
    settings = dict(settings)
    if settings.get("tokenizer_class") == _NEW_CLASS:
        settings["tokenizer_class"] = _CLASS
    if isinstance(settings.get("extra_special_tokens"), list):
        settings["additional_special_tokens"] = settings.pop("extra_special_tokens")
    return settings


def _table(config: dict[str, Any], name: str) -> dict[str, Any]:
    value = config.get(name)
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
