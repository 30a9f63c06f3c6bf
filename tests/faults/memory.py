"""Engine and trainer without memory, and hung: `python -m tests.faults.memory [--json]`, by hand, as root for cgroups.

Memory is refused (a KV cache larger than the machine, a limit on the process), or the kernel kills for it (a cgroup).
Each failure must be noticed within 15 s, be retried only if that may help, and name a remedy. Then a whole run lacks
memory in its trainer: with another profile, the same command continues with the samples and the batch that it has.
"""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from artifacts.errors import DeerstalkerError, TransientError
from artifacts.store.store import Store
from stages.models.from_scratch import ScratchModel, make_scratch
from stages.sampling.client import Prompt
from stages.sampling.config import EngineHardware, SamplingConfig
from stages.sampling.engine import Engine
from stages.training.job import TrainJob
from stages.training.worker_group.group import WorkerGroup
from stages.training.worker_group.hardware import TrainHardware
from tests.support.bars import Bar, kept, parser_of, tell
from tests.support.engine_facts import facts
from tests.support.installed import SLOW, TINY
from tests.support.jobs import queue_folder, train_job
from tests.support.memory_limits import cgroups, killed_above, refuse_above
from tests.support.processes import DEERSTALKER, in_session, marked
from tests.support.stored import attempts_of

MARK = "DEERSTALKER_MEMORY"
NOTICED_LIMIT_S = 15.0
PROMISES = {"artifacts made again": "was made again", "faults noticed late, mistaken or not explained": ""}
"""What must not happen, and the words of the errors that tell of it."""
RUN_LIMIT_S = 400.0
ENGINE = EngineHardware(max_num_seqs=64, kv_cache_gib=0.1, max_model_len=1024, threads=1, replicas=1, restarts=0)
TRAINER = TrainHardware(threads=1)
SAMPLING = SamplingConfig(samples_per_prompt=16, max_tokens=400)
ROOM_MIB = 24
REUSED = ("rollouts", "grades", "batch")


class Case:
    """What came of one fault."""

    def __init__(self, fault: str) -> None:
        self.row: dict[str, Any] = {"fault": fault}

    def expect(self, words: str, action: Callable[[], object], began: Callable[[], float], *, transient: bool) -> None:
        """Does what fails, and holds the error against what it should be.

        Raises:
            AssertionError: It did not fail, too late, as another kind, or with other words.
        """
        try:
            action()
        except DeerstalkerError as error:
            noticed_s = time.monotonic() - began()
            self.row |= {
                "noticed_s": round(noticed_s, 1),
                "tried_again": isinstance(error, TransientError),
                "found": error.found.splitlines()[0][:160],
                "remedy": error.remedy,
            }
            assert noticed_s < NOTICED_LIMIT_S, self.row
            assert isinstance(error, TransientError) == transient, self.row
            assert words in str(error), (words, str(error))
            return
        raise AssertionError(f"{self.row['fault']}: nothing failed")


def campaign(scratch: Path, *, run: bool = True) -> list[dict[str, Any]]:
    """Every fault once.

    Args:
        run: Also take the memory of a whole run's trainer.

    Raises:
        AssertionError: One was noticed late, taken for something else, or not explained.
    """
    return [*engine_faults(scratch), *trainer_faults(scratch), *([changed_profile(scratch / "run")] if run else [])]


