"""The packed forward equals transformers on each sequence alone, for every architecture."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file
from transformers import AutoModelForCausalLM

from stages.training.model.policy import Policy
from stages.training.trainer_batch import FlatRows, TrainerBatch
from tests.support.policies import ARCHITECTURES, load_policy, save_policy
from tests.support.trees import VOCAB, save_model, tree_batch


@pytest.fixture(scope="module", params=sorted(ARCHITECTURES))
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    architecture, changes = ARCHITECTURES[request.param]
    save_model(folder, architecture, **changes)
    return folder


def run(policy: Policy, flat: FlatRows, temperature: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    inputs = policy.inputs(flat, torch.float32, torch.device("cpu"))
    return policy(inputs, temperature)


def alone(reference: Any, flat: FlatRows, temperature: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities and entropies of every completion token from its own, unpacked sequence."""
    logprobs, entropies = torch.empty(flat.sequences.shape), torch.empty(flat.sequences.shape)
    for segment in flat.sequences.unique().tolist():
        inside = flat.segment_ids == segment
        parent = flat.parent_ids[inside][0]
        sequence = torch.cat([flat.tokens[flat.segment_ids == parent], flat.tokens[inside]])
        logp = torch.log_softmax(reference(sequence[None]).logits[0].float() / temperature, -1)
        mine = flat.sequences == segment
        positions = flat.positions[flat.predictors[1][mine]]
        logprobs[mine] = logp[positions - 1, sequence[positions]]
        entropies[mine] = -(logp.exp() * logp).sum(-1)[positions - 1]
    return logprobs, entropies


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
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


@pytest.mark.parametrize("changes", [{}, {"chunk_tokens": 5}, {"activation_checkpointing": True}])
def test_gradients_equal_transformers(checkpoint: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    """Through the whole model: blocks, merge of the parts, fused head, entropies."""
    policy = load_policy(checkpoint, **changes)
    reference = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    save_file(tree_batch(3, [2, 1], prompt=(5, 30), completion=(1, 20)), tmp_path / "batch.safetensors")
    flat = TrainerBatch(tmp_path / "batch.safetensors", VOCAB).flat([0, 1])
    for logprobs, entropies in (run(policy, flat, 0.9), alone(reference, flat, 0.9)):
        (logprobs @ flat.advantages + 0.3 * entropies @ flat.sampler_logprobs).backward()
    from stages.training.checkpointing.checkpoint import published_name

    theirs = dict(reference.named_parameters())
    for name, parameter in policy.named_parameters():
        expected = theirs[published_name(name)].grad
        torch.testing.assert_close(
            parameter.grad, expected, atol=3e-4, rtol=1e-3, msg=lambda text, name=name: f"{name}: {text}"
        )


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
