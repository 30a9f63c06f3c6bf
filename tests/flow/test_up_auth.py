"""`deerstalker up --auth`: everybody of ours is let in, nobody else, and no secret can be read or is shown."""

import json
import os
import signal
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from flows.cli.app import run_command
from flows.doctor.facts import other_accounts
from tests.support.installed import LIMIT_S, ONE_ENGINE, Installation
from tests.support.json_page import check_documented
from tests.support.prefect_server import own_server, prefect_api, without_prefect
from tests.support.processes import DEERSTALKER
from tests.support.secrets import holders_of

pytestmark = pytest.mark.long

REQUEST = {
    "puzzles": {"puzzle": {"connectives": False}, "train": 8, "val": 4, "test": 4}, "profile": str(ONE_ENGINE)
}  # fmt: skip
CANCEL_LIMIT_S = 300.0
ELSEWHERE = "someone:their-secret-password"


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    installed = Installation(tmp_path_factory.mktemp("locked"))
    installed.up("--port", "0", "--auth")
    try:
        yield installed
    finally:
        installed.down()


def _secret(installed: Installation) -> str:
    return (installed.store / ".prefect" / "auth-string").read_text().strip()


def _status(installed: Installation, path: str, **headers: str) -> int:
    return httpx.get(installed.record["url"] + path, headers=headers, trust_env=False, timeout=60).status_code


def test_the_server_asks_for_the_string_except_for_its_health(locked: Installation) -> None:
    assert _status(locked, "/admin/version") == 401
    assert _status(locked, "/admin/version", authorization="Basic d3Jvbmc6b25l") == 401
    assert _status(locked, "/health") == 200
    assert locked.api("GET", "/admin/version").startswith("3.")


@pytest.fixture(scope="module")
def deployed(locked: Installation) -> str:
    """Id of a run that was started by its deployment."""
    return locked.create_run("prepare/puzzles", REQUEST)


def test_a_deployed_run_completes_with_it(locked: Installation, deployed: str) -> None:
    locked.wait_for(deployed, "Completed")


@pytest.mark.release
def test_a_run_is_retried_while_its_last_process_still_exits(locked: Installation) -> None:
    """Without `one_process_per_flow_run`, the exit of the first process makes the second one crash."""
    locked.wait(lambda: not locked.flow_processes())  # the last test's process
    run = locked.create_run("prepare/puzzles", {**REQUEST, "puzzles": {**REQUEST["puzzles"], "seed": 8}})
    locked.wait(lambda: bool(locked.flow_processes()))
    (first,) = locked.flow_processes()
    while locked.state(run) != "Completed":  # in slices that are shorter than its exit, so that it cannot end unseen
        os.kill(first, signal.SIGCONT)
        time.sleep(0.2)
        os.kill(first, signal.SIGSTOP)
    try:
        locked.prefect("flow-run", "retry", run)
        log = locked.store / ".prefect" / "worker.log"
        locked.wait(lambda: log.read_text().count(f"submitting flow run '{run}'") == 2)
    finally:
        os.kill(first, signal.SIGCONT)
    locked.wait_for(run, "Completed")
    locked.wait(lambda: locked.tasks(run, 2) == {"prepare": "Cached"})


def test_a_typo_is_refused_by_the_command(locked: Installation) -> None:
    given = json.dumps({"request": {"recepi": "quickstart"}})
    done = locked.attempt("prefect", "deployment", "run", "train/quickstart", "--params", given)
    assert done.returncode != 0
    assert "recepi" in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ({"recepi": "quickstart"}, "recepi"),
        ({"refresh": ["smaple"]}, "smaple"),
        ({"overrides": "iterations=1"}, "iterations=1"),
    ],
)
def test_typos_are_refused_by_the_server(locked: Installation, request_: dict[str, Any], words: str) -> None:
    deployment = locked.api("GET", "/deployments/name/train/quickstart")["id"]
    with pytest.raises(httpx.HTTPStatusError) as refused:
        locked.api("POST", f"/deployments/{deployment}/create_flow_run", {"parameters": {"request": request_}})
    assert refused.value.response.status_code == httpx.codes.CONFLICT
    assert words in refused.value.response.text


