"""A run by its deployment, cancelled, killed, retried and refreshed, on what `deerstalker up` starts.

What a user sees of it is looked at in a real browser; screenshots go to the folder that DEERSTALKER_SCREENSHOTS names,
else to the test's own. The tests stand in the order of the story: its pages are those of a run that is just finished.
"""

import json
import os
import signal
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from artifacts.manifest import Manifest
from flows.report.example_group import Completion, ExampleGroup, ReadAnswer
from flows.report.prefect_pages.ui_text import completions_page
from stages.environments.puzzle import Asserted
from tests.support.browser import Browser, find_browser
from tests.support.deployed_story import attempts, tell
from tests.support.hostile import HOSTILE
from tests.support.installed import LIMIT_S, Installation
from tests.support.json_page import check_documented
from tests.support.pages import KEYS, asked_by_text, open_newest, pictures, publish, versions
from tests.support.sockets import SocketWatch

GONE_LIMIT_S = 300.0
"""An idle machine takes 5 s to cancel and 10 s to clear away; one that ten others share is granted more."""

PROGRAM = find_browser()

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def story(installation: Installation) -> dict[str, Any]:
    return tell(installation)


def test_up_again_changes_nothing(story: dict[str, Any]) -> None:
    assert story["again"] == story["record"]
    check_documented("up", story["record"])
    assert set(story["record"]["deployments"]) >= {
        "train/quickstart", "iterate/run", "evaluate/checkpoint", "benchmark/models", "prepare/puzzles",
        "compare/recipes", "backfill/suite", "merge/specialists",
    }  # fmt: skip


def test_cancelled_it_ends_soon_and_leaves_no_process(story: dict[str, Any]) -> None:
    assert any("vllm" in command or "server.py" in command for command in story["busy"])
    assert story["gone_s"] < GONE_LIMIT_S
    assert story["cancelled_s"] < GONE_LIMIT_S


def test_killed_it_leaves_no_process(story: dict[str, Any]) -> None:
    assert story["kill_s"] < GONE_LIMIT_S


def test_server_worker_and_run_listen_on_loopback_only(story: dict[str, Any]) -> None:
    sockets: SocketWatch = story["sockets"]
    assert sockets.exposed == []
    programs = " ".join(listener.program for listener in sockets.seen)
    for program in ("stages.training.worker_group.worker", "VLLM::EngineCore", "server_process.py"):
        assert program in programs, "looked at too late, or not at all"


def test_a_retry_executes_only_what_has_no_artifact(story: dict[str, Any]) -> None:
    assert story["retried"].keys() > story["killed_at"].keys() >= story["before_kill"].keys()
    assert {key: story["retried"][key] for key in story["killed_at"]} == story["killed_at"]
    tasks = story["tasks"]
    cached = {name for name, state in tasks.items() if state == "Cached"}
    assert {
        "prepare",
        "fetch",
        "count_tokens",
        "sft-warm-start",
        "evaluate-0000",
        "promote-0000",
        "sample-0001",
        "grade-0001",
        "pack-0001",
    } <= cached
    assert tasks["sample-0002"] == "Completed"
    assert set(tasks.values()) == {"Cached", "Completed"}


def test_what_the_killed_attempt_was_at_is_crashed_too(story: dict[str, Any], installation: Installation) -> None:
    installation.wait(lambda: not installation.open_tasks(story["run"]), LIMIT_S)
    killed = installation.tasks(story["run"], 2)
    assert set(killed.values()) <= {"Cached", "Completed", "Crashed"}
    assert {name for name, state in killed.items() if state == "Crashed"} <= set(story["left_open"])


def test_a_changed_profile_reuses_samples_grades_and_batch(story: dict[str, Any], installation: Installation) -> None:
    assert not installation.published("tiny", 3, "batch")
    made = Manifest.from_bytes((installation.part("tiny", 1, "batch") / "manifest.json").read_bytes(), "batch")
    assert made.attempt == story["before_kill"]["runs/tiny/iterations/0001/batch"]


@pytest.fixture
def server(installation: Installation) -> str:
    """Where the pages are."""
    return installation.record["url"].removesuffix("/api")


