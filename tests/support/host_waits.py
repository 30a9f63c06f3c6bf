"""Training jobs whose steps need every kind of number from host and device, for tests of who waits for whom."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.numpy import save_file

from stages.models.shape import DecoderShape, read_shape
from stages.training.job import LossConfig, ValueJob
from stages.training.model.master_weights import TrainedWeights
from stages.training.model.placement import place_policy
from stages.training.model.policy import Policy
from stages.training.trainer import Trainer
from stages.training.trainer_batch import TrainerBatch
from stages.training.worker_group.hardware import TrainHardware
from tests.support.jobs import train_job
from tests.support.trees import VOCAB, save_model, tree_batch

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "all terms": {
        "kind": "gspo", "old_logprobs": "trainer", "importance_correction": "sequence_truncate", "kl_coef": 0.1,
        "entropy_coef": 0.02, "positive_nll": 0.1, "aggregation": "group_mean",
    },
    "divergence in the reward": {"old_logprobs": "trainer", "kl_coef": 0.1, "kl_place": "sequence_reward"},
    "text": {"kind": "cross_entropy"},
    "values": {},
}  # fmt: skip


def trainer_of(case: str, folder: Path, device: torch.device, hardware: TrainHardware) -> tuple[Trainer, TrainerBatch]:
    """Returns a trainer of a random model that is ready for its first step, and its batch of two steps.

    Args:
        case: A key of `CASES`; `values` trains a critic.
        folder: For model and batch.
        device: Device of the weights.
        hardware: Precision and sizes.
    """
    model, path, loss = folder / "model", folder / "batch.safetensors", LossConfig.model_validate(CASES[case])
    save_model(model, "Qwen3", tie_word_embeddings=False, head_dim=16)
    save_file(tree_batch(3, [2, 1, 2, 1], steps=2), path)
    value = ValueJob(head="bounded", clip=0.1, lambda_=0.9) if case == "values" else None
    job = train_job(
        checkpoint_dir=model, batch_file=path, learning_rates=[1e-3] * 2, hardware=hardware, loss=loss, value=value,
        reference_dir=model if loss.kl_coef else None, out_checkpoint_dir=folder / "out",
        events_file=folder / "events.jsonl",
    )  # fmt: skip
    shape: DecoderShape = replace(read_shape(model), value_head=value and value.head)
    weights, batch = TrainedWeights(shape, hardware, device, sharded=False), TrainerBatch(path, VOCAB)
    if device.type != "meta":
        weights.load_checkpoint(model)
    trainer = Trainer(weights, job, batch, lambda: None)

    def reference() -> Policy:
        policy = place_policy(shape, hardware, device, False, weights.dtype)
        assert isinstance(policy, Policy)
        for p, q in zip(policy.parameters(), weights.policy.parameters(), strict=True):
            p.data.copy_(q.data)
        return policy

    trainer.prepare(reference)
    return trainer, batch