@pytest.mark.release
def test_puzzles_in_the_making_are_cancelled_soon(locked: Installation) -> None:
    idle = set(locked.processes())
    run = locked.create_run("prepare/puzzles", {**REQUEST, "puzzles": {"train": 20000, "seed": 7}})
    drawn = set(locked.store.glob("puzzles/drawn/*/manifest.json"))
    locked.wait(lambda: set(locked.store.glob("puzzles/drawn/*/manifest.json")) > drawn)
    locked.prefect("flow-run", "cancel", run)
    locked.wait(lambda: set(locked.processes()) <= idle, CANCEL_LIMIT_S)
    locked.wait_for(run, "Cancelled")


@pytest.mark.release
def test_commands_find_it_from_anywhere(locked: Installation, tmp_path: Path) -> None:
    command = ["puzzles", "make", "--size", "reduced", "--count", "3", "--out", str(locked.store), "--json"]
    known = len(locked.api("POST", "/flow_runs/filter", {}))
    done = subprocess.run(
        [DEERSTALKER, *command],
        env=locked.environment, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(locked.api("POST", "/flow_runs/filter", {})) == known + 1
    made = json.loads(done.stdout)
    check_documented("puzzles make", made, unmet={"file", "puzzles"})
    page = Path(made["report"].removeprefix("file://"))
    facts = json.loads(page.with_name("report.json").read_text())
    assert (facts["splits"], facts["different"]) == ({"train": 1, "val": 1, "test": 1}, 3)
    assert sum(facts["clue_kinds"].values()) == sum(facts["clues"])
    assert (facts["prompt"]["unit"], facts["prompt"]["tokenizer"]) == ("tokens", "SmolLM2-135M-Instruct")
    assert "by SmolLM2-135M-Instruct" in page.read_text()
    assert page.read_text().count("data:image/png") == 5
    line = _prefect_line(locked)
    assert line["status"] == "ok" and locked.record["url"] in line["found"]


@pytest.mark.release
@pytest.mark.parametrize("asked", [["--auth"], []])
def test_up_again_changes_nothing_and_keeps_the_string(locked: Installation, asked: list[str]) -> None:
    record, secret = locked.record, _secret(locked)
    assert locked.up(*asked) == record
    assert _secret(locked) == secret


def test_nobody_else_can_read_what_it_holds(locked: Installation) -> None:
    home = locked.store / ".prefect"
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    files = [locked.folder / "prefect.toml", *(home / name for name in ("auth-string", "up.json", "prefect.db"))]
    files += [home / "server.log", home / "worker.log", home / "in-use.lock", *home.glob("prefect.db-*")]
    assert {str(path): oct(stat.S_IMODE(path.stat().st_mode)) for path in files} == {str(p): "0o600" for p in files}
    private = {str(home / "auth-string"), str(locked.folder / "prefect.toml")}
    assert set(holders_of([_secret(locked)], [locked.folder])) == private
    lines = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in locked.processes()]
    assert lines and not any(_secret(locked).encode() in line for line in lines)


@pytest.mark.release
def test_down_ends_it_and_the_next_one_has_the_same_string(tmp_path: Path) -> None:
    installed = Installation(tmp_path)
    installed.up("--port", "0", "--auth", "--no-worker")
    try:
        secret = _secret(installed)
        assert installed.down() == ["server"]
        assert not (tmp_path / "prefect.toml").exists()
        installed.up("--port", "0", "--no-worker")
        assert installed.record["auth"] is None and _status(installed, "/admin/version") == 200
        line = _prefect_line(installed)
        assert line["status"] == ("warning" if other_accounts() else "ok"), line
        refused = installed.attempt("deerstalker", "up", "--auth", "--store", str(installed.store))
        assert refused.returncode == 2 and "--auth: " in refused.stderr and "`deerstalker down` first" in refused.stderr
        installed.down()
        shown = installed.deerstalker("up", "--port", "0", "--auth", "--no-worker", "--store", str(installed.store))
        assert _secret(installed) == secret and secret not in shown
        assert f"in {installed.store / '.prefect' / 'auth-string'}" in shown
    finally:
        installed.down()