@pytest.fixture
def trained(story: dict[str, Any], installation: Installation) -> dict[str, Any]:
    """What `deerstalker show` says of the run when it was finished."""
    return {**story["shown"], "folder": installation.store}


@pytest.fixture
def browser(tmp_path: Path) -> Generator[Browser]:
    if PROGRAM is None:
        pytest.skip("no Chromium here: apt-get install chromium")
    with Browser(PROGRAM, tmp_path / "browser") as opened:
        yield opened


@pytest.fixture
def shots(tmp_path: Path) -> Path:
    return Path(os.environ.get("DEERSTALKER_SCREENSHOTS") or tmp_path / "screenshots")


def test_the_flow_run_page_shows_stages_and_artifacts(
    server: str, story: dict[str, Any], browser: Browser, shots: Path
) -> None:
    browser.open(f"{server}/runs/flow-run/{story['run']}", "tiny", "Completed", "train", "Artifacts")
    browser.screenshot(shots / "flow-run.png")
    browser.press("Task Runs")
    browser.wait_for("evaluate-test-after", "promote-0002", "sample-0001")
    browser.screenshot(shots / "flow-run-tasks.png")
    browser.press("Artifacts")
    browser.wait_for("tiny-iterations", "tiny-completions")
    browser.screenshot(shots / "flow-run-artifacts.png")


@pytest.mark.usefixtures("trained")
def test_the_artifacts_page_lists_every_key_of_the_run(server: str, browser: Browser, shots: Path) -> None:
    browser.open(f"{server}/artifacts", *KEYS)
    browser.screenshot(shots / "artifacts.png")


def test_the_timeline_of_a_key_is_the_learning_curve(
    server: str, trained: dict[str, Any], browser: Browser, shots: Path
) -> None:
    shown = versions(server, "tiny-iterations")
    assert [len(json.loads(artifact["data"])) for artifact in shown] == [1, 2, 3, 3]
    accuracy = f"{trained['iterations'][1]['sampled_accuracy']:.1%}"
    assert shown[1]["description"].startswith(f"iteration 1, held-out sampled {accuracy}")
    browser.open(f"{server}/artifacts/key/tiny-iterations", *(artifact["id"][:8] for artifact in shown))
    browser.screenshot(shots / "timeline.png")


def test_tables_show_the_iterations_and_their_seconds(
    server: str, trained: dict[str, Any], browser: Browser, shots: Path
) -> None:
    page = open_newest(browser, server, "tiny-iterations", "3 items")
    assert str(round(trained["iterations"][2]["reward"], 4)) in page
    browser.screenshot(shots / "iterations.png")
    page = open_newest(browser, server, "tiny-seconds", "3 items", "finetune")
    assert str(round(trained["iterations"][2]["seconds"]["finetune"], 2)) in page
    browser.screenshot(shots / "seconds.png")


def test_the_summary_shows_before_after_and_where_things_lie(
    server: str, trained: dict[str, Any], browser: Browser, shots: Path
) -> None:
    page = open_newest(browser, server, "tiny-summary", "2 of 2 iterations", "before GRPO")
    assert "deerstalker solve --checkpoint tiny" in page
    browser.screenshot(shots / "summary.png")
    page = open_newest(browser, server, "tiny-store", "iteration 2: rollouts")
    assert f"{trained['folder'].as_uri()}/runs/tiny/iterations/0002/checkpoint" in page
    browser.screenshot(shots / "store.png")


@pytest.mark.usefixtures("trained")
def test_completions_show_rewards_and_statements(server: str, browser: Browser, shots: Path) -> None:
    page = open_newest(browser, server, "tiny-completions", "best: reward", "median: reward", "worst: reward")
    assert page.count("What the grader read:") == 3
    counts = page.count("Statements about the puzzle:")
    assert counts in (0, 3), "no count is shown if none of the three says anything: the model is barely trained"
    assert ("contradicted" in page) == (counts == 3)
    browser.screenshot(shots / "completions.png")


