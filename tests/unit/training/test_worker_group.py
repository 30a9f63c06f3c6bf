"""Real worker processes: warm and cold, one and two, killed, hung, orphaned."""

import filecmp
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from traceback import StackSummary
from typing import Any

import pytest
import torch
from safetensors.numpy import save_file
from safetensors.torch import load_file
from torch._dynamo.exc import TorchDynamoException
from torch.distributed.checkpoint.api import CheckpointException

from artifacts.errors import BadInputError, DeerstalkerError, DiskFullError, TransientError
from stages.training.job import LossConfig, ScoreJob, TrainJob
from stages.training.worker_group.events import EventWriter
from stages.training.worker_group.group import WorkerGroup, worker_output
from stages.training.worker_group.hardware import TrainHardware
from stages.training.worker_group.worker import _errors_reported
from tests.support.jobs import train_job
from tests.support.memory_limits import refuse_above
from tests.support.tiers import long_except
from tests.support.trainer_processes import command_lines, workers
from tests.support.trees import save_model, tree_batch
from tests.support.waiting import wait_until

ONE = TrainHardware(compute_dtype="fp32", threads=1)
TWO = TrainHardware(compute_dtype="fp32", threads=1, processes=2, micro_batch_tokens=30)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("group")
    save_model(folder / "model", "Qwen2", tie_word_embeddings=True)
    save_model(folder / "other", "Llama", tie_word_embeddings=True)
    (folder / "model" / "tokenizer.json").write_text("{}")
    save_file(tree_batch(1, [2, 1, 3, 1, 2], steps=2), folder / "batch.safetensors")
    return folder


@pytest.fixture(scope="module")
def group(folder: Path) -> Iterator[WorkerGroup]:
    with WorkerGroup(ONE, folder / "one") as group:
        yield group


def job(folder: Path, out: str, hardware: TrainHardware = ONE, **changes: Any) -> TrainJob:
    values: dict[str, Any] = {
        "checkpoint_dir": folder / "model", "batch_file": folder / "batch.safetensors", "learning_rates": [0.01] * 4,
        "epochs": 2, "hardware": hardware, "loss": LossConfig(kl_coef=0.01), "reference_dir": folder / "model",
        "out_checkpoint_dir": folder / out / "checkpoint", "out_reference_dir": folder / out / "reference",
        "out_state_dir": folder / out / "state", "events_file": folder / out / "events.jsonl", **changes,
    }  # fmt: skip
    return train_job(**values)


def test_warm_equals_cold(folder: Path, group: WorkerGroup) -> None:
    events: list[dict[str, Any]] = []
    first = group.run(job(folder, "first"), events.append)
    assert [event["event"] for event in events] == ["started", "step", "step", "step", "step", "done"]
    assert [step.step for step in first.steps] == [1, 2, 3, 4]
    assert first.totals.loss_tokens == sum(step.loss_tokens for step in first.steps) > 0
    assert group.holding is None and group.write is not None
    group.write.wait()
    assert (folder / "first" / "state" / ".metadata").exists()
    group.remember("of an earlier job", None)
    assert group.holding is None
    group.remember("digest", group.write)
    assert group.holding == "digest"
    warm = group.run(job(folder, "warm", warm=True))
    cold = group.run(job(folder, "cold", state_dir=folder / "first" / "state"))
    assert [step.loss for step in warm.steps] == [step.loss for step in cold.steps]
    weights = "checkpoint/model.safetensors"
    assert filecmp.cmp(folder / "warm" / weights, folder / "cold" / weights, shallow=False)
    assert not filecmp.cmp(folder / "first" / weights, folder / "warm" / weights, shallow=False)
    assert (folder / "first" / "checkpoint" / "tokenizer.json").read_text() == "{}"


def test_a_model_is_scored_beside_the_state_in_memory(folder: Path, group: WorkerGroup) -> None:
    """As a teacher is in each iteration: the next job still starts warm, and equal to a cold one."""
    group.run(job(folder, "before"))
    group.remember("state", group.write)
    out = folder / "scored.safetensors"
    scoring = ScoreJob(
        checkpoint_dir=folder / "other", batch_file=folder / "batch.safetensors", temperature=1.0, hardware=ONE,
        out_file=out, events_file=folder / "scored" / "events.jsonl",
    )  # fmt: skip
    totals = group.score(scoring)
    assert group.holding == "state"
    logprobs = load_file(out)["logprobs"]
    assert int(logprobs.isfinite().sum()) == totals.loss_tokens > 0
    warm = group.run(job(folder, "warm-after", warm=True))
    cold = group.run(job(folder, "cold-after", state_dir=folder / "before" / "state"))
    assert [step.loss for step in warm.steps] == [step.loss for step in cold.steps]
    write = group.write
    group.wait_until_written()
    group.stop()
    group.score(scoring)
    group.remember("a state of processes that have ended", write)
    assert group.holding is None


