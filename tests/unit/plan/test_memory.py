"""The memory of a trainer process: by hand, and against the trainer itself on tensors without data."""

from dataclasses import replace
from pathlib import Path

import pytest

from flows.config.model_size import LayerSizes, ModelSize, shape_of_config
from flows.plan.memory import Precision, TrainerMemory, saving_memory, sequence_cache_bytes, trainer_memory
from stages.training.worker_group.hardware import TrainHardware

SHAPE = LayerSizes(vocabulary=1000, hidden=64, layers=4, queries=64, keys=32, intermediate=128, tied=False)
SIZE = ModelSize(SHAPE.parameters, "", SHAPE)
MIXED = Precision("bf16", "fp32")


def memory(tokens: int = 100, size: ModelSize = SIZE, cuda: bool = False, **settings: object) -> TrainerMemory:
    hardware = TrainHardware.model_validate({"compute_dtype": "bf16", **settings})
    assert size.parameters is not None
    return trainer_memory(size, size.parameters, hardware, MIXED, tokens, cuda=cuda)


def test_weights_and_moments_by_hand() -> None:
    nameless = ModelSize(1e9, "")
    alone = memory(size=nameless)
    assert (alone.weights, alone.optimizer, alone.gradients) == (6e9, 8e9, 4e9)  # masters 4 and their copy 2
    eight = memory(size=nameless, processes=8)
    assert (eight.weights, eight.optimizer, eight.gradients) == (0.5e9, 1e9, 0.5e9)  # FSDP2 has no copy
    assert (alone.resident, alone.peak) == (14e9, 18e9)


def test_a_step_by_hand() -> None:
    # A token: 2 x (2 x 64 + 2 x 64 + 2 x 32 + 4 x 128) = 1,664 and both norms 16 x 64 = 1,024; 4 layers and the last
    # norm, 64 x (2 + 8) = 640. The head, in one chunk: 2 x 2 x 64,000, and 2 x (100 x 1,000 + 100 x 64).
    alone = memory()
    assert alone.moment == "head" and alone.gathered == 0
    assert alone.activations == 100 * (4 * (1664 + 1024) + 640)
    assert alone.logits == 256_000 + 200_000 + 12_800
    # On a GPU a norm keeps 2 x 64 fp32 less, and a whole chunk of 100 x 1,000 is in fp32 twice.
    gpu = memory(cuda=True)
    assert gpu.activations == 100 * (4 * (1664 + 512) + 640 - 256)
    assert gpu.logits == alone.logits + 800_000
    # Of several processes each gathers embedding, head and a layer: 2 x (128,000 + 36,864).
    assert memory(processes=2).gathered == 2 * (128_000 + SHAPE.layer) and SHAPE.layer == 36_864
    # With chunks of 50 there is an fp32 sum of 64,000 gradients, and half of the probabilities.
    assert memory(logprob_chunk_tokens=50).logits == 512_000 + 100_000 + 12_800


def test_a_tensor_group_by_hand() -> None:
    # Two processes hold half of each weight, and gather the head of 64,000 whole. Of a token's activations the residual
    # stream and the norms are not divided: 2 x (2 x 64 + 704 / 2) + 16 x 64.
    group = memory(processes=2, tensor_parallel=2)
    assert (group.weights, group.optimizer) == (2 * SHAPE.parameters, 4 * SHAPE.parameters)
    assert group.gathered == 128_000 + SHAPE.layer + 2 * 64_000
    assert group.activations == 100 * (4 * (960 + 1024) + 640)
    assert group.logits == memory().logits, "each computes all logits"


def test_few_tokens_and_checkpointing_by_hand() -> None:
    # With one token the gradients outside the layers decide, 128,000 in bf16 and in fp32.
    end = memory(tokens=1, processes=8)
    assert (end.moment, end.gathered, end.activations) == ("end", 768_000, 0)
    checkpointed = memory(tokens=100_000, activation_checkpointing=True, processes=8)
    assert checkpointed.moment == "layer"
    assert checkpointed.activations == 100_000 * (2 * 64 * 3 + 1664 + 1024 + 2 * (128 + 64))
    assert sequence_cache_bytes(SHAPE, 50, 2) == 50 * 2 * 4 * 32 * 2
    assert sequence_cache_bytes(replace(SHAPE, sliding_layers=3, window=20), 50, 2) == (50 + 3 * 20) * 2 * 32 * 2


