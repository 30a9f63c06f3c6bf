"""Engine and trainer in turns on one GPU: who works has its memory, and samples are as before the engine slept."""

import logging
from pathlib import Path

import pytest
import torch

from artifacts.store.store import Store
from stages.context import Profile, StageContext
from stages.hardware.compute_type import engine_build
from stages.models.from_scratch import ScratchModel, make_scratch
from stages.sampling.client import GroupSamples, Prompt
from stages.sampling.config import EngineHardware, SamplingConfig
from stages.training.worker_group.hardware import TrainHardware
from tests.support.engine_facts import facts

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or engine_build()[0] != "vllm", reason="needs a CUDA device and vLLM's build for it"
)

TEXTS = ["Who was it? The cook, in the hall, with the rope, at nine."]
GREEDY = SamplingConfig(samples_per_prompt=1, temperature=0.0, max_tokens=16)  # vLLM refuses n > 1 at 0
GIB = 2**30


def sampled(ctx: StageContext, folder: Path, digest: str) -> list[list[int]]:
    groups: list[GroupSamples] = []
    engine = ctx.engine
    engine.ensure(folder, digest)
    engine.sample_groups([Prompt("one", [5, 6, 7, 8])], GREEDY, groups.append)
    return [completion.token_ids.tolist() for completion in groups[0].completions]


def test_the_engine_gives_its_memory_to_the_trainer_and_takes_it_back(tmp_path: Path) -> None:
    """Two checkpoints of one shape; the second is loaded into the engine that has slept."""
    for seed in (1, 2):
        folder = tmp_path / f"model-{seed}"
        folder.mkdir()
        make_scratch(ScratchModel(seed=seed), TEXTS, folder)
    engine = EngineHardware(
        takes_turns=True, replicas=1, memory_share=0.2, kv_cache_gib=4.0, max_num_seqs=8, stall_timeout_s=300.0
    )
    profile = Profile(engine=engine, trainer=TrainHardware(device="cuda"))
    store, log = Store.open(str(tmp_path / "store")), logging.getLogger(__name__)
    with StageContext(store, tmp_path / "scratch", profile, lambda *told: None, log) as ctx:
        first = sampled(ctx, tmp_path / "model-1", "one")
        free = torch.cuda.mem_get_info()[0]
        group = ctx.worker_group
        assert torch.cuda.mem_get_info()[0] - free > 3.5 * GIB, "the KV cache is free"
        group.start()
        group.wait_until_ready()
        second = sampled(ctx, tmp_path / "model-2", "two")
        assert not group.running, "its processes ended before the engine woke"
        assert ctx.worker_group is group
        again = sampled(ctx, tmp_path / "model-1", "one")
        assert (facts(ctx.engine).starts, facts(ctx.engine).reloads, facts(ctx.engine).refusals) == (1, 2, [])
    assert again == first != second