@pytest.mark.release
def test_a_server_that_died_comes_back_with_its_string(tmp_path: Path) -> None:
    installed = Installation(tmp_path)
    installed.up("--port", "0", "--auth", "--no-worker")
    try:
        os.kill(installed.record["server"]["pid"], 9)
        installed.wait(lambda: installed.processes() == {}, LIMIT_S)
        installed.up("--port", "0", "--no-worker")
        assert _status(installed, "/admin/version") == 401
    finally:
        installed.down()


def test_other_machines_reach_no_server_without_a_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "environ", without_prefect())
    assert run_command(["up", "--host", "0.0.0.0", "--port", "0", "--store", str(tmp_path / "s")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "--host 0.0.0.0: " in line and "add --auth" in line
    assert not list(tmp_path.rglob("up.json")), "nothing was started"


@pytest.mark.release
def test_the_password_of_a_server_elsewhere_is_neither_shown_nor_readable(tmp_path: Path) -> None:
    installed = Installation(tmp_path / "here")
    installed.folder.mkdir()
    with own_server(tmp_path / "there", auth=ELSEWHERE) as api:
        named = api.replace("//", f"//{ELSEWHERE}@")
        shown = installed.deerstalker("up", "--server", named, "--no-worker", "--store", str(installed.store))
        assert "their-secret-password" not in shown and api.removesuffix("/api") in shown
        installed.up("--server", api, "--no-worker")
        assert installed.record["url"] == api
        holders = holders_of(["their-secret-password"], [installed.folder], of_at_least=3)
        home = installed.store / ".prefect"
        assert set(holders) == {str(home / "auth-string-elsewhere"), str(installed.folder / "prefect.toml")}
        assert {stat.S_IMODE(Path(path).stat().st_mode) for path in holders} == {0o600}
        assert len(prefect_api(api, "POST", "/deployments/filter", {}, ELSEWHERE)) == 8
        installed.prefect("work-pool", "ls")
        wrong = installed.attempt(
            "deerstalker",
            "up",
            "--server",
            api.replace("//", "//someone:wrong-secret@"),
            "--store",
            str(tmp_path / "s"),
        )
        assert wrong.returncode == 2 and "refuses the request (HTTP 401)" in wrong.stderr
        assert "wrong-secret" not in wrong.stdout + wrong.stderr + (tmp_path / "s").as_posix()
        installed.down()
        assert holders_of(["their-secret-password"], [installed.folder], of_at_least=0) == []


@pytest.mark.parametrize("server", ["garbage", "http://someone:their-secret-password@", "http://nobody.invalid/api"])
def test_a_server_that_is_none_is_refused_before_anything_is_made(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "environ", without_prefect())
    assert run_command(["up", "--server", server, "--store", str(tmp_path / "s")]) == 2
    said = capsys.readouterr()
    (line,) = said.err.splitlines()
    assert said.out == "" and "--server" in line and "their-secret" not in line
    assert not list((tmp_path / "s").rglob("up.json"))


def test_down_ends_what_up_started(locked: Installation) -> None:
    """The last test that looks at it."""
    assert locked.down() == ["worker", "server"]
    assert locked.processes() == {}
    assert not (locked.folder / "prefect.toml").exists()


def _prefect_line(installed: Installation) -> dict[str, str]:
    done = installed.attempt("deerstalker", "doctor", "--store", str(installed.store), "--json")
    return next(check for check in json.loads(done.stdout)["checks"] if check["name"] == "Prefect")
