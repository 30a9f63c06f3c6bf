"""The trainer computes what transformers computes on a real model: SmolLM2-135M-Instruct out of its package."""

from functools import cache
from pathlib import Path

import gguf
import pytest
import torch
import transformers

from stages.grpo.groups import Branch, Group
from stages.models.shape import read_shape
from stages.models.source import GgufPackageModel, find_packaged_file
from stages.training.checkpointing.checkpoint import published_name
from stages.training.model.policy import Policy
from stages.training.trainer_batch import TrainerBatch
from tests.support.trainer_work import save_batch
from tests.support.training import logits_of
from tests.support.trees import SMOLLM2

pytestmark = pytest.mark.long

# "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
PROMPT = [1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198]
RIGHT = [504, 3575, 282, 4649, 314, 7042, 30, 2]
"""The capital of France is Paris.<|im_end|>"""
WRONG = [46292, 28, 339, 1510, 30]
"""Rome, I think."""


def load_smollm2() -> transformers.LlamaForCausalLM:
    """The packaged weights, dequantized; without a config, transformers would parse the tokenizer's tables twice."""
    source = GgufPackageModel()
    file = find_packaged_file(source.package, source.file)
    config = transformers.LlamaConfig(
        tie_word_embeddings=True, rms_norm_eps=1e-5, max_position_embeddings=8192,
        rope_parameters={"rope_type": "default", "rope_theta": 1e5}, **SMOLLM2,
    )  # fmt: skip
    return transformers.LlamaForCausalLM.from_pretrained(
        str(file.parent), gguf_file=file.name, config=config, dtype=torch.float32,
        quantization_config=transformers.GgufConfig(gguf_file=file.name, dequantize=True),
    )  # fmt: skip


def test_packed_logits_equal_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # transformers makes the same table anew for each of 397 modules: half of the time.
    monkeypatch.setattr(gguf, "get_tensor_name_map", cache(gguf.get_tensor_name_map))
    reference = load_smollm2()
    reference.config.save_pretrained(tmp_path)
    with torch.device("meta"):
        policy = Policy(read_shape(tmp_path), activation_checkpointing=False, chunk_tokens=2048)
    policy.place_frequencies()
    theirs = dict(reference.named_parameters())
    mine = {name: theirs.pop(published_name(name, policy.shape)) for name, _ in policy.named_parameters()}
    assert not theirs
    policy.load_state_dict(mine, assign=True)  # one copy in memory
    group = Group(PROMPT, [Branch(tokens, [0.0] * len(tokens), 1.0) for tokens in (RIGHT, WRONG)])
    flat = TrainerBatch(save_batch([group], tmp_path / "batch.safetensors"), policy.shape.vocab_size).flat([0])
    with torch.no_grad():
        logits = logits_of(policy, policy.inputs(flat, torch.float32, torch.device("cpu")))
        alone = [
            reference(torch.tensor([PROMPT + tokens])).logits[0, len(PROMPT) - 1 : -1] for tokens in (RIGHT, WRONG)
        ]
    assert alone[0].argmax(-1).tolist() == RIGHT, "these are the weights of a model that knows"
    torch.testing.assert_close(logits, torch.cat(alone), atol=2e-3, rtol=1e-4)
