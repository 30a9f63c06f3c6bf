"""A run by its deployment, cancelled, killed, retried and refreshed, on what `deerstalker up` starts."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from artifacts.manifest import Manifest
from flows.gpu_lease import LEASE_S
from tests.flow.installed import HERE, LIMIT_S, Installation

CANCEL_LIMIT_S = 20.0
KILL_LIMIT_S = 30.0
"""5 s and 10 s are what an idle machine keeps; one whose cores are shared by ten others is granted more."""

ZOMBIE_AFTER_S = 75.0


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    installed = Installation(tmp_path_factory.mktemp("deployed"))
    installed.up("--port", "0", "--zombie-after", str(ZOMBIE_AFTER_S))
    try:
        yield installed
    finally:
        installed.down()


def tiny(folder: Path, **changes: Any) -> dict[str, Any]:
    return {"run": "tiny", "recipe": str(HERE / "tiny.toml"), "profile": str(folder / "profile.toml"), **changes}


def attempts(installed: Installation) -> dict[str, str]:
    return {
        str(path.parent.relative_to(installed.store)): Manifest.from_bytes(path.read_bytes(), str(path)).attempt
        for path in installed.store.rglob("manifest.json")
    }


@pytest.fixture(scope="module")
def story(installation: Installation) -> dict[str, Any]:
    """A command is killed; a deployed run is cancelled, killed, and retried both times, in one story."""
    told: dict[str, Any] = {
        "record": installation.record,
        "again": installation.up("--zombie-after", str(ZOMBIE_AFTER_S)),
    }
    idle = set(installation.processes())
    shutil.copy(HERE / "slow.toml", installation.folder / "profile.toml")
    told["killed_command"] = kill_a_command(installation)

    def left() -> list[str]:
        return [command for pid, command in installation.processes().items() if pid not in idle]

    run = told["run"] = installation.deploy_run("train/quickstart", tiny(installation.folder))
    rollouts = installation.part("tiny", 1, "rollouts")
    installation.wait(lambda: any(rollouts.glob("progress-*/rollouts-*.parquet")))
    told["busy"] = left()
    cancelling = {"state": {"type": "CANCELLING", "name": "Cancelling"}}
    installation.api("POST", f"/flow_runs/{run}/set_state", cancelling)  # what the button of the user interface does
    told["gone_s"] = installation.wait(lambda: not left(), 60)
    told["cancelled_s"] = told["gone_s"] + installation.wait(lambda: installation.state(run) == "Cancelled", 60)

    installation.prefect("flow-run", "retry", run)
    installation.wait(lambda: installation.published("tiny", 1, "batch"))
    told["before_kill"] = attempts(installation)
    (flow,) = installation.flow_processes()
    os.kill(flow, signal.SIGKILL)
    told["kill_s"] = installation.wait(lambda: not left(), 60)
    installation.wait_for(run, "Crashed")
    told["killed_at"] = attempts(installation)

    profile = (HERE / "slow.toml").read_text().replace("threads = 1", "threads = 1\nmicro_batch_tokens = 512")
    (installation.folder / "profile.toml").write_text(profile)
    installation.prefect("flow-run", "retry", run)
    installation.wait_for(run, "Completed")
    told["retried"], told["tasks"] = attempts(installation), installation.tasks(run, 3)
    return told


def kill_a_command(installed: Installation) -> str:
    """`deerstalker train` beside a server of `up` reports to it; killed, it leaves a run that nobody watches."""
    command = [str(Path(sys.executable).with_name("deerstalker")), "train", "--recipe", str(HERE / "tiny.toml")]
    command += ["--run", "zombie", "--set", "puzzles.train=20000", "--store", str(installed.store)]
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


def test_up_again_changes_nothing(story: dict[str, Any]) -> None:
    assert story["again"] == story["record"]
    assert set(story["record"]["deployments"]) >= {
        "train/quickstart", "iterate/run", "evaluate/checkpoint", "prepare/puzzles", "compare/recipes",
        "backfill/suite",
    }  # fmt: skip


def test_cancelled_it_ends_soon_and_leaves_no_process(story: dict[str, Any]) -> None:
    assert any("vllm" in command or "server.py" in command for command in story["busy"])
    assert story["gone_s"] < CANCEL_LIMIT_S
    assert story["cancelled_s"] < CANCEL_LIMIT_S


def test_killed_it_leaves_no_process(story: dict[str, Any]) -> None:
    assert story["kill_s"] < KILL_LIMIT_S


def test_a_retry_executes_only_what_has_no_artifact(story: dict[str, Any]) -> None:
    assert story["retried"].keys() > story["killed_at"].keys() >= story["before_kill"].keys()
    assert {key: story["retried"][key] for key in story["killed_at"]} == story["killed_at"]
    tasks = story["tasks"]
    cached = {name for name, state in tasks.items() if state == "Cached"}
    assert {
        "prepare",
        "fetch",
        "warm_start",
        "evaluate-0000",
        "promote-0000",
        "sample-0001",
        "grade-0001",
        "pack-0001",
    } <= cached
    assert tasks["sample-0002"] == "Completed"
    assert set(tasks.values()) == {"Cached", "Completed"}


def test_a_changed_profile_reuses_samples_grades_and_batch(story: dict[str, Any], installation: Installation) -> None:
    assert not installation.published("tiny", 3, "batch")
    made = Manifest.from_bytes((installation.part("tiny", 1, "batch") / "manifest.json").read_bytes(), "batch")
    assert made.attempt == story["before_kill"]["runs/tiny/iterations/0001/batch"]


def test_named_stages_are_redone_and_a_run_goes_on(story: dict[str, Any], installation: Installation) -> None:
    request = {"run": "tiny", "more": 1, "profile": str(installation.folder / "profile.toml"), "refresh": ["grade@1"]}
    run = installation.deploy_run("iterate/run", request)
    installation.wait_for(run, "Completed")
    tasks = installation.tasks(run, 1)
    third = {f"{stage}-0003" for stage in ("sample", "grade", "pack", "finetune", "evaluate", "promote")}
    assert {name for name, state in tasks.items() if state != "Cached"} == {"grade-0001", *third}
    now, before = attempts(installation), story["retried"]
    assert {key for key in before if now[key] != before[key]} == {"runs/tiny/iterations/0001/grades"}

    installation.prefect("flow-run", "retry", run)  # the same request: nothing more, and nothing redone again
    installation.wait(lambda: bool(installation.tasks(run, 2)))
    installation.wait_for(run, "Completed")
    assert set(installation.tasks(run, 2).values()) == {"Cached"}
    assert attempts(installation) == now


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ({"recepi": "quickstart"}, "recepi"),
        ({"refresh": ["smaple"]}, "smaple"),
        ({"overrides": "iterations=1"}, "iterations=1"),
    ],
)
def test_typos_are_refused(installation: Installation, request_: dict[str, Any], words: str) -> None:
    given = json.dumps({"request": request_})
    done = installation.attempt("prefect", "deployment", "run", "train/quickstart", "--params", given)
    assert done.returncode != 0
    assert words in done.stdout + done.stderr


@pytest.fixture(scope="module")
def gpu_profile(installation: Installation) -> str:
    path = installation.folder / "gpu.toml"
    path.write_text('gpu_slot = "gpu"\n' + (HERE / "slow.toml").read_text() + "device = 'cpu'\n")
    return str(path)


def slots_taken(installed: Installation) -> int:
    return installed.api("GET", "/v2/concurrency_limits/gpu")["active_slots"]


def leases(installed: Installation) -> dict[str, datetime]:
    """When each lease runs out, by id: what the server keeps beside its database."""
    folder = installed.store / ".prefect" / "concurrency_leases"
    found = [json.loads(path.read_bytes()) for path in folder.glob("*-*.json")]
    return {lease["id"]: datetime.fromisoformat(lease["expiration"]) for lease in found}


def test_a_run_waits_for_the_gpu_and_keeps_it_while_the_server_is_away(
    installation: Installation, gpu_profile: str
) -> None:
    idle = set(installation.processes())
    lease = installation.api(
        "POST", "/v2/concurrency_limits/increment-with-lease",
        {"names": ["gpu"], "slots": 1, "mode": "concurrency", "lease_duration": 300},
    )  # fmt: skip
    request = tiny(installation.folder, run="holder", profile=gpu_profile, overrides=["iterations=99"])
    run = installation.deploy_run("train/quickstart", request)
    installation.wait(lambda: installation.tasks(run, 1).get("warm_start") == "Running")
    assert installation.tasks(run, 1)["fetch"] in {"Cached", "Completed"}  # what needs no GPU went ahead
    time.sleep(3)
    commands = [command for pid, command in installation.processes().items() if pid not in idle]
    assert not any("stages.training" in command or "server.py" in command for command in commands)

    installation.api("POST", "/v2/concurrency_limits/decrement-with-lease", {"lease_id": lease["lease_id"]})
    installation.wait(lambda: bool(leases(installation).keys() - {lease["lease_id"]}))

    # The server dies and comes back: the holder keeps its slot, whoever waits goes on waiting.
    waiting = tiny(installation.folder, run="waiting", profile=gpu_profile)
    second = installation.deploy_run("train/quickstart", waiting)
    installation.wait(lambda: installation.tasks(second, 1).get("warm_start") == "Running")
    (held,) = leases(installation)
    before = installation.record
    os.kill(before["server"]["pid"], signal.SIGKILL)
    installation.wait(lambda: before["server"]["pid"] not in installation.processes())
    port = before["url"].split(":")[2].split("/")[0]
    after = installation.up("--port", port, "--zombie-after", str(ZOMBIE_AFTER_S))
    assert (after["worker"], after["url"]) == (before["worker"], before["url"])
    came_back = datetime.now(UTC)
    assert [installation.state(one) for one in (run, second)] == ["Running", "Running"]
    installation.wait(lambda: leases(installation)[held] > came_back + timedelta(seconds=LEASE_S), LEASE_S)
    assert (slots_taken(installation), list(leases(installation))) == (1, [held])
    assert installation.tasks(second, 1)["warm_start"] == "Running"

    installation.prefect("flow-run", "cancel", run)
    installation.wait_for(run, "Cancelled")
    installation.wait(lambda: bool(leases(installation).keys() - {held}))
    assert (slots_taken(installation), installation.state(second)) == (1, "Running")
    installation.prefect("flow-run", "cancel", second)
    installation.wait_for(second, "Cancelled")
    installation.wait(lambda: slots_taken(installation) == 0)


def test_puzzles_in_the_making_are_cancelled_soon(installation: Installation) -> None:
    idle = set(installation.processes())
    run = installation.deploy_run("prepare/puzzles", {"puzzles": {"train": 20000, "seed": 7}})
    drawn = set(installation.store.glob("puzzles/drawn/*/manifest.json"))
    installation.wait(lambda: set(installation.store.glob("puzzles/drawn/*/manifest.json")) > drawn)
    installation.prefect("flow-run", "cancel", run)
    assert installation.wait(lambda: set(installation.processes()) <= idle, 60) < CANCEL_LIMIT_S
    installation.wait_for(run, "Cancelled")


def test_a_run_whose_process_vanished_unseen_is_crashed(story: dict[str, Any], installation: Installation) -> None:
    installation.wait_for(story["killed_command"], "Crashed", LIMIT_S)


def test_down_ends_what_up_started_and_the_record_of_runs_stays(
    story: dict[str, Any], installation: Installation
) -> None:
    assert installation.down() == ["worker", "server"]
    assert installation.processes() == {}
    assert not (installation.folder / "prefect.toml").exists()
    installation.up("--port", "0")
    assert installation.state(story["run"]) == "Completed"
