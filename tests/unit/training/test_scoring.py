"""Log-probabilities of a batch under a model that is not trained."""

from pathlib import Path

import pytest
import torch
from safetensors.numpy import save_file

from stages.training.job import ScoreJob
from stages.training.model.placement import load_reference
from stages.training.scoring import batch_logprobs
from stages.training.trainer_batch import TrainerBatch
from stages.training.worker_group.hardware import TrainHardware
from tests.support.training import CPU, logprobs_of
from tests.support.trees import VOCAB, tree_batch


@pytest.mark.usefixtures("world_of_one")
@pytest.mark.parametrize("micro_batch_tokens", [1, 4096])
def test_every_token_in_the_loss_has_its_log_probability(other: Path, tmp_path: Path, micro_batch_tokens: int) -> None:
    path = tmp_path / "batch.safetensors"
    save_file(tree_batch(1, [2, 1, 3, 1, 2], steps=2), path)
    hardware = TrainHardware(compute_dtype="fp32", micro_batch_tokens=micro_batch_tokens)
    job = ScoreJob(
        checkpoint_dir=other, batch_file=path, temperature=0.7, hardware=hardware, out_file=tmp_path / "out",
        events_file=tmp_path / "events",
    )  # fmt: skip
    batch = TrainerBatch(path, VOCAB)
    policy = load_reference(other, VOCAB, hardware, CPU, sharded=False)
    logprobs = batch_logprobs(policy, batch, job, CPU, lambda: None)
    addresses, _ = batch.loss_sequences(list(range(batch.shape[0])))
    assert torch.equal(torch.nonzero(logprobs.isfinite()).view(-1), addresses)
    expected = logprobs_of(other, path, 0.7)
    torch.testing.assert_close(logprobs[addresses], expected.detach(), atol=1e-5, rtol=1e-5)
