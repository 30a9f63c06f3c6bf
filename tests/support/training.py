"""Training in a test's own process: metrics, weights and log-probabilities of tiny models."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.numpy import save_file

from stages.models.shape import read_shape
from stages.training.job import LossConfig, OptimizerConfig
from stages.training.model.master_weights import TrainedWeights
from stages.training.model.placement import load_reference
from stages.training.model.policy import DecoderModel, ModelInputs, Policy
from stages.training.results import StepMetrics
from stages.training.trainable import EVERYTHING, TrainableConfig
from stages.training.trainer import Trainer
from stages.training.trainer_batch import TrainerBatch
from stages.training.worker_group.hardware import TrainHardware
from tests.support.jobs import train_job
from tests.support.trees import VOCAB

CPU = torch.device("cpu")


def train(
    checkpoint: Path, folder: Path, columns: dict[str, NDArray[Any]], *, sharded: bool = False, epochs: int = 2,
    loss: LossConfig | None = None, reference: Path | None = None, **hardware: Any,
) -> tuple[list[StepMetrics], dict[str, torch.Tensor]]:  # fmt: skip
    """Trains in this process and returns metrics and masters."""
    path = folder / "batch.safetensors"
    save_file(columns, path)
    steps = int(columns["minibatch"].max()) + 1
    layout = TrainHardware(**{"compute_dtype": "fp32", **hardware})
    job = train_job(
        checkpoint_dir=checkpoint, batch_file=path, learning_rates=[0.01] * steps * epochs, epochs=epochs,
        loss=loss or LossConfig(), optimizer=OptimizerConfig(eps=1e-3), hardware=layout,
        reference_dir=reference, out_checkpoint_dir=folder / "out", events_file=folder / "events.jsonl",
    )  # fmt: skip
    weights = TrainedWeights(read_shape(checkpoint), layout, CPU, sharded)
    weights.load_checkpoint(checkpoint)
    trainer = Trainer(weights, job, TrainerBatch(path, VOCAB), lambda: None)
    trainer.prepare(lambda: load_reference(reference or checkpoint, VOCAB, layout, CPU, sharded))
    metrics = [trainer.step(number, rows, steps * epochs) for number, rows in trainer.steps()]
    return metrics, {name: p.detach().full_tensor() if sharded else p.detach() for name, p in weights.masters.items()}  # pyright: ignore[reportAttributeAccessIssue]


def assert_same(first: tuple[Any, Any], second: tuple[Any, Any], tolerance: float = 2e-5) -> None:
    for a, b in zip(first[0], second[0], strict=True):
        assert a.loss == pytest.approx(b.loss, abs=tolerance)
        assert a.grad_norm == pytest.approx(b.grad_norm, rel=20 * tolerance)
        assert a.loss_tokens == b.loss_tokens
    for name, tensor in first[1].items():
        torch.testing.assert_close(tensor, second[1][name], atol=tolerance, rtol=1e-4)


def repacked(columns: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """The same groups, one a row, in reverse."""
    rows: list[tuple[int, NDArray[Any]]] = []
    for row, parents in enumerate(columns["parent_ids"]):
        rows += [(row, np.flatnonzero(parents == parent)) for parent in np.unique(parents[parents >= 0])]
    rows = sorted(rows, key=lambda item: (int(columns["minibatch"][item[0]]), -item[0]))
    width = max(len(where) for _, where in rows)
    out = {"minibatch": columns["minibatch"][[row for row, _ in rows]]}
    for name, column in columns.items():
        if name != "minibatch":
            out[name] = np.full((len(rows), width), -1 if name in ("segment_ids", "parent_ids") else 0, column.dtype)
            for index, (row, where) in enumerate(rows):
                out[name][index, : len(where)] = column[row, where]
    return out


def logprobs_of(folder: Path, path: Path, temperature: float = 1.0) -> torch.Tensor:
    """Log-probabilities of all tokens in the loss under a model."""
    policy = load_reference(folder, VOCAB, TrainHardware(compute_dtype="fp32"), CPU, sharded=False)
    batch = TrainerBatch(path, VOCAB)
    flat = batch.flat(list(range(batch.shape[0])))
    return policy(policy.inputs(flat, torch.float32, CPU), temperature)[0]


def logits_of(model: DecoderModel, inputs: ModelInputs) -> torch.Tensor:
    """Logits [C, V] of the predictors, which the trainer never holds as a whole."""
    assert isinstance(model, Policy)
    weight = model.decoder.tok_embeddings.weight if model.head is None else model.head.weight
    return model.predicting_states(inputs).to(weight.dtype) @ weight.t() / model.shape.logit_divisor


def batch_logits(folder: Path, batch_file: Path, trainable: TrainableConfig = EVERYTHING) -> torch.Tensor:
    """Logits of a completion's tokens, the only ones of a batch, under a checkpoint in float32."""
    shape = read_shape(folder)
    weights = TrainedWeights(shape, TrainHardware(compute_dtype="fp32"), CPU, sharded=False, trainable=trainable)
    weights.load_checkpoint(folder)
    flat = TrainerBatch(batch_file, shape.vocab_size).flat([0])
    with torch.no_grad():
        return logits_of(weights.policy, weights.policy.inputs(flat, torch.float32, CPU))
