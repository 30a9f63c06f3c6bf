"""A run on two hosts, one of which is cut off: `python -m tests.faults.two_hosts [--json]`, by hand, as root.

Two network namespaces with a Prefect worker each, one S3 store, one Prefect server. The first host samples, the second
trains. In the second and the third iteration the first host loses its network while it samples; that is reported, and
the second host completes the iteration with the groups that the first had stored. The cable is back after the first
host gave up, and then while it still tries: it finds the stage done and changes nothing.

Then a worker group has one process on each host. The ports on which processes of the two hosts listen are listed: a
run listens on loopback only, the worker group on the network between the hosts.
"""

import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Collection, Generator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from artifacts.store.store import Store
from artifacts.verification import verify
from tests.support.bars import kept, parser_of, tell
from tests.support.hosts import GATEWAY, Host, hosts, require_hosts
from tests.support.installed import SLOW, TINY
from tests.support.prefect_server import prefect_api, prefect_server, without_prefect
from tests.support.processes import DEERSTALKER, marked
from tests.support.servers import moto_server
from tests.support.sockets import Listener, SocketWatch
from tests.support.stored import attempts_of, manifests_of
from tests.support.waiting import wait_until
from tests.support.worker_group_on_hosts import worker_group_on

ROOT = Path(__file__).parents[2]
MARK = "DEERSTALKER_HOSTS"
BUCKET, PREFIX, RUN = "hosts", "shared", "tiny"
POOL = "deerstalker"
STATE_LIMIT_S = 600.0
GONE_LIMIT_S = 300.0
GIVEN_UP_LIMIT_S = 600.0
"""How long a flow takes to end whose host stays cut off: Prefect's client tries to report that for minutes."""
ZOMBIE_AFTER_S = 60.0
ENDS = ("Completed", "Failed", "Crashed", "Cancelled")


@dataclass
class Site:
    """The server, the store, and what is known of the runs.

    Attributes:
        api: Address of Prefect's API.
        rows: One a flow run.
    """

    folder: Path
    api: str
    store: Store
    environment: dict[str, str]
    rows: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    def call(self, method: str, path: str, content: Any = None) -> Any:
        """An answer of Prefect's API."""
        return prefect_api(self.api, method, path, content)

    def ask(self, host: Host, **request: Any) -> str:
        """Asks for a part of the run on a host, and returns the flow run's id."""
        deployment = self.call("GET", "/deployments/name/train/quickstart")["id"]
        request = {
            "run": RUN, "recipe": str(TINY), "profile": str(SLOW),
            "store": f"s3://{BUCKET}/{PREFIX}", "overrides": ["iterations=3"], **request,
        }  # fmt: skip
        content = {"parameters": {"request": request}, "work_queue_name": host.name}
        return self.call("POST", f"/deployments/{deployment}/create_flow_run", content)["id"]

    def state(self, run: str) -> dict[str, Any]:
        """A flow run's state."""
        return self.call("GET", f"/flow_runs/{run}")["state"]

    def tasks(self, run: str) -> dict[str, str]:
        """States of a flow run's stages."""
        chosen = {"flow_runs": {"id": {"any_": [run]}}, "limit": 200}
        return {task["name"]: task["state_name"] for task in self.call("POST", "/task_runs/filter", chosen)}

    def end(self, what: str, run: str, host: Host, expected: str) -> dict[str, Any]:
        """Waits for the end of a flow run, and notes and returns what it was.

        Raises:
            AssertionError: It ends otherwise.
        """
        wait_until(lambda: self.state(run)["name"] in ENDS, STATE_LIMIT_S)
        state, stages = self.state(run), list(self.tasks(run).values())
        counts = {name: stages.count(name) for name in ("Completed", "Cached")}
        said = state["message"] or ""
        self.rows.append({"part": what, "host": host.name, "state": state["name"], **counts, "says": said[:100]})
        assert state["name"] == expected, (self.rows[-1], said, self.log())
        return self.rows[-1]

    def made_on(self, iteration: int) -> dict[str, str]:
        """Which host published a part of an iteration."""
        start = f"runs/{RUN}/iterations/{iteration:04d}/"
        stored = manifests_of(self.store).items()
        return {key.split("/")[4]: made.provenance["host"] for key, made in stored if key.startswith(start)}

    def shards(self, iteration: int) -> set[str]:
        """Names of the groups stored so far."""
        keys = self.store.list(f"runs/{RUN}/iterations/{iteration:04d}/rollouts")
        return {key.rpartition("/")[2] for key in keys if key.endswith(".parquet")}

    def log(self) -> str:
        """The workers' last words."""
        return "\n".join(path.read_text(errors="replace")[-2500:] for path in self.folder.glob("host-*.log"))


