"""What the trainer's memory switches save: `python -m tests.benchmarks.trainer_memory [--json]`.

Each variant is one forward and backward pass in a process of its own, over the same random decoder and packed rows.
A peak is the memory of the process (CPU: resident memory) or the device (CUDA: allocated memory) above that before the
pass. Losses and gradient norms stand beside them: a switch must not change them but by rounding.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.support.bars import Bar, parser_of, tell
from tests.support.processes import own_memory

VOCABULARY = 32_768
FP32_ROUNDING, BF16_ROUNDING = 1e-3, 0.05
"""Relative differences of the gradient's norm up to which only the rounding differs."""
SIZES = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 8}
VARIANTS: dict[str, dict[str, Any]] = {
    "full logits": {"full_logits": True},
    "head in one chunk": {},
    "head in chunks of 256": {"logprob_chunk_tokens": 256},
    "activation checkpointing": {"activation_checkpointing": True},
    "both": {"logprob_chunk_tokens": 256, "activation_checkpointing": True},
    "both, bf16": {"logprob_chunk_tokens": 256, "activation_checkpointing": True, "compute_dtype": "bf16"},
}
CUDA_VARIANTS: dict[str, dict[str, Any]] = {
    "both, bf16, offloaded": {**VARIANTS["both, bf16"], "cpu_offload": True},
}


def measure(folder: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """One pass in this process."""
    import torch
    import torch.distributed as dist

    from stages.models.shape import read_shape
    from stages.training.model.placement import compute_dtype, fill, place_policy, shards
    from stages.training.trainer_batch import TrainerBatch
    from stages.training.worker_group.hardware import TrainHardware

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
                            store=dist.HashStore(), rank=0, world_size=1)  # fmt: skip
    naive = settings.pop("full_logits", False)
    hardware = TrainHardware(**{"compute_dtype": "fp32", "logprob_chunk_tokens": 1 << 30, **settings})
    shape, sharded = read_shape(folder / "model"), shards(hardware, device, 1)
    dtype = compute_dtype(hardware, shape)
    policy = place_policy(shape, hardware, device, sharded, torch.float32 if sharded else dtype)
    fill(dict(policy.named_parameters()), folder / "model", shape, lambda: None)
    batch = TrainerBatch(folder / "batch.safetensors", shape.vocab_size)
    flat = batch.flat(list(range(batch.shape[0])))
    inputs = policy.inputs(flat, dtype, device)
    before = start_of_peak(device)
    if naive:
        logp = torch.log_softmax(policy.logits(inputs).float(), -1)
        logprobs = logp.gather(1, inputs.targets[:, None]).squeeze(1)
    else:
        logprobs, _ = policy(inputs, 1.0)
    loss = -logprobs.mean()
    loss.backward()
    norm = torch.nn.utils.get_total_norm([p.grad for p in policy.parameters() if p.grad is not None])
    return {
        "peak_mib": round((peak_bytes(device) - before) / 2**20, 1),
        "loss": float(loss.detach()),
        "grad_norm": float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm),
        "tokens": flat.tokens.numel(),
        "completion_tokens": logprobs.numel(),
        "device": device.type,
    }


def start_of_peak(device: Any) -> int:
    """Forgets the peak so far; bytes held now."""
    import torch

    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    Path("/proc/self/clear_refs").write_text("5")
    return peak_bytes(device)


def peak_bytes(device: Any) -> int:
    """The most bytes held since then."""
    import torch

    if device.type == "cuda":
        return torch.cuda.max_memory_allocated()
    return own_memory("VmHWM")


def prepare(folder: Path, rows: int) -> bool:
    """Makes the decoder and the rows; whether there is a CUDA device."""
    import torch
    from safetensors.numpy import save_file

    from tests.support.trees import save_model, tree_batch

    save_model(folder / "model", "Qwen2", vocab_size=VOCABULARY, tie_word_embeddings=True, **SIZES)
    columns = tree_batch(1, [1] * rows, prompt=(200, 201), branches=(4, 5), completion=(120, 121))
    save_file(columns, folder / "batch.safetensors")
    return torch.cuda.is_available()


def main() -> None:
    """Entry point."""
    parser = parser_of(__doc__)
    parser.add_argument("--rows", type=int, default=4, help="packed rows of 680 tokens, 480 of them completions")
    parser.add_argument("--child", nargs=2, metavar=("FOLDER", "SETTINGS"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(measure(Path(arguments.child[0]), json.loads(arguments.child[1]))))
        return
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        with_cuda = prepare(Path(name), arguments.rows)
        for variant, settings in (VARIANTS | CUDA_VARIANTS if with_cuda else VARIANTS).items():
            child = [sys.executable, "-m", "tests.benchmarks.trainer_memory", "--child", name, json.dumps(settings)]
            done = subprocess.run(child, check=True, stdout=subprocess.PIPE, text=True)
            rows.append({"variant": variant, **json.loads(done.stdout.splitlines()[-1])})
    tell({"variants": rows}, bars(rows), as_json=arguments.json)


def bars(rows: list[dict[str, Any]]) -> list[Bar]:
    """Whether each switch saves memory, and leaves the gradient as it was but for rounding."""
    plain, *switched = rows
    made: list[Bar] = []
    for row in switched:
        name, change = row["variant"], abs(row["grad_norm"] / plain["grad_norm"] - 1)
        made.append(Bar.at_most(f"{name}: peak, MiB", row["peak_mib"], plain["peak_mib"]))
        rounding = BF16_ROUNDING if "bf16" in name else FP32_ROUNDING
        made.append(Bar.at_most(f"{name}: change of the gradient's norm, share", change, rounding))
    return made


if __name__ == "__main__":
    main()