def engine_faults(scratch: Path) -> Iterator[dict[str, Any]]:
    """The engine: refused memory at its start and while it samples, killed by the kernel, and stopped."""
    model = scratch / "model"
    model.mkdir()
    shape = ScratchModel(hidden=64, heads=2, kv_heads=1, layers=2, intermediate=8192, vocabulary=300)
    make_scratch(shape, ["Who was it? The cook, in the hall, with the rope, at nine."], model)

    too_large = ENGINE.model_copy(update={"kv_cache_gib": 100_000.0})
    with Engine(too_large, scratch / "too-large") as engine:
        case = Case("engine: KV cache larger than the machine")
        said = _when(lambda: "Available memory" in _text(engine.log_path))
        case.expect("lower engine.kv_cache_gib", lambda: engine.ensure(model, "a"), said, transient=False)
        yield case.row

    def sample(engine: Engine, disturb: Callable[[int], None]) -> Callable[[], None]:
        def action() -> None:
            engine.ensure(model, "a")
            disturb(_core(engine))
            engine.sample_groups(_prompts(64), SAMPLING, lambda _: None)

        return action

    with Engine(ENGINE.model_copy(update={"restarts": 2}), scratch / "refused") as engine:
        case, at = Case("engine: memory refused while it samples"), list[float]()
        case.expect(
            "lower engine.kv_cache_gib", sample(engine, lambda core: (refuse_above(ROOM_MIB, core), _note(at))[1]),
            lambda: at[0], transient=False,
        )  # fmt: skip
        assert facts(engine).starts == 1, "started again with the same settings"
        yield case.row

    with Engine(ENGINE, scratch / "killed") as engine, ExitStack() as groups:
        if cgroups():
            case, at = Case("engine: killed by the kernel"), list[float]()

            def limit(core: int) -> None:
                groups.enter_context(killed_above(ROOM_MIB, core))
                _note(at)

            case.expect("lower engine.kv_cache_gib", sample(engine, limit), lambda: at[0], transient=True)
            yield case.row
        case, at = Case("engine: stopped"), list[float]()
        case.expect(
            "stopped for 5 s", sample(engine, lambda core: (os.kill(core, signal.SIGSTOP), _note(at))[1]),
            lambda: at[0], transient=True,
        )  # fmt: skip
        yield case.row
        sample(engine, lambda core: None)()  # what a retry does: a new engine, and all goes well


def trainer_faults(scratch: Path) -> Iterator[dict[str, Any]]:
    """The trainer: refused memory, killed by the kernel (also one rank of two), and stopped."""
    from safetensors.numpy import save_file

    from tests.support.trees import save_model, tree_batch

    save_model(scratch / "decoder", "Qwen2", tie_word_embeddings=True)
    (scratch / "decoder" / "tokenizer.json").write_text("{}")
    save_file(tree_batch(1, [2, 1, 3, 1, 2], steps=2), scratch / "batch.safetensors")

    def faulty(hardware: TrainHardware, disturb: Callable[[int], object], name: str) -> Callable[[], None]:
        out = scratch / name

        def job() -> TrainJob:
            return train_job(
                checkpoint_dir=scratch / "decoder", batch_file=scratch / "batch.safetensors", hardware=hardware,
                learning_rates=[0.01] * 2, out_checkpoint_dir=out / "checkpoint", out_state_dir=out / "state",
                events_file=out / "events.jsonl",
            )  # fmt: skip

        def action() -> None:
            with WorkerGroup(hardware, out) as group:
                group.run(job())  # without memory for imports a process ends in its loader, without a word
                disturb(_ranks(group)[-1])
                group.run(job())

        return action

    with ExitStack() as groups:
        disturbances: dict[str, tuple[Callable[[int], object], int, str, bool]] = {
            "memory refused": (lambda pid: refuse_above(0, pid), 1, "lower trainer.micro_batch_tokens", False),
            "stopped": (lambda pid: os.kill(pid, signal.SIGSTOP), 1, "no progress", True),
        }
        if cgroups():

            def limit(pid: int) -> None:
                groups.enter_context(killed_above(0, pid))

            disturbances["killed by the kernel"] = (limit, 1, "lower trainer.micro_batch_tokens", True)
            disturbances["one rank of two killed by the kernel"] = (limit, 2, "trainer.cpu_offload", True)
        for number, (fault, (disturb, processes, words, transient)) in enumerate(disturbances.items()):
            case, at = Case(f"trainer: {fault}"), list[float]()

            def take(pid: int, disturb: Callable[[int], object] = disturb, at: list[float] = at) -> None:
                disturb(pid)
                _note(at)

            hardware = TRAINER.model_copy(update={"processes": processes})
            case.expect(words, faulty(hardware, take, f"group-{number}"), lambda at=at: at[0], transient=transient)
            yield case.row
    faulty(TRAINER, lambda pid: None, "well")()


