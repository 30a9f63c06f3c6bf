"""The packed forward equals transformers on each sequence alone, for every architecture."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file
from transformers import AutoModelForCausalLM

from artifacts.errors import BadInputError
from stages.models.rope import Rope
from stages.models.shape import DecoderShape, Experts, read_shape
from stages.training.checkpointing.checkpoint import published_name
from stages.training.model.master_weights import TrainedWeights
from stages.training.model.parts import Mixture, feed_forward
from stages.training.model.policy import Policy
from stages.training.trainable import TrainableConfig
from stages.training.trainer_batch import TrainerBatch
from stages.training.worker_group.hardware import TrainHardware
from tests.support.policies import (
    ARCHITECTURES,
    alone,
    gradient_of,
    load_policy,
    parity_with_transformers,
    run,
    save_policy,
)
from tests.support.trees import VOCAB, save_model, tree_batch

CPU = torch.device("cpu")


@pytest.fixture(scope="module", params=sorted(ARCHITECTURES))
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    architecture, changes = ARCHITECTURES[request.param]
    save_model(folder, architecture, **changes)
    return folder


@settings(max_examples=4, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(seed=st.integers(0, 10**6), groups=st.lists(st.integers(1, 3), min_size=1, max_size=4), hot=st.booleans())
def test_packed_equals_each_sequence_alone(
    checkpoint: Path, tmp_path: Path, seed: int, groups: list[int], hot: bool
) -> None:
    policy = load_policy(checkpoint)
    reference = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    save_file(tree_batch(seed, groups), tmp_path / "batch.safetensors")
    flat = TrainerBatch(tmp_path / "batch.safetensors", VOCAB).flat(list(range(len(groups))))
    temperature = 0.7 if hot else 1.0
    with torch.no_grad():
        packed, expected = run(policy, flat, temperature), alone(reference, flat, temperature)
    torch.testing.assert_close(packed[0], expected[0], atol=2e-5, rtol=2e-5)
    torch.testing.assert_close(packed[1], expected[1], atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize(
    "changes", [{}, {"chunk_tokens": 5, "activation_checkpointing": True}], ids=["plain", "savers"]
)
def test_gradients_equal_transformers(checkpoint: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    """Through the whole model: blocks, merge of the parts, fused head, entropies."""
    parity = parity_with_transformers(checkpoint, tmp_path, **changes)
    assert parity.logprobs < 1e-5
    for name, distance in parity.gradients.items():
        assert distance < 1e-5, name


@pytest.mark.usefixtures("world_of_one")
def test_written_checkpoint_opens_in_transformers_with_the_same_logits(checkpoint: Path, tmp_path: Path) -> None:
    policy = load_policy(checkpoint)
    save_policy(policy, checkpoint, tmp_path / "copy")
    tokens = torch.arange(30)[None] % VOCAB
    with torch.no_grad():
        first, second = (
            AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)(tokens).logits
            for folder in (checkpoint, tmp_path / "copy")
        )
    assert torch.equal(first, second)


@pytest.mark.usefixtures("world_of_one")
def test_merged_adapters_have_in_transformers_the_log_probabilities_of_the_policy(
    checkpoint: Path, tmp_path: Path
) -> None:
    shape = read_shape(checkpoint)
    lora = TrainableConfig(parameters="lora", rank=2, alpha=4.0, merge=True)
    if shape.experts is not None:
        with pytest.raises(BadInputError, match=r"projections: gate_proj; expected .*: experts have no adapters"):
            TrainedWeights(shape, TrainHardware(), CPU, False, lora)
        lora = lora.model_copy(update={"projections": ("q_proj", "k_proj", "v_proj", "o_proj")})
    weights = TrainedWeights(shape, TrainHardware(compute_dtype="fp32"), CPU, False, lora)
    weights.load_checkpoint(checkpoint)
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in weights.optimizer.param_groups[0]["params"]:
            p.add_(0.1 * torch.randn(p.shape, generator=draw))
    weights.save_average(checkpoint, 0.0, tmp_path / "merged")  # in float32
    save_file(tree_batch(3, [2, 1]), tmp_path / "batch.safetensors")
    flat = TrainerBatch(tmp_path / "batch.safetensors", VOCAB).flat([0, 1])
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32)
    assert isinstance(weights.policy, Policy)
    with torch.no_grad():
        (adapted, _), (expected, _) = run(weights.policy, flat), alone(merged, flat)
        before, _ = run(load_policy(checkpoint), flat)
    torch.testing.assert_close(adapted, expected, atol=1e-5, rtol=0)
    assert (adapted - before).abs().max() > 0.01, "the adapters count"


@pytest.mark.parametrize("recompute", [False, True])
def test_router_loss_and_its_gradients_are_those_of_transformers(tmp_path: Path, recompute: bool) -> None:
    """Of each prompt with its completion by itself; layers that are computed again report once."""
    architecture, changes = ARCHITECTURES["qwen3-moe"]
    save_model(tmp_path / "model", architecture, **changes)
    policy = load_policy(tmp_path / "model", activation_checkpointing=recompute)
    save_file(tree_batch(3, [2, 1], prompt=(5, 30), completion=(1, 20)), tmp_path / "batch.safetensors")
    flat = TrainerBatch(tmp_path / "batch.safetensors", VOCAB).flat([0, 1])
    reference: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32)
    expected = torch.empty(flat.sequences.shape)
    for segment in flat.sequences.unique().tolist():
        inside = flat.segment_ids == segment
        sequence = torch.cat([flat.tokens[flat.segment_ids == flat.parent_ids[inside][0]], flat.tokens[inside]])
        output = reference(sequence[None], output_router_logits=True)
        expected[flat.sequences == segment] = output.aux_loss + 0 * output.logits.sum()  # no gradient is None
    logprobs, _, router = policy(policy.inputs(flat, torch.float32, CPU), 1.0)
    torch.testing.assert_close(router, expected, atol=1e-6, rtol=1e-6)
    assert (expected > changes["num_experts_per_tok"]).all(), "uneven loads"
    (router.mean() + 0 * logprobs.sum()).backward()
    expected.mean().backward()
    theirs, routers = dict(reference.named_parameters()), 0
    for name, parameter in policy.named_parameters():
        grad = gradient_of(theirs, published_name(name, policy.shape))
        assert parameter.grad is not None and (parameter.grad - grad).norm() <= 1e-5 * grad.norm(), name
        routers += "router" in name and bool(grad.norm() > 0)
    assert routers == policy.shape.layers


def test_grouped_products_of_experts_are_those_of_one_after_the_other() -> None:
    """On a CPU in float32; a GPU takes them in bf16. The third expert has no tokens."""
    shape = DecoderShape(
        family="qwen3_moe", vocab_size=8, embed_dim=16, layers=1, heads=1, kv_heads=1, head_dim=16, hidden_dim=24,
        norm_eps=1e-6, rope=Rope(1e4, 16), max_positions=8, tied=True, experts=Experts(5, 2, True),
    )  # fmt: skip
    mixture = feed_forward(shape)
    assert isinstance(mixture, Mixture)
    rows, counts = torch.randn(9, shape.embed_dim), torch.tensor([4, 2, 0, 2, 1])
    weigh = torch.randn(9, shape.embed_dim)
    results: list[list[torch.Tensor]] = []
    for compute in (mixture._one_by_one, mixture._grouped):
        inputs = rows.clone().requires_grad_()
        mixture.zero_grad()
        out = compute(inputs, counts)
        (out * weigh).sum().backward()
        assert inputs.grad is not None
        gradients = [p.grad for name, p in mixture.named_parameters() if "experts" in name]
        assert all(grad is not None for grad in gradients)
        results.append([out.detach(), inputs.grad, *(grad.clone() for grad in gradients if grad is not None)])
    for one, grouped in zip(*results, strict=True):
        torch.testing.assert_close(grouped, one, atol=1e-6, rtol=1e-5)
