"""The same kills for a run of a deployment: also of its worker and of the server that `deerstalker up` runs.

After each kill, the test does what a person would do: `deerstalker up` if server or worker is gone, `prefect flow-run
retry` if the run has crashed or failed.
"""

import random
import time
from pathlib import Path

import httpx

from tests.support.installed import SLOW, TINY, Installation
from tests.support.kills_run import LONGEST_WAIT_S, MARK, RUN_LIMIT_S, Run
from tests.support.waiting import wait_until

OVER = ("Failed", "Crashed", "Cancelled")
NEEDED = {
    "Prefect server": "flows/orchestration/server/server_process.py",
    "worker": "flows/orchestration/server/worker_process.py",
}


class DeployedRun(Run):
    """One run of the deployment `train/quickstart`, on an installation of its own."""

    def __init__(self, folder: Path, generator: random.Random) -> None:
        super().__init__(folder, generator)
        self.scratch.mkdir()
        self.installed = Installation(folder, **{MARK: str(folder), "TMPDIR": str(self.scratch)})
        self.port, self.run_id, self.retries = "0", "", 0

    def disturb(self, kills: int) -> None:
        """Kills processes at random moments, repairs the run as a person would, and lets it finish."""
        self.mend()
        request = {"run": "tiny", "recipe": str(TINY), "profile": str(SLOW)}
        self.run_id = self.installed.deploy_run("train/quickstart", request)
        try:
            for _ in range(kills):
                time.sleep(self.generator.uniform(0.2, LONGEST_WAIT_S))
                if self.mend() == "Completed":
                    return
                self.kill_any()
            wait_until(lambda: self.mend() == "Completed", RUN_LIMIT_S, self.tail, 0.5, self.progress)
        finally:
            self.installed.down()
            self.nothing_is_left()

    def tail(self) -> str:
        """Returns the states that the run went through, and the end of the logs of server and worker."""
        states = self.installed.api("GET", f"/flow_run_states/?flow_run_id={self.run_id}")
        told = "\n".join(f"{state['timestamp']} {state['name']}: {state['message'] or ''}" for state in states)
        return f"{told}\n{self.installed.log()}"

    def mend(self) -> str:
        """Starts a missing server or worker, retries a run that is over, and returns the run's state before that."""
        lines = [line for line in self.processes().values() if "stages/processes/guard.py" not in line]
        if not all(any(part in line for line in lines) for part in NEEDED.values()):
            self.installed.up("--port", self.port, "--zombie-after", "60")
            self.port = self.installed.record["url"].rpartition(":")[2].partition("/")[0]
            self.starts += 1
        if not self.run_id:
            return ""
        try:
            state = self.installed.state(self.run_id)
        except httpx.TransportError:
            return ""  # the server is about to end
        if state in OVER:
            self.retries += 1
            self.installed.prefect("flow-run", "retry", self.run_id)
        return state

    def kill_any(self) -> None:
        """Kills the worker, the server, the flow or one of its processes; all kinds are equally likely."""
        lines = self.processes()
        living = self.victims(lines)
        # The guard of a worker's session has the same words in its command line, but counts as a guard.
        living["worker"] = [
            pid for pid, line in lines.items() if NEEDED["worker"] in line and "stages/processes/guard.py" not in line
        ]
        living["flow"] = self.installed.flow_processes()
        name = self.generator.choice([name for name, pids in living.items() if pids])
        self.kill(name, self.generator.choice(living[name]))
