"""One process of a gang: takes one job file after another until its owner is gone or tells it to stop.

Started by `stages.training.gang` through `python -m torch.distributed.run ... -m stages.training.worker`.
"""

import argparse
import gc
import json
import os
import resource
import shutil
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from stages.guard import PR_SET_PDEATHSIG, set_process_option
from stages.training.spool import Spool

POLL_S = 0.01
OWNER_BEAT_S = 0.5
BYTES_A_PARAMETER = {"fp32": 14, "bf16": 8}
"""bf16 weights, and by their precision the master weights and AdamW's two moments."""


def end_with_agent() -> None:
    """Has the kernel kill this process when torchrun's agent ends, for the case that the guard of both was killed."""
    agent = os.getppid()
    set_process_option(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != agent:
        sys.exit("torchrun's agent is gone")


def show_owner(spool: Spool) -> None:
    """Shows other machines that the owner of the gang is there; under its guard this process ends with it."""

    def beat() -> None:
        while True:
            spool.owner_beat()
            time.sleep(OWNER_BEAT_S)

    threading.Thread(target=beat, name="owner-beat", daemon=True).start()


class Events:
    """Appends JSON lines; whole lines, so that several processes may report an error."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", encoding="utf-8")

    def send(self, event: str, /, **fields: Any) -> None:
        """Writes one line and flushes it."""
        self._file.write(json.dumps({"event": event, "time_s": time.time(), **fields}) + "\n")
        self._file.flush()


class Worker:
    """What a process keeps between jobs."""

    def __init__(self, spool: Spool, rank: int) -> None:
        import torch
        import torch.distributed as dist

        from stages.training.weights import TrainedWeights

        self._spool = spool
        self._hardware = spool.hardware()
        self._rank, world = rank, self._hardware.world
        use_cuda = self._hardware.device == "cuda" or (self._hardware.device == "auto" and torch.cuda.is_available())
        if use_cuda:
            self._device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
            torch.cuda.set_device(self._device)
        else:
            self._device = torch.device("cpu")
            torch.set_num_threads(
                self._hardware.threads or max(1, len(os.sched_getaffinity(0)) // int(os.environ["LOCAL_WORLD_SIZE"]))
            )
        # Any other of torch's stores would open a port.
        store = dist.FileStore(str(spool.meeting_file()), world)  # pyright: ignore[reportPrivateImportUsage]
        dist.init_process_group("cpu:gloo,cuda:nccl" if use_cuda else "gloo", store=store, rank=rank, world_size=world)
        self._world = world
        self._build = TrainedWeights
        self._weights: TrainedWeights | None = None

    def serve(self) -> None:
        """Takes jobs in order, for ever."""
        self._spool.beat(self._rank)
        number = 0
        while True:
            job_file = self._spool.job_file(number)
            if job_file.exists():
                self.run(job_file)
                number += 1
            else:
                time.sleep(POLL_S)

    def run(self, job_file: Path) -> None:
        """Does one job. An error ends the process, and with it the gang: a half-changed state is never used again."""
        from artifacts.errors import BadInputError
        from stages.memory import hand_back_freed, refused_allocation
        from stages.training.job import TrainJob

        job = TrainJob.model_validate_json(job_file.read_bytes())
        events = Events(job.events_file)
        try:
            self._train(job, events)
        except BadInputError as error:
            parts = (error.where, error.found, error.expected, error.remedy)
            events.send("error", kind="bad_input", message=str(error), parts=parts, rank=self._rank)
            raise SystemExit(3) from error
        except Exception as error:
            message = f"{type(error).__name__}: {error}"
            if refused_allocation(message):
                events.send("error", kind="out_of_memory", message=message, rank=self._rank)
                raise SystemExit(4) from error
            # A lost peer, among others: gloo and nccl raise nothing narrower than a RuntimeError.
            transient = isinstance(error, RuntimeError)
            events.send("error", kind="internal", message=message, rank=self._rank, transient=transient)
            raise
        hand_back_freed(int(os.environ["LOCAL_WORLD_SIZE"]))  # the engine's turn; see `agent.worker_environment`

    def _train(self, job: Any, events: Events) -> None:
        import torch

        from artifacts.errors import BadInputError
        from stages.training.metrics import StepMetrics, TrainTotals
        from stages.training.packed import PackedBatch
        from stages.training.placement import load_reference, shards
        from stages.training.shape import read_shape
        from stages.training.step_checkpoint import StepCheckpoints, take_up
        from stages.training.trainer import Trainer

        def beat() -> None:
            self._spool.beat(self._rank)

        first = self._rank == 0
        started = time.perf_counter()
        shape = read_shape(job.checkpoint_dir)
        held = self._held(job, shape)
        sharded = shards(self._hardware, self._device, self._world)
        batch = PackedBatch(job.batch_file, shape.vocab_size)
        of = len(batch.steps) * job.epochs
        if len(job.learning_rates) != of:
            raise BadInputError(
                "learning_rates",
                f"{len(job.learning_rates)} values",
                f"{of} ({job.epochs} epochs x {len(batch.steps)} steps)",
            )
        self._weights, master = None, job.optimizer.master_dtype
        weights = held or self._build(shape, self._hardware, self._device, sharded, job.trainable, beat, master)
        trainer = Trainer(weights, job, batch, beat)
        done: list[StepMetrics] = []
        if job.resume_dir is not None:
            done = take_up(job.resume_dir, weights, trainer)
        elif not job.warm:
            weights.load_checkpoint(job.checkpoint_dir) if job.state_dir is None else weights.load_state(job.state_dir)
        beat()
        loaded = time.perf_counter()
        if first:
            events.send("started", steps=of, rows=batch.shape[0], tokens=sum(batch.row_tokens), load_s=loaded - started)
            if done:
                events.send("resumed", steps=[step.model_dump() for step in done])
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        if not done:
            if job.loss.old_logprobs == "trainer" and job.loss.kind != "cross_entropy":
                trainer.recompute_old_logprobs()
            if job.reference_dir is not None:
                reference = (job.reference_dir, shape.vocab_size, self._hardware, self._device, sharded, beat)
                trainer.compute_reference_logprobs(load_reference(*reference))
        recomputed = time.perf_counter()
        steps = done + self._steps(done, trainer, StepCheckpoints(job, weights, trainer), events)
        trained = time.perf_counter()
        self._save_where_there_is_room(weights, job)
        self._weights = weights
        totals = TrainTotals(
            tokens=sum(step.tokens for step in steps),
            loss_tokens=sum(step.loss_tokens for step in steps),
            tokens_per_s=sum(step.tokens for step in steps[len(done) :]) / max(trained - recomputed, 1e-9),
            peak_memory_bytes=self._peak_memory_bytes(),
            load_s=loaded - started,
            old_logprobs_s=recomputed - loaded,
            train_s=trained - recomputed,
            save_s=time.perf_counter() - trained,
        )
        if first:
            events.send("done", **totals.model_dump())

    def _held(self, job: Any, shape: Any) -> Any:
        """The weights in memory, where they are of the job's shape and precision."""
        from artifacts.errors import BadInputError

        held = self._weights
        expected = (shape, job.trainable, job.optimizer.master_dtype)
        if held is not None and (held.shape, held.trainable, held.master_dtype) != expected:
            held = None
        if job.warm and held is None:
            raise BadInputError("warm", "the gang holds no such model", "a job before this one", "set warm to false")
        return held

    def _steps(self, done: list[Any], trainer: Any, checkpoints: Any, events: Events) -> list[Any]:
        """Takes the steps behind those that are done, and writes step checkpoints between them."""
        plan, taken = trainer.steps(), []
        for number, rows in plan[len(done) :]:
            taken.append(trainer.step(number, rows, len(plan)))
            if self._rank == 0:
                events.send("step", **taken[-1].model_dump())
            if number + 1 < len(plan) and checkpoints.due():
                folder = checkpoints.write(done + taken)
                if self._rank == 0:
                    events.send("step_checkpoint", step=number + 1, folder=str(folder))
        return taken

    def _save_where_there_is_room(self, weights: Any, job: Any) -> None:
        """Saves; torch's writers say nothing of a full disk, so what they raise is told from it by looking."""
        from artifacts.errors import BadInputError

        folder = job.out_checkpoint_dir.parent
        try:
            self._save(weights, job)
        except (OSError, RuntimeError) as error:
            needed = sum(p.numel() for p in weights.masters.values()) * BYTES_A_PARAMETER[weights.master_dtype]
            free = shutil.disk_usage(folder).free
            if free > needed:
                raise
            room = f"room for {needed / 2**20:.1f} MiB of weights and training state"
            found = f"no space left, {free / 2**20:.1f} MiB are free"
            raise BadInputError(
                str(folder), found, room, "free some (`deerstalker prune` lists what may go)"
            ) from error

    @staticmethod
    def _save(weights: Any, job: Any) -> None:
        weights.save_checkpoint(job.checkpoint_dir, job.out_checkpoint_dir)
        if job.out_state_dir is not None:
            weights.save_state(job.out_state_dir)
        if job.out_reference_dir is not None:
            weights.save_average(job.reference_dir, job.reference_decay, job.out_reference_dir)

    def _peak_memory_bytes(self) -> int:
        import torch
        import torch.distributed as dist

        if self._device.type == "cuda":
            peak = torch.cuda.max_memory_allocated(self._device)
        else:
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        top = torch.tensor(peak, dtype=torch.int64, device=self._device)
        dist.all_reduce(top, op=dist.ReduceOp.MAX)
        return int(top)


def main() -> None:
    """Entry point of the process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spool", type=Path, required=True, help="folder of job files")
    parser.add_argument("--node-rank", type=int, required=True, help="number of this machine, from 0")
    arguments = parser.parse_args()
    spool = Spool(arguments.spool)
    end_with_agent()
    rank = arguments.node_rank * int(os.environ["LOCAL_WORLD_SIZE"]) + int(os.environ["LOCAL_RANK"])
    if rank == 0:
        show_owner(spool)
    spool.announce(rank)
    gc.disable()  # looking for garbage among modules takes a tenth of the time that importing them does
    worker = Worker(spool, rank)
    gc.freeze()
    gc.enable()
    worker.serve()


if __name__ == "__main__":
    sys.exit(main())