@contextmanager
def site(folder: Path) -> Generator[Site]:
    """A store and a Prefect server on the bridge, with the deployments."""
    with moto_server(GATEWAY) as server, prefect_server(folder / "server", GATEWAY) as address:
        server.create_bucket(BUCKET)
        environment = {name: value for name, value in without_prefect().items() if not name.lower().endswith("_proxy")}
        environment |= server.environment() | {
            "PREFECT_API_URL": f"{address}/api", "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",
            "PREFECT_WORKER_QUERY_SECONDS": "2", MARK: str(folder),
        }  # fmt: skip
        up = [
            DEERSTALKER, "up", "--server", f"{address}/api", "--no-worker",
            "--pool", POOL, "--store", f"s3://{BUCKET}/{PREFIX}", "--zombie-after", str(ZOMBIE_AFTER_S),
        ]  # fmt: skip
        home = {"PREFECT_HOME": str(folder / "home")}
        done = subprocess.run(up, env=environment | home, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        store = Store.open(f"s3://{BUCKET}/{PREFIX}", options=server.options())
        yield Site(folder, f"{address}/api", store, environment)


@contextmanager
def worker(site: Site, host: Host) -> Generator[None]:
    """A Prefect worker on a host, with a home and a temporary folder of its own, that polls the queue of its name."""
    own = site.folder / host.name
    own.mkdir()
    words = [
        sys.executable,
        str(ROOT / "flows" / "orchestration" / "server" / "worker_process.py"),
        "worker",
        "start",
        "--pool",
        POOL,
    ]
    words += ["--type", "process", "--work-queue", host.name, "--name", host.name]
    environment = site.environment | {"PREFECT_HOME": str(own), "TMPDIR": str(own)}
    with (site.folder / f"host-{host.name}.log").open("wb") as log:
        process = subprocess.Popen(
            host.command(words), env=environment, cwd=own, stdout=log, stderr=log, start_new_session=True
        )
    try:
        yield
    finally:
        process.kill()
        process.wait()
        for pid in marked("PREFECT_HOME", own):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


PROMISES = {
    "work lost, or repeated": "lost, or made twice|sampled again",
    "ports open to others": "Listener|listens|exposed",
    "parts that ended in another way than promised": "",
}
"""What must not happen, and the words of the errors that tell of it."""


def campaign(folder: Path) -> dict[str, Any]:
    """The story.

    Raises:
        AssertionError: Something was lost, made twice, half-published or not reported.
    """
    with ExitStack() as stack:
        sampler, trainer = stack.enter_context(hosts("sampler", "trainer"))
        here = stack.enter_context(site(folder))
        for host in (sampler, trainer):
            stack.enter_context(worker(here, host))
        folders = (folder / sampler.name, folder / trainer.name)
        try:
            with SocketWatch(lambda: [pid for own in folders for pid in marked("PREFECT_HOME", own)]) as watch:
                report = _story(here, sampler, trainer)
            assert not watch.exposed, f"exposed: {watch.exposed}"
            return report | {"listening": [*_named("a run", watch.seen), *_worker_group(sampler, trainer, folder)]}
        except AssertionError as error:
            raise AssertionError(f"{error}\n{here.log()}") from error


def _worker_group(first: Host, second: Host, folder: Path) -> list[dict[str, Any]]:
    """What a group listens on that has a process on each host.

    Raises:
        AssertionError: On something else than the network between the hosts, or not the processes that are to.
    """
    rows: list[dict[str, Any]] = []
    own = folder / "group"
    own.mkdir()
    with worker_group_on((first, second), own) as listeners_of:
        for host in (first, second):
            for listener in listeners_of[host.name]:
                assert listener.address == host.address and "stages.training.worker_group.worker" in listener.program, (
                    f"it listens elsewhere: {listener}"
                )
            rows += _named(f"a group, on {host.name}", listeners_of[host.name])
    return rows


def _named(what: str, listeners: Collection[Listener]) -> list[dict[str, Any]]:
    """A row for each program and address, with the number of its ports; these are other ones each time."""
    counts = Counter((listener.short, listener.address) for listener in listeners)
    return [
        {"who": what, "program": program, "address": address, "ports": count}
        for (program, address), count in sorted(counts.items())
    ]


def _story(here: Site, sampler: Host, trainer: Host) -> dict[str, Any]:
    here.end("to sample@1", here.ask(sampler, stop_after="sample@1"), sampler, "Completed")
    here.end("to promote@1", here.ask(trainer, stop_after="promote@1"), trainer, "Completed")
    made = here.made_on(1)
    assert made.pop("rollouts") == sampler.name and set(made.values()) == {trainer.name}, made

    cuts = [
        _cut_off(here, 2, sampler, trainer, patience=["retries=0"], back_in_time=False),
        _cut_off(here, 3, sampler, trainer, patience=["retries=40", "retry_delay_s=0"], back_in_time=True),
    ]
    here.end("the rest", here.ask(trainer), trainer, "Completed")
    assert verify(here.store).damaged == []
    again = here.end("the same again", here.ask(sampler), sampler, "Completed")
    assert again["Completed"] == 0, again
    return {"parts": here.rows, "cuts": cuts, "artifacts": len(attempts_of(here.store))}


def _cut_off(
    here: Site, iteration: int, cut: Host, other: Host, *, patience: list[str], back_in_time: bool
) -> dict[str, Any]:
    """A host loses its network while it samples, another completes the iteration, and the cable is plugged in again.

    Args:
        patience: Overrides of the profile of the run that is cut off: how long it goes on trying.
        back_in_time: Whether the cable is back before that run gives up; its stage is done by then.
    """
    last = f"sample@{iteration}"
    run = here.ask(cut, stop_after=last, profile_overrides=patience)
    wait_until(lambda: bool(here.shards(iteration)), STATE_LIMIT_S, poll_s=0.05)
    cut.cut()
    before, kept = attempts_of(here.store), here.shards(iteration)
    assert "rollouts" not in here.made_on(iteration), "it was over before the cable was pulled"
    reported_s = wait_until(lambda: here.state(run)["name"] == "Crashed", STATE_LIMIT_S)
    here.end(f"to {last}, cut off", run, cut, "Crashed")
    here.end(f"to promote@{iteration}", here.ask(other, stop_after=f"promote@{iteration}"), other, "Completed")
    assert set(here.made_on(iteration).values()) == {other.name}
    done, objects = attempts_of(here.store), set(here.store.list(""))

    if back_in_time:
        assert _flows(here.folder / cut.name), "it gave up before the cable was back"
        cut.mend()
        gone_s = wait_until(lambda: not _flows(here.folder / cut.name), GONE_LIMIT_S)
    else:
        gone_s = wait_until(lambda: not _flows(here.folder / cut.name), GIVEN_UP_LIMIT_S)
        cut.mend()
    # Who gave up stays reported. Who did not finds that another has published the stage: nothing is left to do for it.
    told = here.end(f"to {last}, cable back", run, cut, "Completed" if back_in_time else "Crashed")
    stage = here.tasks(run)[f"sample-{iteration:04d}"]
    assert (stage == "Cached") is back_in_time, stage
    assert before.items() <= done.items() and done == attempts_of(here.store), "lost, or made twice"
    rollouts = manifests_of(here.store)[f"runs/{RUN}/iterations/{iteration:04d}/rollouts"]
    assert kept <= set(rollouts.files), f"sampled again: {kept - set(rollouts.files)}"
    return {
        "reported_s": round(reported_s, 1),
        "kept_shards": len(kept),
        "left_by_the_cut_host": len(set(here.store.list("")) - objects),
        "gone_s": round(gone_s, 1),
        "told_afterwards": told["state"],
    }


def _flows(home: Path) -> list[int]:
    """Ids of the processes that execute a flow run for the worker of a host."""
    return [pid for pid, line in marked("PREFECT_HOME", home).items() if "-m prefect." in line and "engine" in line]


def main() -> None:
    """Cuts a host off, and prints what became of the run."""
    parser = parser_of(__doc__)
    options = parser.parse_args()
    require_hosts()
    with tempfile.TemporaryDirectory(prefix="two-hosts-") as scratch:
        report, bars = kept(PROMISES, lambda: campaign(Path(scratch)))
    tell(report, bars, as_json=options.json)


if __name__ == "__main__":
    main()
