"""A row that cannot fit is refused with its size, and none that could."""

from pathlib import Path

import pytest
import torch
from safetensors.numpy import save_file
from torch import Tensor

from artifacts.errors import BadInputError
from stages.models.shape import read_shape
from stages.training.model.master_weights import TrainedWeights
from stages.training.row_memory import check_rows_fit, free_bytes, least_activation_bytes_a_token
from stages.training.trainable import EVERYTHING, TrainableConfig
from stages.training.trainer_batch import TrainerBatch
from stages.training.worker_group.hardware import TrainHardware
from tests.support.policies import ARCHITECTURES
from tests.support.trees import VOCAB, save_model, tree_batch

CPU = torch.device("cpu")


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize(
    "trainable",
    [
        EVERYTHING,
        TrainableConfig(parameters="attention"),
        TrainableConfig(parameters="top_layers", top_fraction=0.5),
        TrainableConfig(parameters="lora", rank=2),
    ],
    ids=lambda config: config.parameters,
)
@pytest.mark.parametrize("architecture", ["qwen2", "qwen3", "llama-biases"])
def test_the_forward_pass_keeps_at_least_the_bound(
    architecture: str, trainable: TrainableConfig, checkpointing: bool, tmp_path: Path
) -> None:
    name, changes = ARCHITECTURES[architecture]
    save_model(tmp_path / "model", name, **changes)
    save_file(tree_batch(3, [2], prompt=(90, 140), completion=(20, 90)), tmp_path / "batch.safetensors")
    batch, shape = TrainerBatch(tmp_path / "batch.safetensors", VOCAB), read_shape(tmp_path / "model")
    hardware = TrainHardware(activation_checkpointing=checkpointing, compute_dtype="fp32", device="cpu")
    weights = TrainedWeights(shape, hardware, CPU, False, trainable)
    weights.load_checkpoint(tmp_path / "model")
    parameters = {p.untyped_storage().data_ptr() for p in weights.policy.parameters()}
    kept: dict[int, int] = {}
    alive: list[Tensor] = []  # so that no storage is used twice

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = storage.nbytes()
            alive.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        inputs = weights.policy.inputs(batch.flat([0]), torch.float32, CPU)
        logprobs, *_ = weights.policy(inputs, 1.0)
    assert logprobs.requires_grad
    bound = least_activation_bytes_a_token(shape, trainable, 4, checkpointing=checkpointing) * batch.row_tokens[0]
    assert 0 < bound <= sum(kept.values())


def test_the_bound_by_hand(tmp_path: Path) -> None:
    save_model(tmp_path, "Qwen2", tie_word_embeddings=True)  # E 32, 4 and 2 heads of 8, F 48, 2 layers
    shape = read_shape(tmp_path)
    assert least_activation_bytes_a_token(shape, EVERYTHING, 2, checkpointing=True) == 2 * 32 * 2
    whole = 2 * (32 + 2 * 32 + 2 * 16 + 2 * 48) * 2
    assert least_activation_bytes_a_token(shape, EVERYTHING, 2, checkpointing=False) == whole
    half = TrainableConfig(parameters="top_layers", top_fraction=0.5)
    assert least_activation_bytes_a_token(shape, half, 2, checkpointing=False) == whole // 2


def test_the_longest_row_is_refused_with_its_size() -> None:
    file = Path("batch.safetensors")
    check_rows_fit([10, 4096, 7], 1 << 20, 4096 << 20, file)
    with pytest.raises(BadInputError) as refused:
        check_rows_fit([10, 4097, 7], 1 << 20, 4096 << 20, file)
    assert str(refused.value) == (
        "batch.safetensors: row 1: 4097 tokens, whose activations take at least 4.0 GiB; expected at most 4096 "
        "tokens, because the weights leave 4.0 GiB of memory; lower pack.row_tokens, or set "
        "trainer.activation_checkpointing = true"
    )


def test_the_weights_count_once(tmp_path: Path) -> None:
    save_model(tmp_path, "Qwen2", tie_word_embeddings=True)
    both = [
        TrainedWeights(read_shape(tmp_path), TrainHardware(compute_dtype=compute, device="cpu"), CPU, False)
        for compute in ("fp32", "bf16")
    ]
    count = sum(p.numel() for p in both[0].masters.values())
    tensors = len(both[0].masters)
    # Masters and two moments of 4 bytes and a step of 4 each; bf16 adds a copy of 2.
    assert free_bytes(both[0], CPU) - free_bytes(both[1], CPU) == 2 * count
    total = free_bytes(both[0], CPU) + 12 * count + 4 * tensors
    assert total == free_bytes(both[1], CPU) + 14 * count + 4 * tensors > 0
