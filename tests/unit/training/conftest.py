"""What the trainer's tests share."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch.distributed as dist

from tests.support.trees import save_model


@pytest.fixture(scope="module")
def world_of_one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A process group of this process alone, as the trainer expects one."""
    store = dist.FileStore(str(tmp_path_factory.mktemp("store") / "file"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model; the tests of `test_model.py` and `test_master_dtype.py` have others."""
    folder = tmp_path_factory.mktemp("model")
    save_model(folder, "Qwen2", tie_word_embeddings=True)
    return folder


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A smaller model of another architecture with the same vocabulary."""
    folder = tmp_path_factory.mktemp("other")
    save_model(folder, "Llama", tie_word_embeddings=True, hidden_size=16)
    return folder