def test_saving_by_hand() -> None:
    # The embedding is 64,000 in bf16, and a quarter of it is cast beside; all weights fit into one file.
    whole = 2.0 * SHAPE.parameters
    four = TrainHardware(processes=4)
    assert saving_memory(SHAPE, four, averaged=False) == (128_000 + 32_000, whole)
    assert saving_memory(SHAPE, TrainHardware(), averaged=False) == (128_000, whole)
    offloaded = four.model_copy(update={"cpu_offload": True})
    assert saving_memory(SHAPE, offloaded, averaged=False) == (0, whole + 32_000)
    # An average is in fp32, and the host holds the new and the old tensor beside the one that is written.
    assert saving_memory(SHAPE, four, averaged=True) == (256_000 + 64_000, 2 * whole + 2 * 256_000)
    large = LayerSizes(152_064, 5120, 64, 5120, 1024, 27_648, tied=False)  # 32B: 65 GB, in files of 4 GiB
    assert saving_memory(large, four, averaged=False)[1] == 4 << 30


@pytest.mark.parametrize(
    ("processes", "checkpointed", "group", "completions"),
    [
        pytest.param(1, False, 1, 7, marks=pytest.mark.long),
        pytest.param(8, True, 1, 7, marks=pytest.mark.release),
        pytest.param(8, False, 4, 3, marks=pytest.mark.release),
    ],
)
def test_the_trainer_agrees(tmp_path: Path, processes: int, checkpointed: bool, group: int, completions: int) -> None:
    from stages.training.job import OptimizerConfig
    from tests.support.simulated_training import decoder_shape, row_columns, simulated_step

    shape = LayerSizes(152_064, 5120, 2, 5120, 1024, 13_824, tied=False)  # two layers of the 14B model
    tokens = 1024 * (1 + completions)
    hardware = TrainHardware(
        processes=processes, compute_dtype="bf16", activation_checkpointing=checkpointed, micro_batch_tokens=tokens,
        device="cpu", tensor_parallel=group,
    )  # fmt: skip
    columns = row_columns(2 * processes, 1024, completions, 1024)
    simulated = simulated_step(tmp_path, decoder_shape(shape), hardware, columns, optimizer=OptimizerConfig())
    planned = memory(tokens, ModelSize(shape.parameters, "", shape), **hardware.model_dump())
    assert planned.resident == pytest.approx(simulated["held"], rel=0.01)
    assert planned.peak == pytest.approx(simulated["total"], rel=0.1)


@pytest.mark.release
@pytest.mark.parametrize("family", ["gemma3_text", "olmo2", "phi3", "granite"])
def test_the_trainer_agrees_on_families(tmp_path: Path, family: str) -> None:
    """Norms on both sides, of whole projections, and fused matrices; a window would need a mask on a CPU only."""
    from stages.models.shape import describe
    from tests.support.simulated_training import row_columns, simulated_step

    config = {
        "model_type": family, "hidden_size": 2560, "intermediate_size": 10_240, "num_hidden_layers": 2,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 320, "vocab_size": 50_304,
        "max_position_embeddings": 8192, "sliding_window": 8192, "tie_word_embeddings": family == "gemma3_text",
    }  # fmt: skip
    shape = shape_of_config(config)
    hardware = TrainHardware(compute_dtype="bf16", micro_batch_tokens=8192, device="cpu")
    simulated = simulated_step(tmp_path, describe(tmp_path, config), hardware, row_columns(2, 1024, 7, 1024))
    planned = memory(8192, ModelSize(shape.parameters, "", shape), **hardware.model_dump())
    assert planned.resident == pytest.approx(simulated["held"], rel=0.01)
    assert planned.peak == pytest.approx(simulated["total"], rel=0.1)
