"""One tiny run by its deployment, which is cancelled, killed and retried; `test_deployed.py` tests its record."""

import json
import os
import shutil
import signal
import subprocess
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from prefect.client.orchestration import SyncPrefectClient

from artifacts.store.store import Store
from flows.orchestration.installation import make_zombie_automations
from tests.support.installed import LIMIT_S, ONE_ENGINE, SLOWLY, TINY, Installation
from tests.support.processes import DEERSTALKER
from tests.support.sockets import SocketWatch
from tests.support.stored import attempts_of

ZOMBIE_AFTER_S = 75.0
DEAD_AFTER_S = 10.0
"""Silence that counts as death while no run is alive; `up` accepts a minute or more: heartbeats come every 30 s."""


def tiny(folder: Path, **changes: Any) -> dict[str, Any]:
    return {"run": "tiny", "recipe": str(TINY), "profile": str(folder / "profile.toml"), **changes}


def attempts(installed: Installation) -> dict[str, str]:
    """Returns the attempt that published each artifact, by key."""
    return attempts_of(Store.open(str(installed.store)))


def tell(installation: Installation) -> dict[str, Any]:
    """Kills a command, cancels and kills a deployed run, retries it both times, and returns a record of all."""
    told: dict[str, Any] = {"record": installation.record, **lose_runs(installation)}
    told["again"] = installation.up("--zombie-after", str(ZOMBIE_AFTER_S))
    idle = set(installation.processes())
    shutil.copy(ONE_ENGINE, installation.folder / "profile.toml")

    def left() -> list[str]:
        return [command for pid, command in installation.processes().items() if pid not in idle]

    run = told["run"] = installation.deploy_run(
        "train/quickstart", tiny(installation.folder, profile_overrides=["tracker=tensorboard", SLOWLY])
    )
    rollouts = installation.part("tiny", 1, "rollouts")
    installation.wait(lambda: any(rollouts.glob("progress-*/rollouts-*.parquet")))
    told["busy"] = left()
    installation.cancel(run)
    told["gone_s"] = installation.wait(lambda: not left(), LIMIT_S)
    told["cancelled_s"] = told["gone_s"] + installation.wait(lambda: installation.state(run) == "Cancelled", LIMIT_S)

    installation.prefect("flow-run", "retry", run)
    installation.wait(lambda: installation.published("tiny", 1, "batch"))
    told["before_kill"] = attempts(installation)
    (flow,) = installation.flow_processes()
    os.kill(flow, signal.SIGKILL)
    told["kill_s"] = installation.wait(lambda: not left(), LIMIT_S)
    installation.wait_for(run, "Crashed")
    told["killed_at"], told["left_open"] = (attempts(installation), installation.open_tasks(run))

    profile = ONE_ENGINE.read_text().replace("threads = 1", "threads = 1\nmicro_batch_tokens = 512")
    (installation.folder / "profile.toml").write_text(profile)
    with SocketWatch(installation.processes) as told["sockets"]:
        installation.prefect("flow-run", "retry", run)
        installation.wait_for(run, "Completed")
    told["retried"], told["tasks"] = attempts(installation), installation.tasks(run, 3)
    told["shown"] = json.loads(installation.deerstalker("show", "tiny", "--store", str(installation.store), "--json"))
    return told


def lose_runs(installed: Installation) -> dict[str, dict[str, Any]]:
    """Returns the states of three runs that no process executes, after their silence has counted as death."""
    with SyncPrefectClient(installed.record["url"]) as client:
        make_zombie_automations(client, timedelta(seconds=DEAD_AFTER_S))
    runs = {
        "killed_command": kill_a_command(installed),
        "dropped": drop_a_run(installed),
        "submitted": drop_a_run(installed, "Submitting"),
    }
    for run in runs.values():
        installed.wait_for(run, "Crashed", LIMIT_S)
    return {name: installed.api("GET", f"/flow_runs/{run}")["state"] for name, run in runs.items()}


def kill_a_command(installed: Installation) -> str:
    """Kills a `deerstalker train` that reports to the server of `up`; returns the id of the run that it leaves."""
    command = [DEERSTALKER, "train", "--recipe", str(TINY)]
    command += ["--profile", str(ONE_ENGINE), "--run", "zombie", "--set", "puzzles.train=20000"]
    command += ["--store", str(installed.store)]
    process = subprocess.Popen(command, env=installed.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    chosen = {"flow_runs": {"name": {"any_": ["zombie"]}, "state": {"type": {"any_": ["RUNNING"]}}}}
    found: list[dict[str, Any]] = []

    def running() -> bool:
        found[:] = installed.api("POST", "/flow_runs/filter", chosen)
        return bool(found)

    installed.wait(running)
    time.sleep(3)  # its first heartbeat is on its way
    process.kill()
    process.wait()
    return found[0]["id"]


def drop_a_run(installed: Installation, *further: str) -> str:
    """Makes a run in the states in which a dying worker leaves it; returns its id."""
    deployment = installed.api("GET", "/deployments/name/prepare/puzzles")["id"]
    path = f"/deployments/{deployment}/create_flow_run"
    run = installed.api("POST", path, {"tags": ["deerstalker"], "state": {"type": "PENDING", "name": "Pending"}})["id"]
    for name in further:
        installed.api("POST", f"/flow_runs/{run}/set_state", {"state": {"type": "PENDING", "name": name}})
    return run