def changed_profile(folder: Path) -> dict[str, Any]:
    """A run whose trainer is refused memory, and the same command again with a smaller micro-batch, and no limit.

    The sizes of this run are below what a process needs for itself, so the limit does not tell the settings apart.
    """
    folder.mkdir()
    with _trainers_limited(folder):
        failed = _train(folder, micro_batch_tokens=1_000_000)
        last = failed.stderr.strip().splitlines()[-1]
        assert failed.returncode == 1, failed.stderr[-3000:]
        assert "out of memory" in last and "lower trainer.micro_batch_tokens" in last, failed.stderr[-3000:]
        before = attempts_of(Store.open(str(folder / "store")))
        assert set(REUSED) <= {Path(key).name for key in before if "/0001/" in key}
    finished = _train(folder, micro_batch_tokens=1024)
    assert finished.returncode == 0, finished.stderr[-3000:]
    after = attempts_of(Store.open(str(folder / "store")))
    assert {key: after[key] for key in before} == before, "something was made again"
    made = sorted(Path(key).name for key in after.keys() - before.keys() if "/0001/" in key)
    return {
        "fault": "run: trainer refused memory, then the same command with a smaller micro-batch",
        "tried_again": False,
        "found": last.partition("; ")[0][:160],
        "remedy": f"reused {', '.join(REUSED)}; made {', '.join(made)}",
    }


@contextmanager
def _trainers_limited(folder: Path) -> Iterator[None]:
    """Gives each trainer of a run, once it takes jobs, little more memory than it has then."""
    over, limited = threading.Event(), set[int]()

    def watch() -> None:
        while not over.wait(0.01):
            for pid, line in marked(MARK, folder).items():
                queue = line.partition("stages.training.worker_group.worker --queue=")[2].strip()
                own = pid not in limited and "torch.distributed" not in line
                if own and queue and (Path(queue) / "heartbeat-0").exists():
                    with suppress(ProcessLookupError, FileNotFoundError):
                        refuse_above(RUN_ROOM_MIB, pid)
                        limited.add(pid)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    assert limited


RUN_ROOM_MIB = 96


def _train(folder: Path, micro_batch_tokens: int) -> subprocess.CompletedProcess[str]:
    command = [
        DEERSTALKER, "train", "--recipe", str(TINY),
        "--profile", str(SLOW), "--store", str(folder / "store"), "--json", "--set", "iterations=1",
        "--set", "warm_start.texts_per_step=1", "--set", "sample.puzzles_per_iteration=48",
        "--set", "sample.sampling.max_tokens=128", "--set", "pack.row_tokens=1024", "--set", "pack.updates=1",
        "--set-profile", f"trainer.micro_batch_tokens={micro_batch_tokens}",
    ]  # fmt: skip
    environment = {**os.environ, MARK: str(folder)}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=RUN_LIMIT_S, check=False)


def _core(engine: Engine) -> int:
    return next(pid for pid, line in in_session(facts(engine).process_id).items() if "EngineCore" in line)


def _ranks(group: WorkerGroup) -> list[int]:
    """Ids of a group's workers by rank."""
    files = sorted(queue_folder(group).glob("pid-*"))
    return [int(path.read_text().split(" ")[1]) for path in files]


def _prompts(count: int) -> list[Prompt]:
    return [Prompt(f"p{number}", [(7 * number + i) % 250 for i in range(500)]) for number in range(count)]


def _note(at: list[float]) -> None:
    at.append(time.monotonic())


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


def _when(reached: Callable[[], bool]) -> Callable[[], float]:
    """Looks ten times a second whether something is reached; tells when it first was."""
    at = list[float]()

    def watch() -> None:
        while not reached():
            time.sleep(0.1)
        _note(at)

    threading.Thread(target=watch, daemon=True).start()
    return lambda: at[0]


def main() -> None:
    """Injects the faults, and prints what became of them."""
    parser = parser_of(__doc__)
    options = parser.parse_args()
    if not cgroups():
        print("no memory cgroups here: kills by the kernel are LEFT OUT", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="memory-") as scratch:
        report, bars = kept(PROMISES, lambda: {"faults": campaign(Path(scratch))})
    timed = [row for row in report.get("faults", ()) if "noticed_s" in row]
    bars += [Bar.at_most(f"{row['fault']}: noticed, s", row["noticed_s"], NOTICED_LIMIT_S) for row in timed]
    tell(report, bars, as_json=options.json)


if __name__ == "__main__":
    main()