@pytest.mark.long
def test_two_processes_equal_one(folder: Path, group: WorkerGroup) -> None:
    """With a reference, from a state and with the penalty in the reward; `test_invariance.py` has the rest."""
    weights, state = "checkpoint/model.safetensors", folder / "plain" / "state"
    first = group.run(job(folder, "plain"))
    cold = group.run(job(folder, "from-state", state_dir=state))
    loss = LossConfig(kl_coef=0.1, kl_place="sequence_reward", old_logprobs="trainer")
    in_reward = {"loss": loss, "reference_dir": folder / "other", "out_reference_dir": None}
    with WorkerGroup(TWO, folder / "two") as pair:
        double = pair.run(job(folder, "double", TWO))
        again = pair.run(job(folder, "again", TWO, state_dir=state))
        shared = pair.run(job(folder, "shared", TWO, **in_reward))
    alone = group.run(job(folder, "alone", **in_reward))
    for a, b in zip(alone.steps, shared.steps, strict=True):
        assert a.kl_penalty == pytest.approx(b.kl_penalty, rel=1e-4)
    for one, two in ((first, double), (cold, again), (alone, shared)):
        for a, b in zip(one.steps, two.steps, strict=True):
            assert a.loss == pytest.approx(b.loss, abs=1e-5)
            assert a.grad_norm == pytest.approx(b.grad_norm, rel=1e-4)
            assert a.kl == pytest.approx(b.kl, rel=1e-4)
            assert a.sampler_ess == pytest.approx(b.sampler_ess)
            assert (a.tokens, a.loss_tokens) == (b.tokens, b.loss_tokens)
    for written in (weights, "reference/model.safetensors"):
        expected = load_file(folder / "plain" / written)
        for name, tensor in load_file(folder / "double" / written).items():
            torch.testing.assert_close(tensor, expected[name], atol=4e-3, rtol=2**-7)


def test_bad_input_is_told_and_the_worker_group_forgets(folder: Path, group: WorkerGroup) -> None:
    group.run(job(folder, "before"))
    group.remember("digest", group.write)
    with pytest.raises(BadInputError, match=r"learning_rates: 3 values; expected 4"):
        group.run(job(folder, "short", learning_rates=[0.01] * 3))
    assert group.holding is None
    with pytest.raises(BadInputError, match="holds nothing"):
        group.run(job(folder, "short", warm=True))
    with pytest.raises(BadInputError, match="another layout"):
        group.run(job(folder, "short", TWO))


@pytest.mark.long
def test_a_full_disk_is_named(folder: Path, group: WorkerGroup, small_disk: Path) -> None:
    (small_disk / "other").write_bytes(bytes(shutil.disk_usage(small_disk).free - 8192))
    out = {"out_checkpoint_dir": small_disk / "checkpoint", "out_state_dir": small_disk / "state"}
    with pytest.raises(DiskFullError, match=r"small: no space left, 0\.0 MiB are free; expected room for .* MiB of"):
        group.run(job(folder, "full", reference_dir=None, out_reference_dir=None, loss=LossConfig(), **out))
    group.run(job(folder, "full-later", out_state_dir=out["out_state_dir"]))
    assert group.write is not None
    with pytest.raises(DiskFullError, match=r"no space left"):
        group.write.wait()
    assert not group.running


def test_a_step_checkpoint_on_a_full_disk_is_no_lost_worker(folder: Path, small_disk: Path) -> None:
    """torch's file writer says `unexpected pos`, which says nothing to a person, and a retry would not help."""
    (small_disk / "steps").mkdir()
    (small_disk / "other").write_bytes(bytes(shutil.disk_usage(small_disk).free - 8192))
    hardware = ONE.model_copy(update={"checkpoint_every_s": 0.0})
    with (
        WorkerGroup(hardware, folder / "stepping") as group,
        pytest.raises(DiskFullError, match=r"steps: no space left, 0\.0 MiB are free; expected room for .* MiB of"),
    ):
        group.run(job(folder, "stepping", hardware, step_checkpoints_dir=small_disk / "steps"))