def plots_of(trained: dict[str, Any]) -> int:
    """The number of a run's plots: five of its training, three of a study (lengths, difficulty, reliability).

    Another one is drawn if the barely trained model says anything about its puzzles.
    """
    return 8 + any(row["proved_statements"] is not None for row in trained["iterations"])


def test_plots_and_the_packed_batch_are_pictures(
    server: str, trained: dict[str, Any], browser: Browser, shots: Path
) -> None:
    plots = plots_of(trained)
    for key, count, words in (("tiny-plots", plots, "iteration 2"), ("tiny-batch", 1, "Optimizer steps: 2")):
        open_newest(browser, server, key, words)
        shown = [width for width in pictures(browser) if width > 200]
        assert len(shown) == count, (key, pictures(browser))
        browser.screenshot(shots / f"{key.removeprefix('tiny-')}.png")


def test_the_second_interface_shows_one_picture_and_tells_where_the_others_are(
    server: str, trained: dict[str, Any], browser: Browser, shots: Path
) -> None:
    """It takes pictures out of running text; those of image artifacts stay."""
    report = f"{trained['folder'].as_uri()}/runs/tiny/report/report.html"
    assert Path(report.removeprefix("file://")).is_file()
    for key in ("tiny-plots", "tiny-batch"):
        browser.open(f"{server}/v2/artifacts/artifact/{versions(server, key)[-1]['id']}", key, report)
        browser.screenshot(shots / f"second-{key.removeprefix('tiny-')}.png")
    browser.open(f"{server}/v2/artifacts/artifact/{versions(server, 'tiny-accuracy')[-1]['id']}", "Image URL")
    browser.wait_until(lambda: any(width > 200 for width in pictures(browser)), "a picture")
    browser.screenshot(shots / "second-accuracy.png")


@pytest.mark.usefixtures("trained")
def test_long_stages_leave_their_progress(server: str, browser: Browser, shots: Path) -> None:
    for key in ("tiny-sample", "tiny-finetune", "tiny-evaluate-sampled"):
        newest = versions(server, key)[-1]
        assert newest["type"] == "progress"
        assert newest["data"] == 100.0, newest
        assert newest["task_run_id"] is not None
    assert versions(server, "tiny-sample")[-1]["description"] == "sample 2: 24 of 24"
    open_newest(browser, server, "tiny-sample", "sample 2: 24 of 24")
    browser.screenshot(shots / "progress.png")


def test_the_report_is_one_page_that_fetches_nothing(trained: dict[str, Any], browser: Browser, shots: Path) -> None:
    page = browser.open(trained["report"], "Before and after", "The newest packed batch", "Seconds of each stage")
    assert "worst: reward" in page
    assert len(pictures(browser)) == plots_of(trained) + 2, "with the timeline of an iteration and the packed batch"
    assert all(pictures(browser))
    assert {address.split(":")[0] for address in browser.requests} <= {"file", "data"}
    browser.screenshot(shots / "report.png")


def test_the_tracker_was_told(trained: dict[str, Any]) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (told_in,) = (trained["folder"] / "trackers").iterdir()
    assert told_in.name.startswith("tiny_"), "then what tells the runs of stores apart"
    events = EventAccumulator(str(told_in))
    events.Reload()
    told = {event.step: event.value for event in events.Scalars("eval/sampled/accuracy")}
    assert told == pytest.approx({row["iteration"]: row["sampled_accuracy"] for row in trained["iterations"]}, rel=1e-5)
    assert [event.step for event in events.Scalars("reward")] == [1, 2]


