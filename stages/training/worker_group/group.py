"""The owner's side of the trainer: starts the worker processes, gives them jobs and watches them."""

import re
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any, NoReturn, Self

from artifacts.activity import doing, note
from artifacts.errors import SEE_DOCTOR, BadInputError, DeerstalkerError, DiskFullError, TransientError
from artifacts.local.log_tail import tail_of
from stages.processes.awake import LastProgress
from stages.processes.guarded import GuardedProcess
from stages.processes.memory import kernel_kills, refused_allocation
from stages.training.job import ScoreJob, TrainJob
from stages.training.results import StepMetrics, TrainResult, TrainTotals
from stages.training.worker_group.agent import start_agent
from stages.training.worker_group.events import EventReader
from stages.training.worker_group.hang_watch import IDLE_LIMIT_S, HangWatch
from stages.training.worker_group.hardware import TrainHardware
from stages.training.worker_group.job_queue import JobQueue
from stages.training.worker_group.network import network_environment

POLL_S = 0.02
START_LIMIT_S = 180.0
_AGENT_REPORT = re.compile(r"^[EW]\d{4} .*torch/distributed/elastic/multiprocessing/", re.MULTILINE)
"""First line that torchrun's agent logs about a worker that failed."""


class StateWrite:
    """The optimizer state of a job, which the workers write after all other results of the job.

    They begin when a thread waits for it: the disk is then idle, because the weights are flushed. They take no other
    job before its end, so the weights and the optimizer state in their memory stay as they are.

    Args:
        allow: Lets the workers begin.
        follow: Reads the job's events until the state is written; raises the workers' errors.
    """

    def __init__(self, allow: Callable[[], None], follow: Callable[[], None]) -> None:
        self._allow, self._follow, self._lock = allow, follow, Lock()
        self._ended = False
        self._error: BaseException | None = None

    def wait(self) -> None:
        """Waits until the state is written. Several threads may wait.

        Raises:
            TransientError: The workers died, hung or were stopped.
            DeerstalkerError: They ran out of memory or disk.
        """
        with self._lock:
            if not self._ended:
                try:
                    self._allow()
                    self._follow()
                except BaseException as error:
                    self._error = error
                self._ended = True
        if self._error is not None:
            raise self._error


