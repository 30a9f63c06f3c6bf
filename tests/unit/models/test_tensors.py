"""A checkpoint has the tensors that its config calls for, or is refused by the one that is wrong."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from artifacts.errors import BadInputError
from stages.models.shape import read_shape
from stages.models.tensors import WEIGHTS, WEIGHTS_INDEX, check_weights, tensors_of
from stages.sampling.replicas.weight_exchange import tensor_digests
from stages.training.checkpointing.checkpoint import StoredWeights, published_name
from stages.training.model.policy import Policy
from tests.support.policies import ARCHITECTURES
from tests.support.trees import save_model

TIED = "Qwen2", {"tie_word_embeddings": True}
K_PROJ = "model.layers.{}.self_attn.k_proj.weight"
NORM, HEAD, EMBEDDING = "model.norm.weight", "lm_head.weight", "model.embed_tokens.weight"


@pytest.mark.parametrize("model", sorted(ARCHITECTURES))
def test_the_tensors_are_those_of_transformers_and_of_the_policy(model: str, tmp_path: Path) -> None:
    architecture, changes = ARCHITECTURES[model]
    save_model(tmp_path, architecture, **changes)
    shape = read_shape(tmp_path)
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    with torch.device("meta"):
        theirs = transformers.AutoModelForCausalLM.from_config(config)
        policy = Policy(shape, activation_checkpointing=False, chunk_tokens=64)
    needed = tensors_of(shape)
    if shape.experts is None:  # transformers 5 has one tensor of all experts, but saves one for each
        assert needed == {name: tuple(p.shape) for name, p in theirs.named_parameters()}
    assert needed == {published_name(name, shape): tuple(p.shape) for name, p in policy.named_parameters()}
    assert {name: tensor.shape for name, tensor in check_weights(tmp_path).items()} == needed


@pytest.fixture(scope="module")
def untied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("untied")
    save_model(folder, "Qwen2", tie_word_embeddings=False)
    return folder


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tied")
    save_model(folder, *TIED[:1], **TIED[1])
    return folder


Damage = Callable[[dict[str, Tensor]], object]


def without(*names: str) -> Damage:
    return lambda tensors: [tensors.pop(name) for name in names]


def changed(name: str, change: Callable[[Tensor], Tensor], stored_as: str = "") -> Damage:
    return lambda tensors: tensors.update({stored_as or name: change(tensors[name])})


UP = "model.layers.{}.mlp.up_proj.weight"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (without(*(K_PROJ.format(layer) for layer in range(2))),
         r"no tensor model\.layers\.0\.self_attn\.k_proj\.weight and 1 more; expected the 27 tensors"),
        (without("model.layers.1.self_attn.v_proj.bias"), r"no tensor model\.layers\.1\.self_attn\.v_proj\.bias; exp"),
        (without(HEAD), r"no tensor lm_head\.weight"),
        (changed(UP.format(1), torch.clone, UP.format(2)),
         r"tensor 'model\.layers\.2\.mlp\.up_proj\.weight', which config\.json does not imply"),
        (changed(NORM, torch.clone, "x\nall is well"), r"tensor 'x\\nall is well', which config"),
        (changed(UP.format(0), lambda tensor: tensor.T.contiguous()),
         r"mlp\.up_proj\.weight: shape \[32, 48\]; expected \[48, 32\] as in config\.json"),
        (changed(NORM, lambda tensor: tensor[:-1].clone()), r"model\.norm\.weight: shape \[31\]; expected \[32\]"),
        (changed(NORM, lambda tensor: tensor.to(torch.int16)), r"model\.norm\.weight: type I16; expected BF16, F16"),
    ],
)  # fmt: skip
def test_wrong_tensors_are_named(untied: Path, tmp_path: Path, damage: Damage, message: str) -> None:
    shutil.copytree(untied, tmp_path / "model")
    tensors = load_file(untied / WEIGHTS)
    damage(tensors)
    save_file(tensors, tmp_path / "model" / WEIGHTS)
    with pytest.raises(BadInputError, match=message) as refusal:
        check_weights(tmp_path / "model")
    assert "\n" not in str(refusal.value)
    with pytest.raises(BadInputError):
        StoredWeights(tmp_path / "model").check(read_shape(tmp_path / "model"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (lambda tensors: tensors[EMBEDDING].clone(), None),
        (lambda tensors: tensors[EMBEDDING] + 1, "another matrix than the embedding, although config.json ties them"),
        (lambda tensors: tensors[EMBEDDING].float(), "another matrix than the embedding"),
        (lambda tensors: tensors[EMBEDDING][:-1].clone(), r"lm_head\.weight: shape \[100, 32\]"),
    ],
)
def test_a_stored_head_of_a_tied_model_is_the_embedding(
    tied: Path, tmp_path: Path, content: Callable[[dict[str, Tensor]], Tensor], message: str | None
) -> None:
    shutil.copytree(tied, tmp_path / "model")
    tensors = load_file(tied / WEIGHTS)
    save_file({**tensors, HEAD: content(tensors)}, tmp_path / "model" / WEIGHTS)
    if message is None:
        assert HEAD in check_weights(tmp_path / "model")
        return
    with pytest.raises(BadInputError, match=message):
        check_weights(tmp_path / "model")


def test_a_constant_that_old_versions_saved_is_no_matter(untied: Path, tmp_path: Path) -> None:
    shutil.copytree(untied, tmp_path / "model")
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    save_file({**load_file(untied / WEIGHTS), name: torch.ones(4)}, tmp_path / "model" / WEIGHTS)
    check_weights(tmp_path / "model")


@pytest.fixture(scope="module")
def cut(untied: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model in two files with an index."""
    folder = tmp_path_factory.mktemp("cut") / "model"
    shutil.copytree(untied, folder)
    tensors = load_file(untied / WEIGHTS)
    names = sorted(tensors)
    (folder / WEIGHTS).unlink()
    weight_map: dict[str, str] = {}
    for file, part in (("model-1.safetensors", names[:9]), ("model-2.safetensors", names[9:])):
        save_file({name: tensors[name] for name in part}, folder / file)
        weight_map |= dict.fromkeys(part, file)
    (folder / WEIGHTS_INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


def test_a_model_in_several_files_is_whole(cut: Path, untied: Path) -> None:
    assert check_weights(cut).keys() == check_weights(untied).keys()


def mapped(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        index = json.loads((folder / WEIGHTS_INDEX).read_text())
        change(index["weight_map"])
        (folder / WEIGHTS_INDEX).write_text(json.dumps(index))

    return damage


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (mapped(lambda table: table.update({NORM: "model-1.safetensors"})),
         rf"model-2.*tensor '{NORM}': .*index\.json places it in 'model-1\.safetensors'"),
        (mapped(lambda table: table.pop(NORM)), rf"tensor '{NORM}': .*index\.json does not list it"),
        (mapped(lambda table: table.update(ghost="model-1.safetensors")), r"'ghost' is not in model-1\.safetensors"),
        (mapped(lambda table: table.update({NORM: "../model-1.safetensors"})),
         r"'\.\./model-1\.safetensors' in its weight_map"),
        (mapped(lambda table: table.update({NORM: 7})), "7 in its weight_map"),
        (mapped(lambda table: table.clear()), "no weight_map"),
        (lambda folder: (folder / "model-2.safetensors").unlink(), r"model-2\.safetensors: no such file"),
        (lambda folder: (folder / WEIGHTS_INDEX).write_text("[" * 100_000), "not JSON .nested too deeply"),
        (lambda folder: shutil.copyfile(folder / "model-1.safetensors", folder / WEIGHTS),
         r"both model\.safetensors and model\.safetensors\.index\.json"),
    ],
)  # fmt: skip
def test_an_index_that_does_not_fit_its_files_is_refused(
    cut: Path, tmp_path: Path, damage: Callable[[Path], object], message: str
) -> None:
    shutil.copytree(cut, tmp_path / "model")
    damage(tmp_path / "model")
    with pytest.raises(BadInputError, match=message):
        check_weights(tmp_path / "model")