def test_what_a_model_wrote_is_shown_and_never_obeyed(server: str, browser: Browser, shots: Path) -> None:
    said = [ReadAnswer("A", text, "Mr. Green", correct=False, note="outside") for text in HOSTILE]
    asserted = [Asserted(text, "contradicted", 0) for text in HOSTILE]
    written = [Completion("worst", text, 0.0, -1.0, "stop", said, asserted) for text in HOSTILE]
    page = completions_page(ExampleGroup(1, "`x` | <img src=x>", HOSTILE[0], 8, written))
    assert len(page) < 300_000
    publish(server, "hostile", page)
    shown = open_newest(browser, server, "hostile", "<script>alert(1)</script>", "worst: reward 0.000")
    assert "![beacon](http://127.0.0.1:9/beacon.png)" in shown
    assert "[press](javascript:alert(4))" in shown
    assert shown.count("worst: reward 0.000") == len(HOSTILE)
    assert browser.run("document.title") != "taken"
    assert browser.dialogs == []
    assert asked_by_text(browser) == []
    marked_up = "[...document.querySelectorAll('iframe, form, a[href*=javascript], img[src*=beacon], h1')].length"
    assert browser.run(marked_up) == 0
    browser.screenshot(shots / "hostile.png")


def test_the_same_text_is_obeyed_where_nothing_guards_it(server: str, browser: Browser) -> None:
    """The test above can fail: Prefect's page does fetch what raw text tells it to."""
    publish(server, "unguarded", f"before {HOSTILE[0]}")
    open_newest(browser, server, "unguarded", "before")
    browser.wait_for("before")
    assert asked_by_text(browser)


def test_named_stages_are_redone_and_a_run_goes_on(story: dict[str, Any], installation: Installation) -> None:
    request = {"run": "tiny", "more": 1, "profile": str(installation.folder / "profile.toml"), "refresh": ["grade@1"]}
    run = installation.create_run("iterate/run", request)
    installation.wait_for(run, "Completed")
    installation.wait(lambda: not installation.open_tasks(run))  # their states arrive by events
    tasks = installation.tasks(run, 1)
    stages = ("sample", "grade", "pack", "finetune", "save_optimizer_state", "evaluate", "promote")
    third = {f"{stage}-0003" for stage in stages}
    assert {name for name, state in tasks.items() if state != "Cached"} == {"grade-0001", *third}
    now, before = attempts(installation), story["retried"]
    assert {key for key in before if now[key] != before[key]} == {"runs/tiny/iterations/0001/grades"}

    installation.prefect("flow-run", "retry", run)  # the same request: nothing more, and nothing redone again
    installation.wait(lambda: bool(installation.tasks(run, 2)))
    installation.wait_for(run, "Completed")
    installation.wait(lambda: {*installation.tasks(run, 2).values()} == {"Cached"})
    assert attempts(installation) == now


@pytest.mark.parametrize("gone", ["killed_command", "dropped", "submitted"])
def test_a_run_that_nobody_executes_any_more_is_crashed(gone: str, story: dict[str, Any]) -> None:
    assert story[gone]["name"] == "Crashed"
    assert "No event for" in story[gone]["message"]


@pytest.mark.release
def test_a_run_that_outlives_its_worker_is_missed_when_the_next_one_is_gone_too(
    story: dict[str, Any], installation: Installation
) -> None:
    installation.wait(lambda: not installation.flow_processes())  # the process of the run before
    run = installation.create_run("prepare/puzzles", {"puzzles": {"train": 20000, "seed": 8}})
    installation.wait(lambda: bool(installation.flow_processes()))
    (flow,) = installation.flow_processes()
    os.kill(flow, signal.SIGSTOP)  # else it ends as soon as it notices that nobody reads what it writes
    os.kill(installation.record["worker"]["pid"], signal.SIGKILL)
    installation.up("--port", "0")
    assert installation.state(run) in ("Submitting", "Running")
    os.kill(flow, signal.SIGKILL)
    installation.wait(lambda: not installation.flow_processes(), LIMIT_S)
    os.kill(installation.record["worker"]["pid"], signal.SIGKILL)
    installation.up("--port", "0")
    state = installation.api("GET", f"/flow_runs/{run}")["state"]
    assert (state["name"], state["message"]) == ("Crashed", "Found without a process by `deerstalker up`.")


def test_down_ends_what_up_started_and_the_record_of_runs_stays(
    story: dict[str, Any], installation: Installation
) -> None:
    assert installation.down() == ["worker", "server"]
    assert installation.processes() == {}
    assert not (installation.folder / "prefect.toml").exists()
    installation.up("--port", "0")
    assert installation.state(story["run"]) == "Completed"