class WorkerGroup:
    """A group of worker processes that stay alive from job to job.

    The group is a cache: it may be stopped at any time, and nothing but time is lost. One thread gives it jobs; other
    threads may wait for the state that a job left to be written (see `StateWrite`) and label it.

    Args:
        hardware: Layout of the group; jobs must have the same.
        workdir: Folder for logs and job files; made if missing.

    Attributes:
        write: The state of the last training job, which may still be written; None if that job wrote none.
    """

    def __init__(self, hardware: TrainHardware, workdir: Path) -> None:
        self.hardware, self._workdir = hardware, workdir
        self._agent: GuardedProcess | None = None
        self._queue: JobQueue | None = None
        self._jobs = self._kernel_kills = 0
        self._holding: str | None = None
        self.write: StateWrite | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    @property
    def holding(self) -> str | None:
        """The label of the state in the workers' memory; None if there is no state that may be reused."""
        return self._holding if self.running else None

    @property
    def running(self) -> bool:
        """Whether the worker processes run."""
        return self._agent is not None and self._agent.exit_code() is None

    def remember(self, label: str, write: StateWrite | None) -> None:
        """Labels the state that a job left in the workers' memory; call it once that state is published.

        Args:
            label: The label.
            write: The state, as `write` was after the job. Nothing is labelled if another job has replaced it.
        """
        if self.running and self._jobs and write is self.write:
            self._holding = label

    def start(self) -> None:
        """Starts the processes without waiting for them. `run` calls it when needed.

        Raises:
            BadInputError: The profile's rendezvous is unusable or public.
            TransientError: The name of the rendezvous cannot be resolved at the moment.
        """
        if self.running:
            return
        self.stop()
        network = network_environment(self.hardware)
        self._workdir.mkdir(parents=True, exist_ok=True)
        queue = JobQueue(Path(tempfile.mkdtemp(prefix="group-", dir=self._workdir)))
        queue.write_hardware(self.hardware)
        self._kernel_kills = kernel_kills()
        self._agent = start_agent(queue, self.hardware, 0, network)
        self._queue, self._jobs, self.write = queue, 0, None

    def score(self, job: ScoreJob) -> TrainTotals:
        """Runs one job that computes log-probabilities, and waits for it; the state in memory stays as it is.

        Raises:
            BadInputError: The job, its batch or its checkpoint is invalid.
            TransientError: The workers died or hung.
            DeerstalkerError: They ran out of memory.
        """
        return self._run(job, lambda event: None).totals

    def run(self, job: TrainJob, on_event: Callable[[dict[str, Any]], None] = lambda event: None) -> TrainResult:
        """Runs one job and waits for its weights. The workers then write its optimizer state (see `write`).

        Args:
            job: The job. A warm job needs a state in the workers' memory (see `holding`).
            on_event: Called with each event of the workers as it arrives.

        Returns:
            Metrics of every step, and totals.

        Raises:
            BadInputError: The job, its batch, its checkpoint or the profile's rendezvous is invalid.
            TransientError: The workers died or hung.
            DeerstalkerError: They ran out of memory.
        """
        if job.warm and self.holding is None:
            raise BadInputError(
                "job.warm", "the worker group holds nothing", "a finished job", "give state_dir instead"
            )
        return self._run(job, on_event)

    def _run(self, job: TrainJob | ScoreJob, on_event: Callable[[dict[str, Any]], None]) -> TrainResult:
        if not job.hardware.same_layout(self.hardware):
            raise BadInputError("job.hardware", "another layout than the workers'", "the same", "start a new group")
        with doing("saving"):
            self.wait_until_written()
        if isinstance(job, TrainJob):
            self._holding = self.write = None
        try:
            with doing("loading"):
                self.start()
                self.wait_until_ready()
            assert self._queue is not None and self._agent is not None
            events = EventReader(job.events_file)
            number, queue = self._jobs, self._queue
            queue.submit(number, job)
            self._jobs += 1
            following = self._events(events, self._agent, queue)
            result = self._result(following, on_event)
            _record(result.totals)
        except BaseException:
            self.stop()
            raise
        if isinstance(job, TrainJob) and job.paths.out_state_dir is not None:
            self.write = StateWrite(lambda: queue.allow_state(number), lambda: self._follow_write(following))
        return result

    def wait_until_written(self) -> None:
        """Waits until the workers have written the state of the last job, or failed; raises no error."""
        if self.write is not None:
            with suppress(DeerstalkerError):
                self.write.wait()

    def _result(self, events: Iterator[dict[str, Any]], on_event: Callable[[dict[str, Any]], None]) -> TrainResult:
        """Reads the events of the running job until all but its optimizer state is written."""
        steps: list[StepMetrics] = []
        for event in events:
            on_event(event)
            fields = {key: value for key, value in event.items() if key not in ("event", "time_s")}
            if event["event"] == "step":
                steps.append(StepMetrics.model_validate(fields))
            elif event["event"] == "resumed":
                steps += [StepMetrics.model_validate(step) for step in event["steps"]]
            elif event["event"] == "done":
                return TrainResult(steps=steps, totals=TrainTotals.model_validate(fields))
        raise AssertionError  # `_events` does not end

    def _follow_write(self, events: Iterator[dict[str, Any]]) -> None:
        """Reads the events of the last job until its optimizer state is written."""
        try:
            next(event for event in events if event["event"] == "state")
        except BaseException:
            self.stop()
            raise

    def _events(self, events: EventReader, agent: GuardedProcess, queue: JobQueue) -> Iterator[dict[str, Any]]:
        """Yields the events of the running job, without end; between them, checks that the workers make progress.

        Raises:
            BadInputError: The job, its batch or its checkpoint is invalid.
            TransientError: The workers died or hung.
            DeerstalkerError: They ran out of memory or disk.
        """
        # Processes may wait without work for one of another machine, which this one cannot see at work.
        idle_limit_s = IDLE_LIMIT_S if self.hardware.nodes == 1 else self.hardware.no_progress_limit_s
        progress, watch, received = LastProgress(), HangWatch(queue, idle_limit_s=idle_limit_s), 0
        with events:
            while True:
                ended = agent.exit_code() is not None or watch.lost()  # before the events, so that none is missed
                new_events = events.new()
                for event in new_events:
                    if event["event"] == "error":
                        self._fail(event)
                    yield event
                if ended:
                    raise self._death("the workers died")
                received += len(new_events)
                progress.observe((received, queue.heartbeats()))
                if problem := watch.problem(progress.age_s, self.hardware.no_progress_limit_s):
                    raise TransientError("trainer", problem, "", *self._log_tail())
                if not new_events:
                    time.sleep(POLL_S)

    def wait_until_ready(self) -> None:
        """Waits until all started processes accept jobs.

        Raises:
            TransientError: They died, were stopped or were not ready in time.
            DeerstalkerError: They ran out of memory.
        """
        agent, queue = self._agent, self._queue
        if agent is None or queue is None:
            raise TransientError("trainer", "not started")
        deadline = time.monotonic() + START_LIMIT_S
        watch = HangWatch(queue)
        while not queue.ready(self.hardware.world):
            if agent.exit_code() is not None or watch.lost():
                raise self._death("the workers died while starting")
            if watch.stopped():
                raise TransientError("trainer", "a worker was stopped while starting", "", *self._log_tail())
            if time.monotonic() > deadline:
                raise TransientError("trainer", f"not ready after {START_LIMIT_S:.0f} s", "", *self._log_tail())
            time.sleep(POLL_S)

    def _fail(self, event: dict[str, Any]) -> NoReturn:
        if event["kind"] == "bad_input":
            raise BadInputError(*event["parts"])
        if event["kind"] == "disk_full":
            raise DiskFullError(*event["parts"])
        if event["kind"] == "out_of_memory":
            raise self._refused(event["message"].splitlines()[0])
        if event["kind"] == "not_compiled":
            log, tail = self._log_tail()
            found = f"kernels did not compile ({_first_line(event['message'])})"
            raise DeerstalkerError("trainer", found, "", f"`deerstalker doctor` names what compilers lack; {log}", tail)
        if event["transient"]:
            raise self._death(_first_line(event["message"]))
        raise DeerstalkerError("trainer", _first_line(event["message"]), "", *self._log_tail())

    def _death(self, problem: str) -> DeerstalkerError:
        """Returns the error for workers that are gone: transient, unless an allocation was refused."""
        assert self._queue is not None
        if message := refused_allocation(self._queue.log_file(0).read_text(errors="replace")):
            return self._refused(message)
        if kernel_kills() > self._kernel_kills:
            killed = f"{problem}, and the kernel has killed a process for lack of memory since they started"
            return TransientError("trainer", killed, self._room(), memory_remedy(self.hardware))
        return TransientError("trainer", problem, "", *self._log_tail())

    def _refused(self, message: str) -> DeerstalkerError:
        return DeerstalkerError(
            "trainer", f"out of memory ({message[:200]})", self._room(), memory_remedy(self.hardware)
        )

    def _room(self) -> str:
        return f"room for {self.hardware.processes} x micro_batch_tokens = {self.hardware.micro_batch_tokens}"

    def _log_tail(self) -> tuple[str, tuple[str, ...]]:
        """Returns a remedy that names the workers' log, and the last lines of it that may name a reason."""
        assert self._queue is not None
        path = self._queue.log_file(0)
        return f"log: {path}", tail_of(worker_output(path.read_text(errors="replace")))

    def stop(self) -> None:
        """Ends the processes at once and discards the state in their memory, even if it is not yet written."""
        self._holding = None
        agent, queue = self._agent, self._queue
        self._agent = None
        if agent is None or queue is None:
            return
        queue.end()
        agent.kill()


