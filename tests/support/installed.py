"""`deerstalker up` in a folder of its own, which a test drives with the commands that a person would use."""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flows.orchestration.server.api_access import read_auth_string
from tests.support.prefect_server import prefect_api, without_prefect
from tests.support.processes import Descendants
from tests.support.waiting import changes, output_of, wait_until

TINY, SLOW, ONE_ENGINE = (Path(__file__).with_name(f"{name}.toml") for name in ("tiny", "slow", "one_engine"))
"""A recipe as small as a real run gets, a profile under which a test can kill it in the middle of a stage, and one with
a single engine."""
SLOWLY = "engine.max_num_seqs=8"
"""Change of `ONE_ENGINE` under which a group is sampled at a time, so that a test can kill a run in `sample`."""
LIMIT_S = 400
MARK = "DEERSTALKER_TEST_FOLDER"


class Installation:
    """A data folder with a server and a worker.

    Attributes:
        store: The data folder.
        record: The document that `up` printed.
    """

    def __init__(self, folder: Path, **variables: str) -> None:
        self.folder, self.store = folder, folder / "store"
        self.environment = {**without_prefect(), MARK: str(folder), **variables}
        self._descendants = Descendants(MARK, folder)
        self.record: dict[str, Any] = {}

    def up(self, *arguments: str) -> dict[str, Any]:
        """Starts all parts that do not run, and returns the document that `up` prints."""
        self.record = json.loads(self.deerstalker("up", *arguments, "--store", str(self.store), "--json"))
        return self.record

    def down(self) -> list[str]:
        """Stops everything that `up` started, and returns a list of it."""
        return json.loads(self.deerstalker("down", "--store", str(self.store), "--json"))["ended"]

    def deerstalker(self, *arguments: str) -> str:
        """Returns the output of a command, which must succeed."""
        return self._command("deerstalker", *arguments)

    def prefect(self, *arguments: str) -> str:
        """Returns the output of a command of Prefect, which must succeed."""
        return self._command("prefect", *arguments)

    def _command(self, name: str, *arguments: str) -> str:
        done = self.attempt(name, *arguments)
        assert done.returncode == 0, (arguments, done.stdout[-2000:], done.stderr[-2000:], self.log())
        return done.stdout

    def attempt(self, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs a command that may fail."""
        command = [str(Path(sys.executable).with_name(name)), *arguments]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        with subprocess.Popen(command, **pipes, env=self.environment, cwd=self.folder) as process:
            try:
                output, errors = output_of(process, LIMIT_S, self.store)
            except subprocess.TimeoutExpired as error:
                raise AssertionError((arguments, error.stdout, error.stderr, self.log())) from error
        return subprocess.CompletedProcess(command, process.returncode, output, errors)

    def deploy_run(self, deployment: str, request: Mapping[str, Any], *options: str) -> str:
        """Asks for a run of a deployment, and returns its id."""
        given = {"request": {"store": str(self.store), **request}}
        output = self.prefect("deployment", "run", deployment, "--params", json.dumps(given), *options)
        return output.partition("UUID: ")[2].split()[0]

    def create_run(self, deployment: str, request: Mapping[str, Any]) -> str:
        """Asks the server for a run of a deployment, as its pages do; returns its id (the command takes 3 s)."""
        path = f"/deployments/{self.api('GET', f'/deployments/name/{deployment}')['id']}/create_flow_run"
        given = {"request": {"store": str(self.store), **request}}
        return self.api("POST", path, {"parameters": given, "state": {"type": "SCHEDULED"}})["id"]

    def cancel(self, run: str) -> None:
        """Cancels a flow run, as the button of Prefect's pages does."""
        self.api("POST", f"/flow_runs/{run}/set_state", {"state": {"type": "CANCELLING", "name": "Cancelling"}})

    def api(self, method: str, path: str, content: Any = None) -> Any:
        """An answer of Prefect's API."""
        auth = read_auth_string(Path(self.record["auth"])) if self.record["auth"] else None
        return prefect_api(self.record["url"], method, path, content, auth)

    def state(self, run: str) -> str:
        """Name of a flow run's state."""
        return self.api("GET", f"/flow_runs/{run}")["state"]["name"]

    def tasks(self, run: str, attempt: int) -> dict[str, str]:
        """State names of the task runs of one attempt of a flow run."""
        chosen = {"flow_runs": {"id": {"any_": [run]}}, "limit": 200}
        found = self.api("POST", "/task_runs/filter", chosen)
        return {item["name"]: item["state_name"] for item in found if item["flow_run_run_count"] == attempt}

    def open_tasks(self, run: str) -> list[str]:
        """Returns the names of a flow run's task runs that are in no final state, of all attempts."""
        states = {"type": {"any_": ["SCHEDULED", "PENDING", "RUNNING", "CANCELLING", "PAUSED"]}}
        chosen = {"flow_runs": {"id": {"any_": [run]}}, "task_runs": {"state": states}, "limit": 200}
        return [item["name"] for item in self.api("POST", "/task_runs/filter", chosen)]

    def wait(self, reached: Callable[[], bool], limit_s: float | None = None, poll_s: float = 0.1) -> float:
        """Waits for a condition and returns the seconds it took; without a limit, waits as long as artifacts come."""
        if limit_s is not None:
            return wait_until(reached, limit_s, self.log, poll_s)
        return wait_until(reached, LIMIT_S, self.log, poll_s, lambda: changes(self.store))

    def wait_for(self, run: str, state: str, limit_s: float | None = None) -> float:
        """Waits until a flow run has a state; fails if the run ends in another one."""
        ends = {"Completed", "Failed", "Crashed", "Cancelled"} - {state}

        def reached() -> bool:
            found = self.state(run)
            assert found not in ends, (found, self.log())
            return found == state

        return self.wait(reached, limit_s, 0.5)

    def part(self, run: str, iteration: int, part: str) -> Path:
        """Folder of an artifact."""
        return self.store / "runs" / run / "iterations" / f"{iteration:04d}" / part

    def published(self, run: str, iteration: int, part: str) -> bool:
        """Whether an artifact is published."""
        return (self.part(run, iteration, part) / "manifest.json").is_file()

    def processes(self) -> dict[int, str]:
        """Command lines of the processes that run for this folder, by id."""
        return self._descendants.living()

    def flow_processes(self) -> list[int]:
        """Ids of the processes that execute a flow run for the worker."""
        return [pid for pid, command in self.processes().items() if "-m prefect." in command and "engine" in command]

    def log(self) -> str:
        """Returns the end of the logs of server and worker."""
        logs = (self.store / ".prefect").glob("*.log")
        return "\n".join(f"{path.name}:\n{path.read_text(errors='replace')[-3000:]}" for path in logs)
