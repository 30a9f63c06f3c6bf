"""A tensor that a reload left old is found in any layer, however little of a checkpoint is compared."""

import json
import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from socketserver import UnixStreamServer
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from stages.models.adapters import ADAPTER_WEIGHTS
from stages.models.tensors import WEIGHTS
from stages.sampling.endpoint import Endpoint
from stages.sampling.replicas.weight_exchange import (
    BLOCKS,
    LEAST_COUNT,
    ReloadRefusedError,
    WeightCheck,
    keeps_stale_head,
    load_adapter,
    spans_of,
    tensor_digests,
)
from stages.sampling.replicas.weight_slices import WeightSlices
from tests.support.adapters import CONFIG, save_adapter
from tests.support.policies import ARCHITECTURES
from tests.support.serving import Replies, serving
from tests.support.trees import save_model

LAYERS = 5
FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
LEAST_BYTES = 1


def in_engine(folder: Path) -> dict[str, Tensor]:
    """The tensors of a folder as vLLM keeps them: some follow others in one tensor, the vocabulary is padded."""
    tensors = load_file(folder / WEIGHTS)
    for fused, parts in FUSED.items():
        for name in [name for name in tensors if f".{parts[0]}." in name]:
            joined = torch.cat([tensors.pop(name.replace(parts[0], part)) for part in parts])
            tensors[name.replace(parts[0], fused)] = joined
    name = "model.embed_tokens.weight"
    tensors[name] = nn.functional.pad(tensors[name], (0, 0, 0, -len(tensors[name]) % 64))
    return tensors


class Worker(WeightSlices):
    """The worker of an engine with these tensors, and with linear maps that have adapters."""

    def __init__(self, tensors: dict[str, Tensor], adapted: dict[str, SimpleNamespace] | None = None) -> None:
        self.tensors = tensors
        manager = SimpleNamespace(_adapter_manager=SimpleNamespace(modules=adapted or {}))
        self.model_runner = SimpleNamespace(get_model=lambda: self, lora_manager=manager)

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        yield from self.tensors.items()


def adapted(folder: Path) -> dict[str, SimpleNamespace]:
    """The linear maps with the adapter of a folder as vLLM keeps it in bf16: with room for a larger rank, B scaled."""
    tensors, modules = load_file(folder / ADAPTER_WEIGHTS), dict[str, SimpleNamespace]()
    for name in [name for name in tensors if ".lora_A." in name]:
        a, b = tensors[name].bfloat16(), tensors[name.replace(".lora_A.", ".lora_B.")].bfloat16() * CONFIG.scale
        wider = nn.functional.pad(a, (0, 0, 0, 4)), nn.functional.pad(b, (0, 4))
        modules[name] = SimpleNamespace(lora_a_stacked=[wider[0][None, None]], lora_b_stacked=[wider[1][None, None]])
    return modules


