"""Saves random weights from several processes, and counts the bytes of each: `python -m tests.support.saving`."""

import argparse
import json
import multiprocessing
import sys
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from stages.models.rope import Rope
from stages.models.shape import DecoderShape
from stages.training.model.master_weights import TrainedWeights
from stages.training.model.placement import place
from stages.training.trainable import EVERYTHING, TrainableConfig
from stages.training.worker_group.hardware import TrainHardware

CPU = torch.device("cpu")
SMALL = DecoderShape(
    family="qwen2", vocab_size=101, embed_dim=48, layers=3, heads=3, kv_heads=1, head_dim=16, hidden_dim=80,
    norm_eps=1e-6, rope=Rope(1e4, 16), max_positions=512, tied=False, qkv_bias=True,
)  # fmt: skip
"""A model whose embedding does not divide by 2 or 4, and whose adapters have fewer rows than 4 processes."""
SMALL_FILE = 20_000
ADAPTED = TrainableConfig(parameters="lora", rank=2, alpha=4.0, projections=("q_proj", "down_proj"), merge=True)
TRAINED = {"everything": EVERYTHING, "adapters": ADAPTED}


class Traffic(TorchDispatchMode):
    """Counts the bytes of every collective operation of this process, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace in ("c10d", "_c10d_functional"):
            tensors = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, Tensor)]
            self.bytes[func._opname] += sum(x.nbytes for x in tensors)
        return func(*args, **kwargs or {})


def random_weights(trainable: TrainableConfig, processes: int) -> TrainedWeights:
    """Returns weights that depend on their names only."""
    hardware = TrainHardware(processes=processes, compute_dtype="fp32")
    weights = TrainedWeights(SMALL, hardware, CPU, processes > 1, trainable)
    with torch.no_grad():
        for name, p in weights.masters.items():
            place(p, torch.randn(p.shape, generator=torch.Generator().manual_seed(zlib.crc32(name.encode()))))
        weights.refresh()
    return weights


def save_all(folder: Path, reference: Path, processes: int) -> None:
    """Saves small models into folders named by what is trained, and their averages with a reference (collective).

    Call `make_source` once before. If each process called it, one could read a file that another has half written.
    """
    for name, trainable in TRAINED.items():
        weights = random_weights(trainable, processes)
        weights.save_checkpoint(folder / "source", folder / name, SMALL_FILE)
        weights.save_average(reference, 0.75, folder / f"{name}_average")


def sample_all(folder: Path, processes: int) -> None:
    """Saves the samples of the small models, as the last process has them (collective)."""
    for name, trainable in TRAINED.items():
        sample = random_weights(trainable, processes).sample()
        if dist.get_rank() == processes - 1:
            save_file(sample, folder / f"{name}_sample.safetensors")


def make_source(folder: Path) -> None:
    """Makes `folder` and in it `source`, a folder of a model's files other than weights."""
    (folder / "source").mkdir(parents=True)
    config = {
        "model_type": SMALL.family, "vocab_size": SMALL.vocab_size, "hidden_size": SMALL.embed_dim,
        "num_hidden_layers": SMALL.layers, "num_attention_heads": SMALL.heads, "num_key_value_heads": SMALL.kv_heads,
        "intermediate_size": SMALL.hidden_dim, "max_position_embeddings": SMALL.max_positions,
    }  # fmt: skip
    (folder / "source" / "config.json").write_text(json.dumps(config))


def _worker(rank: int, processes: int, folder: Path) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "meeting"), processes)  # pyright: ignore[reportPrivateImportUsage]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=processes)
    with Traffic() as traffic:
        save_all(folder, folder.parent / "one" / "everything", processes)
    sample_all(folder, processes)
    (folder / f"rank-{rank}.json").write_text(json.dumps({"bytes": traffic.bytes}))
    dist.destroy_process_group()


def main() -> int:
    """Entry point; the processes are forked, so that torch is imported once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="folder for models and counts, beside the folder `one`")
    parser.add_argument("processes", type=int)
    arguments = parser.parse_args()
    make_source(arguments.folder)
    context = multiprocessing.get_context("fork")
    options = arguments.processes, arguments.folder
    workers = [context.Process(target=_worker, args=(rank, *options)) for rank in range(arguments.processes)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return max(abs(worker.exitcode or 0) for worker in workers)


if __name__ == "__main__":
    sys.exit(main())
