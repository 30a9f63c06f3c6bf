"""The same optimizer step without shared prompts: transformers, every completion with its prompt, logits everywhere."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import log_softmax

from stages.grpo.groups import Group


def naive_step(model_dir: Path, groups: Sequence[Group], rate: float, sequences_a_pass: int) -> dict[str, float]:
    """Takes one step of the clipped loss, averaged over tokens, with float32 weights under bf16 autocast.

    Returns:
        Wall time, the part of it that the optimizer took, the norm of the gradient, and tokens gone through.
    """
    import transformers

    model: Any = transformers.AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0, fused=True)
    rows = [(group.prompt, branch) for group in groups for branch in group.branches]
    completion_tokens = sum(len(branch.tokens) for _, branch in rows)
    _passed(model, rows[:1], completion_tokens)  # what torch does only once
    optimizer.zero_grad(set_to_none=True)
    started = time.perf_counter()
    tokens = 0
    for first in range(0, len(rows), sequences_a_pass):
        tokens += _passed(model, rows[first : first + sequences_a_pass], completion_tokens)
    passed = time.perf_counter()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    ended = time.perf_counter()
    return {
        "step_s": ended - started, "optimizer_s": ended - passed, "grad_norm": float(norm), "tokens": float(tokens),
    }  # fmt: skip


def _passed(model: Any, rows: Sequence[tuple[Any, Any]], completion_tokens: int) -> int:
    """Forward and backward of some sequences, padded to the longest; returns tokens gone through."""
    lengths = [len(prompt) + len(branch.tokens) for prompt, branch in rows]
    tokens = torch.zeros(len(rows), max(lengths), dtype=torch.int64)
    real, counted = torch.zeros_like(tokens), torch.zeros(tokens.shape, dtype=torch.bool)
    for row, (prompt, branch) in enumerate(rows):
        tokens[row, : lengths[row]] = torch.tensor([*prompt, *branch.tokens])
        real[row, : lengths[row]] = 1
        counted[row, len(prompt) : lengths[row]] = True
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(tokens, attention_mask=real).logits
    logprobs = log_softmax(logits[:, :-1].float(), -1).gather(2, tokens[:, 1:, None]).squeeze(2)
    ratio = (logprobs - logprobs.detach()).exp()
    advantages = torch.tensor([branch.advantage for _, branch in rows], dtype=torch.float32)[:, None]
    loss = -torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
    ((loss * counted[:, 1:]).sum() / completion_tokens).backward()
    return tokens.numel()