class Handler(Replies):
    """Calls the methods of all workers, on a CPU."""

    workers: list[Worker]
    loaded: list[Worker]

    def do_GET(self) -> None:
        self.reply({"vllm_config": "model='model', device_config=cpu, seed=0"})

    def do_POST(self) -> None:
        body: dict[str, Any] = json.loads(self.body() or b"{}")
        if body.get("method") == "reload_weights":
            Handler.workers = self.loaded
        asked = body.get("method") in ("weight_slice_digests", "adapter_digests")
        results = [getattr(worker, body["method"])(**body["kwargs"]) for worker in self.workers] if asked else []
        self.reply({"results": results, "success": True})


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model before and after training; its larger tensors are not compared as a whole."""
    before, after = (tmp_path_factory.mktemp(name) for name in ("before", "after"))
    sizes = {"hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": LAYERS, "vocab_size": 301}
    save_model(before, "Qwen2", **sizes, tie_word_embeddings=True)
    shutil.copytree(before, after, dirs_exist_ok=True)
    tensors = {name: (tensor.float() + 0.1).to(tensor.dtype) for name, tensor in load_file(before / WEIGHTS).items()}
    save_file(tensors, after / WEIGHTS, metadata={"format": "pt"})
    return before, after


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[Endpoint]:
    with serving(UnixStreamServer(str(tmp_path / "socket"), Handler)):
        yield Endpoint(tmp_path / "socket", "key")


@pytest.mark.parametrize("limit_bytes", [LEAST_BYTES, 1 << 30])
def test_a_stale_tensor_of_any_layer_is_found_whatever_the_limit(
    endpoint: Endpoint, folders: tuple[Path, Path], limit_bytes: int
) -> None:
    before, after = folders
    old, new = in_engine(before), in_engine(after)
    Handler.workers = [Worker(old)]
    check = WeightCheck(endpoint, before, limit_bytes, "bfloat16")
    Handler.workers = [Worker(new)]
    assert check.after_reload(check.expected(after)) == len(new), "every tensor of the engine is compared"
    for name in old:
        Handler.workers = [Worker({**new, name: old[name]})]
        with pytest.raises(ReloadRefusedError, match=f"1 of {len(new)} tensors are not the folder's, .'{name}'"):
            check.after_reload(check.expected(after))


def test_a_tensor_that_the_first_load_left_random_is_found(endpoint: Endpoint, folders: tuple[Path, Path]) -> None:
    """Of an engine that started before its weights existed."""
    random, real = in_engine(folders[0]), in_engine(folders[1])
    for name in real:
        Handler.workers, Handler.loaded = [Worker(random)], [Worker({**real, name: random[name]})]
        with pytest.raises(ReloadRefusedError, match=f"1 tensors were not loaded, .'{name}'"):
            WeightCheck(endpoint, folders[1], LEAST_BYTES, "bfloat16", weightless=True)
    Handler.workers, Handler.loaded = [Worker(random)], [Worker(real)]
    assert WeightCheck(endpoint, folders[1], LEAST_BYTES, "bfloat16", weightless=True).verbatim == set(real)


def test_one_of_several_processes_that_kept_its_old_weights_is_found(
    endpoint: Endpoint, folders: tuple[Path, Path]
) -> None:
    before, after = folders
    Handler.workers = [Worker(in_engine(before)), Worker(in_engine(before))]
    check = WeightCheck(endpoint, before, LEAST_BYTES, "bfloat16")
    for stale in (0, 1):
        Handler.workers = [Worker(in_engine(before if place == stale else after)) for place in (0, 1)]
        with pytest.raises(ReloadRefusedError, match="are not the folder's"):
            check.after_reload(check.expected(after))


def test_an_adapter_may_be_divided_among_processes_by_layers(
    endpoint: Endpoint, folders: tuple[Path, Path], tmp_path: Path
) -> None:
    """As pipeline parallelism divides it."""
    adapter = save_adapter(tmp_path / "adapter", folders[0])
    modules = adapted(adapter)
    first = {name: module for name, module in modules.items() if ".layers.0." in name}
    rest = {name: module for name, module in modules.items() if name not in first}
    Handler.workers = [Worker({}, first), Worker({}, rest)]
    load_adapter(endpoint, adapter, "w", "bfloat16", checked=True)
    Handler.workers = [Worker({}, first), Worker({}, dict(list(rest.items())[1:]))]
    with pytest.raises(ReloadRefusedError, match=rf"2 of {2 * len(modules)} matrices of the adapter were not loaded"):
        load_adapter(endpoint, adapter, "w", "bfloat16", checked=True)


@pytest.mark.parametrize(("name", "tied"), [("gemma3", True), ("smollm3", True), ("qwen2-untied", False)])
def test_a_head_is_tied_where_the_family_ties_it_by_default(
    endpoint: Endpoint, tmp_path: Path, name: str, tied: bool
) -> None:
    architecture, changes = ARCHITECTURES[name]
    save_model(tmp_path / "model", architecture, **changes)
    path = tmp_path / "model" / "config.json"
    config = json.loads(path.read_bytes())
    path.write_text(
        json.dumps({key: value for key, value in config.items() if key != "tie_word_embeddings" or value is False})
    )
    assert keeps_stale_head(endpoint, tmp_path / "model") is tied


def test_an_engine_that_keeps_no_tensor_of_a_layer_is_not_trusted(
    endpoint: Endpoint, folders: tuple[Path, Path]
) -> None:
    packed = {name: tensor for name, tensor in in_engine(folders[0]).items() if ".layers.3." not in name}
    Handler.workers = [Worker(packed)]
    with pytest.raises(ReloadRefusedError, match="no tensor of layer 3 of the engine equals one"):
        WeightCheck(endpoint, folders[0], LEAST_BYTES, "bfloat16")


def test_the_cost_of_a_check_is_bounded(folders: tuple[Path, Path]) -> None:
    """Of a tensor of 10^10 weights a thousandth is compared, in blocks from its start to its end."""
    spans = spans_of(10**10, 1e-3)
    assert len(spans) == BLOCKS and spans[0][0] == 0 and spans[-1][1] == 10**10
    assert sum(end - first for first, end in spans) == 10**7
    assert all(end <= first for (_, end), (first, _) in pairwise(spans))
    assert sum(end - first for first, end in spans_of(10**10, 0.0)) == LEAST_COUNT
    assert spans_of(LEAST_COUNT, 0.0) == [(0, LEAST_COUNT)] and spans_of(10**10, 1.0) == [(0, 10**10)]
    for slices in tensor_digests(folders[0], "bfloat16", LEAST_BYTES)[1].values():
        assert sum(end - first for first, end in slices) <= LEAST_COUNT
