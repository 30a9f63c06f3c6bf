"""Writes a model folder's settings in the spellings of transformers 4 and 5, so that tools on either can read them.

transformers 5 saves `rope_theta` and the scaling of rotations inside `rope_parameters`, `dtype` instead of
`torch_dtype`, and in `tokenizer_config.json` the class `TokenizersBackend` and a list of `extra_special_tokens`.
transformers 4 reads 10,000 for a `rope_theta` inside another table, and fails on the other two. Both versions read what
is written here.
"""

from pathlib import Path
from typing import Any, cast

from stages.models.json_file import read_json, write_json
from stages.models.shape import without_own_code

_NEW_CLASS, _CLASS = "TokenizersBackend", "PreTrainedTokenizerFast"
"""Class of a tokenizer without rules of its own, in transformers 5 and in both versions."""
_FULL, _SLIDING = "full_attention", "sliding_attention"
_BY_LAYER = {"gemma3_text": "rope_local_base_freq", "olmo3": "rope_theta"}
"""Families whose sliding layers have rotary positions of their own, and the base of these in transformers 4."""
_LONG_ROPE = ("short_factor", "long_factor")


def write_both_spellings(folder: Path) -> None:
    """Rewrites `config.json` and `tokenizer_config.json` of a model folder; a file that has both spellings stays.

    Raises:
        BadInputError: One of them cannot be read.
    """
    for name, both in (("config.json", both_in_config), ("tokenizer_config.json", _both_in_tokenizer_config)):
        path = folder / name
        if path.is_file() and (changed := both(before := read_json(path))) != before:
            write_json(path, changed)


def state_dtype(folder: Path, dtype: str, **settings: Any) -> None:
    """Writes the type of a folder's weights into its `config.json`, in both spellings, and further settings."""
    path = folder / "config.json"
    write_json(path, read_json(path) | {"dtype": dtype, "torch_dtype": dtype, **settings})


def both_in_config(config: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings of a `config.json` in both spellings; equal for two configs with the same meaning."""
    config = without_own_code(config)
    if dtype := config.get("dtype") or config.get("torch_dtype"):
        config["dtype"] = config["torch_dtype"] = dtype
    if config.get("model_type") == "qwen3_moe" and (count := config.get("num_local_experts")):
        config["num_experts"] = count  # its name in transformers 4 and vLLM
    kinds = _table(config, "rope_parameters")
    if _FULL in kinds or config.get("model_type") in _BY_LAYER:
        return _rope_by_layer(config, kinds)
    stated = {**kinds, **_table(config, "rope_scaling")}
    scaling = {key: value for key, value in stated.items() if key != "rope_theta"}
    theta = stated.get("rope_theta") or config.get("rope_theta")
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind == "longrope":
        scaling.pop("type", None)
    if theta:
        config["rope_theta"] = theta
        config["rope_parameters"] = {**scaling, "rope_theta": theta, "rope_type": kind}
    if "partial_rotary_factor" in scaling:
        config["partial_rotary_factor"] = scaling["partial_rotary_factor"]
    if kind == "longrope":  # transformers 4 takes these three keys and no others
        config["rope_scaling"] = {"type": kind, **{key: scaling[key] for key in _LONG_ROPE if key in scaling}}
    elif kind != "default":
        config["rope_scaling"] = {**scaling, "rope_type": kind}
    return config


def _rope_by_layer(config: dict[str, Any], kinds: dict[str, Any]) -> dict[str, Any]:
    """Returns a config whose sliding layers have rotary positions of their own, in both spellings."""
    local = _BY_LAYER.get(str(config.get("model_type")), "rope_theta")
    if _FULL in kinds:
        full, sliding = _table(kinds, _FULL), _table(kinds, _SLIDING)
        kind = full.get("rope_type", "default")
        written = {"rope_theta": full.get("rope_theta")}
        if kind != "default":
            written["rope_scaling"] = {key: value for key, value in full.items() if key != "rope_theta"}
        if local != "rope_theta":
            written[local] = sliding.get("rope_theta")
        return config | {key: value for key, value in written.items() if value is not None}
    if not (theta := config.get("rope_theta")) or not (of_sliding := config.get(local)):
        return config  # both versions know the defaults
    stated = _table(config, "rope_scaling")
    scaling = {**stated, "rope_type": stated.get("rope_type") or stated.get("type") or "default", "rope_theta": theta}
    sliding = {"rope_type": "default", "rope_theta": of_sliding}
    return config | {"rope_parameters": {_FULL: scaling, _SLIDING: sliding}}


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