def test_a_second_file_that_vllm_would_read_too_is_refused(untied: Path, tmp_path: Path) -> None:
    shutil.copytree(untied, tmp_path / "model")
    save_file({NORM: torch.zeros(32)}, tmp_path / "model/z.safetensors")
    with pytest.raises(BadInputError, match=r"'z\.safetensors' beside model\.safetensors"):
        check_weights(tmp_path / "model")


def test_a_file_that_the_index_does_not_name_is_not_hashed(cut: Path, tmp_path: Path) -> None:
    shutil.copytree(cut, tmp_path / "model")
    before, _ = tensor_digests(cut, "bfloat16")
    save_file({NORM: torch.zeros(32)}, tmp_path / "model/z.safetensors")
    assert tensor_digests(tmp_path / "model", "bfloat16")[0] == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": True}, "hidden_size: True; expected a whole number"),
        ({"hidden_size": "32"}, "hidden_size: '32'; expected a whole number"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers: 1000000000; expected a whole number from 1 to 4096"),
        ({"num_hidden_layers": 0}, "num_hidden_layers: 0"),
        ({"vocab_size": None}, "vocab_size: no value"),
        ({"num_key_value_heads": 3}, "num_key_value_heads: 3; expected a divisor of num_attention_heads, 4"),
        ({"num_attention_heads": 5, "num_key_value_heads": 5, "head_dim": None}, "hidden_size: 32; expected a mult"),
        ({"head_dim": 7}, "head_dim: 7; expected an even number"),
        ({"rms_norm_eps": float("inf")}, "not JSON .Infinity is not a JSON number"),
        ({"rope_parameters": {"rope_theta": -1.0}}, r"rope_theta: -1\.0; expected a finite number above 0"),
        ({"rope_parameters": [1]}, r"rope_parameters: \[1\]; expected a table"),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 8.0}}, "low_freq_factor: no value"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings: 'no'; expected true or false"),
        (
            {"model_type": "llama"},
            "architectures: .*Qwen2ForCausalLM.*; expected LlamaForCausalLM, the architecture of model_type llama",
        ),
        ({"model_type": ["qwen2"]}, "model_type: .*expected one of .*qwen2[^;]*; choose"),
        (
            {"model_type": "gpt2", "intermediate_size": None},
            "model_type: 'gpt2'; expected one of gemma3_text, .*smollm3; its config lacks intermediate_size; choose",
        ),
        ({"use_sliding_window": True}, "use_sliding_window: True; expected false"),
        ({"hidden_act": "relu"}, "hidden_act: 'relu'; expected 'silu'"),
        ({"partial_rotary_factor": 0.5}, r"partial_rotary_factor: 0\.5; expected 1, as in every qwen2"),
        ({"rope_parameters": {"rope_type": "dynamic"}}, "rope_type: 'dynamic'; expected 'default', 'linear', 'llama3'"),
        (
            {"rope_parameters": {"rope_type": "longrope", "short_factor": [1.0]}},
            "short_factor: .1.0.; expected 4 finite",
        ),
        ({"quantization_config": {"bits": 4}}, "quantized weights"),
        (
            {"auto_map": {"AutoConfig": "evil.Config"}, "architectures": ["Evil"]},
            "auto_map: Python code of the model's own.*never run",
        ),
        ({"vision_config": {"auto_map": {"AutoConfig": "evil.Config"}}}, "auto_map: Python code of the model's own"),
        (
            {"_attn_implementation": "evil/kernel"},
            "_attn_implementation: a kernel of the hub, 'evil/kernel'.*never run",
        ),
    ],
)
def test_a_config_that_states_no_shape_is_refused(
    untied: Path, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    shutil.copytree(untied, tmp_path / "model")
    path = tmp_path / "model/config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(BadInputError, match=message):
        check_weights(tmp_path / "model")


def test_larger_sizes_in_the_config_than_in_the_file_are_noticed(untied: Path, tmp_path: Path) -> None:
    """Without the check, an engine would serve random numbers for what is not there."""
    shutil.copytree(untied, tmp_path / "model")
    path = tmp_path / "model/config.json"
    config = {**json.loads(path.read_text()), "num_key_value_heads": 4}
    path.write_text(json.dumps(config))
    with pytest.raises(BadInputError, match=r"k_proj\.weight: shape \[16, 32\]; expected \[32, 32\]"):
        check_weights(tmp_path / "model")
