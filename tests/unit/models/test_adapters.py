"""LoRA adapters in PEFT's layout: what is read, what is refused, and what is exported of them."""

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file, save_file

from artifacts.errors import BadInputError
from stages.models.adapter_config import ADAPTER_CONFIG, AdapterConfig
from stages.models.adapters import (
    ADAPTER_WEIGHTS,
    base_of,
    read_adapter_config,
    tensor_name,
    with_base,
)
from stages.models.exporting.folder import export_folder
from stages.models.from_scratch import ScratchModel, make_scratch
from stages.models.json_file import read_json
from stages.models.shape import read_shape
from stages.models.tensors import WEIGHTS, check_adapter, check_weights, tensors_of
from stages.sampling.config import EngineHardware
from tests.support.adapters import CONFIG, save_adapter


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    make_scratch(ScratchModel(layers=2, vocabulary=300), ["Who was it?"], folder)
    return folder


@pytest.fixture
def adapter(base: Path, tmp_path: Path) -> Path:
    """An adapter of random numbers."""
    return save_adapter(tmp_path / "adapter", base)


def rewritten(folder: Path, **changes: Any) -> None:
    path = folder / ADAPTER_CONFIG
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_the_settings_survive_a_file(tmp_path: Path) -> None:
    for config in (CONFIG, AdapterConfig(9, 6.5, True, ("v_proj",), "owner/base", "v2")):
        config.write(tmp_path)
        assert read_adapter_config(tmp_path) == config
    assert read_adapter_config(tmp_path).scale == pytest.approx(6.5 / 3)


@pytest.mark.parametrize(
    ("changes", "refused"),
    [
        ({"use_dora": True}, "use_dora: True; expected plain LoRA"),
        ({"peft_type": "IA3"}, "peft_type: 'IA3'"),
        ({"bias": "all"}, "bias: 'all'"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"rank_pattern": {"q_proj": 2}}, "rank_pattern"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights: 'pissa'"),
        ({"r": 0}, "r 0, lora_alpha 8"),
        ({"lora_alpha": 10**400}, "lora_alpha 1000.*alpha at most 1e.09"),
        ({"target_modules": ["lm_head"]}, r"target_modules: \['lm_head'\]; expected some of q_proj"),
        ({"target_modules": "all-linear"}, "target_modules: 'all-linear'"),
    ],
)
def test_another_kind_of_adapter_is_refused_in_one_line(adapter: Path, changes: dict[str, Any], refused: str) -> None:
    rewritten(adapter, **changes)
    with pytest.raises(BadInputError, match=refused):
        read_adapter_config(adapter)


def test_an_adapter_of_another_base_is_refused_from_its_header(base: Path, adapter: Path) -> None:
    weights = tensors_of(read_shape(base))
    assert check_adapter(adapter, weights) == CONFIG
    wider = {name: tuple(2 * size for size in sizes) for name, sizes in weights.items()}
    with pytest.raises(
        BadInputError, match=r"lora_A.weight: an adapter of another base: shape \[4, .*; expected shape"
    ):
        check_adapter(adapter, wider)
    fewer = {name: sizes for name, sizes in weights.items() if ".layers.1." not in name}
    with pytest.raises(BadInputError, match=r"layers.1.*another base: shape .*; expected no such tensor"):
        check_adapter(adapter, fewer)


def test_an_adapter_has_a_base_where_it_is_linked_to_one(base: Path, adapter: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="an adapter without its base"):
        check_weights(adapter)
    linked = with_base(adapter, base, tmp_path / "linked")
    assert with_base(adapter, base, linked) == linked, "the second call finds the links"
    assert base_of(linked) == base and base_of(base) == base
    assert check_weights(linked).keys() == check_weights(base).keys()


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_a_merged_export_has_the_sum_and_an_adapter_what_it_was(
    base: Path, adapter: Path, tmp_path: Path, dtype: Any
) -> None:
    (adapter / "config.json").write_bytes((base / "config.json").read_bytes())
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (adapter / name).write_bytes((base / name).read_bytes())
    linked = with_base(adapter, base, tmp_path / "linked")
    for name, merge in (("merged", True), ("peft", False)):
        export_folder(linked, tmp_path / name, "# card\n", merge=merge, dtype=dtype, base="owner/base")
        assert (tmp_path / name / "README.md").read_text() == "# card\n"
        assert read_json(tmp_path / name / "generation_config.json")["eos_token_id"] is not None
    assert not (tmp_path / "merged" / ADAPTER_CONFIG).exists() and not (tmp_path / "peft" / WEIGHTS).exists()
    assert read_adapter_config(tmp_path / "peft").base == "owner/base"
    assert (tmp_path / "peft" / ADAPTER_WEIGHTS).read_bytes() == (adapter / ADAPTER_WEIGHTS).read_bytes()
    assert read_json(tmp_path / "merged" / "config.json")["dtype"] == {"bf16": "bfloat16", "fp16": "float16"}[dtype]
    import torch
    from safetensors.torch import load_file as load_torch

    before, after = load_torch(base / WEIGHTS), load_torch(tmp_path / "merged" / WEIGHTS)
    added = load_file(adapter / ADAPTER_WEIGHTS)
    name = "model.layers.1.mlp.down_proj.weight"
    product = torch.from_numpy(added[tensor_name(name, "B")] @ added[tensor_name(name, "A")])
    expected = before[name].float() + 2.0 * product
    torch.testing.assert_close(after[name].float(), expected, rtol=2**-8, atol=1e-3)
    assert torch.equal(after["model.norm.weight"].float(), before["model.norm.weight"].float())
    with pytest.raises(BadInputError, match="a folder that is not empty; expected a new or empty folder"):
        export_folder(linked, tmp_path / "merged", "", merge=True, dtype=dtype, base=None)


def test_a_weight_too_large_for_float16_is_refused(base: Path, adapter: Path, tmp_path: Path) -> None:
    tensors = load_file(adapter / ADAPTER_WEIGHTS)
    save_file({name: 1e4 * tensor for name, tensor in tensors.items()}, adapter / ADAPTER_WEIGHTS)
    (adapter / "config.json").write_bytes((base / "config.json").read_bytes())
    linked = with_base(adapter, base, tmp_path / "linked")
    with pytest.raises(BadInputError, match=r"--dtype fp16: a weight of .* in model.layers"):
        export_folder(linked, tmp_path / "out", "", merge=True, dtype="fp16", base=None)


def test_engines_make_room_for_a_rank_or_refuse_it() -> None:
    hardware = EngineHardware(dtype="bfloat16")
    assert hardware.takes(None) and not hardware.takes(CONFIG)
    adapted = hardware.with_adapter(CONFIG)
    assert adapted.takes(CONFIG) and not adapted.takes(AdapterConfig(5, 8.0, False, ("q_proj",)))
    assert not adapted.takes(AdapterConfig(4, 8.0, False, ("v_proj",)))
    with pytest.raises(BadInputError, match=r"LoRA rank: 513; expected at most 512, vLLM's limit; .*merge = true"):
        hardware.with_adapter(AdapterConfig(513, 8.0, False, ("q_proj",)))
    elsewhere = hardware.model_copy(update={"external_urls": ("http://127.0.0.1:1",)})
    with pytest.raises(BadInputError, match="engines elsewhere"):
        elsewhere.with_adapter(CONFIG)