def _record(totals: TrainTotals) -> None:
    """Records the activities of a job that has just ended (see `artifacts.activity`)."""
    saved = time.perf_counter()
    trained = saved - totals.save_s
    loaded = trained - totals.train_s - totals.old_logprobs_s
    note("loading", loaded - totals.load_s, loaded)
    note("trainer", loaded, trained)
    note("saving", trained, saved)


def _first_line(message: str) -> str:
    """Returns the first line of a worker's error; its log holds the others."""
    return message.strip().partition("\n")[0]


def worker_output(log: str) -> str:
    """Returns the part of a log that the workers wrote, without the report and traceback that torchrun adds."""
    report = _AGENT_REPORT.search(log)
    return log[: report.start()] if report else log


def memory_remedy(hardware: TrainHardware) -> str:
    """Returns advice for a trainer that lacks memory: the settings of profile and recipe that would lower its need."""
    switches = {
        "trainer.activation_checkpointing": not hardware.activation_checkpointing,
        "trainer.cpu_offload": not hardware.cpu_offload and (hardware.processes > 1 or hardware.device == "cuda"),
    }
    unset = " or ".join(name for name, helps in switches.items() if helps)
    lower = "lower trainer.micro_batch_tokens or trainer.logprob_chunk_tokens"
    return (
        f"in the profile {lower}{f', or set {unset}' if unset else ''}; a row is never split, so shorter rows need a "
        "lower pack.row_tokens in the recipe; then the same command continues with the samples and the batch it has; "
        + SEE_DOCTOR
    )
