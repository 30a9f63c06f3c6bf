"""Random packed batches and tiny random models for the trainer's tests."""

import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

VOCAB = 101
SMOLLM2 = {
    "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
    "num_attention_heads": 9, "num_key_value_heads": 3,
}  # fmt: skip
"""Sizes of SmolLM2-135M, as transformers names them."""


def tree_batch(
    seed: int,
    groups_in_row: list[int],
    *,
    steps: int = 1,
    prompt: tuple[int, int] = (1, 9),
    completion: tuple[int, int] = (1, 7),
    branches: tuple[int, int] = (1, 5),
) -> dict[str, NDArray[Any]]:
    """Draws a packed batch [R, T]: `groups_in_row[r]` prompts in row r, each with some completions.

    Ranges are half open. Rows go to `steps` mini-batches in order.
    """
    draw = np.random.default_rng(seed)
    rows: list[list[tuple[float, ...]]] = []
    segment = 0
    for groups in groups_in_row:
        row: list[tuple[float, ...]] = []
        for _ in range(groups):
            length, parent = int(draw.integers(*prompt)), segment
            row += [(int(draw.integers(VOCAB)), i, parent, parent, 0, 0.0, 0.0) for i in range(length)]
            segment += 1
            for _ in range(draw.integers(*branches)):
                advantage = draw.normal()
                for i in range(draw.integers(*completion)):
                    counts = int(draw.random() < 0.9)
                    sampled = counts * (-np.log(VOCAB) + draw.normal(0.0, 0.3))
                    row.append((draw.integers(VOCAB), length + i, segment, parent, counts, sampled, advantage))
                segment += 1
        rows.append(row)
    width = max(len(row) for row in rows) + 3
    names = "tokens", "position_ids", "segment_ids", "parent_ids", "completion_mask", "sampler_logprobs"
    columns: dict[str, NDArray[Any]] = {}
    for place, name in enumerate((*names, "advantages")):
        dtype = np.int32 if place < 4 else np.uint8 if place == 4 else np.float32
        column = np.full((len(rows), width), -1 if "_ids" in name and name != "position_ids" else 0, dtype)
        for index, row in enumerate(rows):
            column[index, : len(row)] = [token[place] for token in row]
        columns[name] = column
    columns["minibatch"] = (np.arange(len(rows)) * steps // len(rows)).astype(np.int32)
    return columns


def save_model(folder: Path, architecture: str, **changes: Any) -> None:
    """Writes a tiny random bf16 checkpoint of a transformers architecture, every parameter random."""
    import torch
    import transformers

    torch.manual_seed(zlib.crc32(architecture.encode()))
    sizes: dict[str, Any] = {
        "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256, "pad_token_id": None,
    }  # fmt: skip
    config = getattr(transformers, f"{architecture}Config")(**{**sizes, **changes})
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(1.0 if "norm" in name else 0.0, 0.2)
    model.to(torch.bfloat16).save_pretrained(folder)
