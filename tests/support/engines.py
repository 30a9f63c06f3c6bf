"""What tests of real engines share: texts of their tiny models, prompts, and log-probabilities by transformers."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from stages.sampling.client import GroupSamples, Prompt
from tests.support.processes import in_session

TEXTS = ["Who was it? The cook, in the hall, with the rope, at nine.", "A: cook\nB: hall\nC: rope\nD: nine"]


def prompts(count: int) -> list[Prompt]:
    """Returns prompts of 40 random tokens."""
    draw = np.random.default_rng(0)
    return [Prompt(f"p{number}", draw.integers(0, 250, 40).tolist()) for number in range(count)]


def core_of(leader: int) -> int:
    """Returns the process id of the engine core in a server's session; the core computes, the server is its parent."""
    return next(pid for pid, command in in_session(leader).items() if "EngineCore" in command)


def mean_gap(folder: Path, groups: Iterable[GroupSamples], temperature: float = 1.0) -> float:
    """Returns the mean distance of sampled log-probabilities from those that transformers gives the same tokens."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    model, gaps = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), list[float]()
    for group in groups:
        for completion in group.completions:
            start, ids = len(group.prompt_token_ids), torch.tensor([[*group.prompt_token_ids, *completion.token_ids]])
            with torch.no_grad():
                scores = torch.log_softmax(model(ids).logits[0, start - 1 : -1] / temperature, -1)
            theirs = scores.gather(1, ids[0, start:, None])[:, 0].tolist()
            gaps += np.abs(np.subtract(completion.logprobs, theirs)).tolist()
    return float(np.mean(gaps))