def test_refused_memory_is_not_tried_again_and_says_what_to_change(folder: Path) -> None:
    """The second job has much longer rows, so that what the first one left of its memory does not suffice."""
    long = folder / "long.safetensors"
    save_file(tree_batch(1, [1, 1], steps=2, prompt=(3000, 3001)), long)
    with WorkerGroup(ONE, folder / "refused") as group:
        group.run(job(folder, "refused"))
        group.wait_until_written()
        refuse_above(0, workers(group)[0])
        with pytest.raises(DeerstalkerError, match=r"out of memory \(.*lower trainer\.micro_batch_tokens") as failure:
            group.run(job(folder, "refused", batch_file=long))
    assert not isinstance(failure.value, TransientError)


def test_errors_of_torchs_file_writer_are_reported(tmp_path: Path) -> None:
    """They derive from BaseException, so that `except Exception` misses them."""
    refused = CheckpointException("", {0: (PermissionError(13, "Permission denied"), StackSummary())})
    with pytest.raises(CheckpointException), _errors_reported(EventWriter(tmp_path / "events.jsonl"), 0):
        raise refused
    event = json.loads((tmp_path / "events.jsonl").read_text())
    assert (event["kind"], event["transient"]) == ("internal", False) and "Permission denied" in event["message"]


def test_kernels_that_do_not_compile_are_not_compiled_again(folder: Path, group: WorkerGroup) -> None:
    """A retry would end in the same way. The trainer compiles on GPUs only, so a function stands for its layers."""
    path, broken = folder / "uncompiled.jsonl", {"cpp.cxx": ("/bin/false",), "fx_graph_cache": False}
    with (
        torch._inductor.config.patch(broken),
        pytest.raises(TorchDynamoException),
        _errors_reported(EventWriter(path), 0),
    ):
        torch.compile(lambda x: x.sin() + 1)(torch.ones(3))
    group.start()
    with pytest.raises(DeerstalkerError, match=r"kernels did not compile \(.*Error: .*`deerstalker doctor`") as failure:
        group._fail(json.loads(path.read_text()))
    assert not isinstance(failure.value, TransientError)


def test_the_tail_of_a_log_is_what_the_workers_wrote() -> None:
    """torchrun adds a traceback of its own and a summary, which say less and are longer than the tail."""
    written = "Traceback (most recent call last):\nRuntimeError: gloo lost a peer\n"
    api = "torch/distributed/elastic/multiprocessing/api.py"
    added = (
        f"W1123 08:25:35.943000 9306 {api}:930] Sending process 9424 closing signal SIGTERM\n"
        f"E1123 08:25:35.943000 9306 {api}:1002] failed (exitcode: 1) local_rank: 0 (pid: 9423) of binary: python\n"
        f"Traceback (most recent call last):\n{'=' * 60}\nstages.training.worker_group.worker FAILED\n"
    )
    assert worker_output(written + added) == written
    assert worker_output(written) == written


OWNER = """
import sys, time
from pathlib import Path
from stages.training.worker_group.events import EventWriter
from stages.training.worker_group.group import WorkerGroup
from stages.training.job import TrainJob
from stages.training.worker_group.hardware import TrainHardware
from stages.training.worker_group.worker import _errors_reported
group = WorkerGroup(TrainHardware(threads=1), Path(sys.argv[1]))
group.start()
group.wait_until_ready()
print("ready", flush=True)
if sys.argv[2]:
    group.run(TrainJob.model_validate_json(sys.argv[2]))
time.sleep(600)
"""


def test_a_worker_whose_agent_ended_before_it_could_look_ends(tmp_path: Path) -> None:
    """Guard and agent are killed while the worker's interpreter starts: its parent is another process by then."""
    command = [sys.executable, "-m", "stages.training.worker_group.worker", f"--queue={tmp_path}", "--node-rank=0"]
    environment = os.environ | {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    done = subprocess.run(command, env=environment, timeout=60, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "torchrun's agent is gone\n")


@pytest.mark.parametrize("working", long_except([False, True], True))
def test_nothing_outlives_a_killed_owner(folder: Path, tmp_path: Path, working: bool) -> None:
    """A worker that works reads a pipe that nobody writes to, inside native code that lets no other thread run."""

    def mine() -> list[str]:
        return [line for _, line in command_lines() if str(tmp_path / "group-") in line]

    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    at_work = job(folder, "killed", batch_file=pipe).model_dump_json() if working else ""
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path), at_work], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    assert owner.stdout.readline() == "ready\n"
    assert len(mine()) == 3, mine()
    if working:
        time.sleep(2.0)
    owner.kill()
    owner.wait()
    wait_until(lambda: not mine(), 120, mine, 0.05)


def test_parent_side_imports_no_torch() -> None:
    check = (
        "import sys, stages.training.worker_group.group; sys.exit('torch' in sys.modules or 'torchtune' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
