"""Small models for merges: random ones of one shape and one tokenizer."""

import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from artifacts.address import ArtifactAddress
from artifacts.identity import Identity
from artifacts.refs import Checkpoint, Ref
from artifacts.store.store import Store
from stages.models.from_scratch import ScratchModel, make_scratch

TEXTS = ["Who was it? The cook, in the hall, with the rope, at nine."]
SHAPE = ScratchModel(hidden=32, layers=2, heads=1, kv_heads=1, head_dim=32, intermediate=48, init_std=0.3)


def write_specialist(folder: Path, seed: int, dtype: torch.dtype = torch.bfloat16, shape: ScratchModel = SHAPE) -> Path:
    """Writes a model with the weights of seed 0 plus, in half of the elements, a difference of its own."""
    folder.mkdir(parents=True)
    make_scratch(shape, TEXTS, folder)
    path = folder / "model.safetensors"
    tensors = {name: tensor.to(dtype) for name, tensor in load_file(path).items()}
    if seed:
        generator = torch.Generator().manual_seed(seed)
        for name, tensor in tensors.items():
            moved = torch.rand(tensor.shape, generator=generator) < 0.5
            noise = 0.05 * torch.randn(tensor.shape, generator=generator)
            tensors[name] = (tensor.float() + moved * noise).to(dtype)
    save_file(tensors, path, metadata={"format": "pt"})
    return folder


def publish_specialist(store: Store, folder: Path) -> Ref[Checkpoint]:
    """Publishes the model of a folder as a checkpoint under `models/NAME`."""
    identity = Identity.of("fetch", 1, {"source": folder.name})
    attempt = ArtifactAddress(store, f"models/{folder.name}", Checkpoint).attempt(identity)
    with attempt.folder(folder.parent) as out:
        for path in folder.iterdir():
            shutil.copyfile(path, out / path.name)
    return attempt.publish({"licence": "mit"})
