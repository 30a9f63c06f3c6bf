"""What a user sees: a tiny run reported to a real Prefect server, its pages opened in a real browser.

Screenshots go to the folder that DEERSTALKER_SCREENSHOTS names, else to the test's own.
"""

import json
import os
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import httpx
import pytest

from flows.specimen import Completion, ReadAnswer, Specimen
from flows.ui_text import completions_page
from stages.puzzles.puzzle import Asserted
from tests.browser import Browser, find_browser
from tests.hostile import HOSTILE
from tests.prefect_server import prefect_server

HERE = Path(__file__).parent
LIMIT_S = 400
KEYS = (
    "tiny-accuracy",
    "tiny-batch",
    "tiny-completions",
    "tiny-evaluate-greedy",
    "tiny-evaluate-sampled",
    "tiny-finetune",
    "tiny-iterations",
    "tiny-plots",
    "tiny-sample",
    "tiny-seconds",
    "tiny-store",
    "tiny-summary",
)

PROGRAM = find_browser()
pytestmark = [
    pytest.mark.skipif(PROGRAM is None, reason="no Chromium here: apt-get install chromium"),
    pytest.mark.timeout(700),  # the first test waits for the run
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    with prefect_server(tmp_path_factory.mktemp("prefect")) as address:
        yield address


@pytest.fixture(scope="module")
def trained(server: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The run `tiny`, trained for two iterations and reported to the server; what the command printed."""
    store = tmp_path_factory.mktemp("pages") / "store"
    command = [
        str(Path(sys.executable).with_name("deerstalker")), "train", "--recipe", str(HERE / "tiny.toml"),
        "--profile", str(HERE / "slow.toml"), "--set-profile", "tracker=tensorboard", "--store", str(store), "--json",
    ]  # fmt: skip
    environment = {**os.environ, "PREFECT_API_URL": f"{server}/api"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return {**json.loads(done.stdout), "folder": store}


@pytest.fixture
def browser(tmp_path: Path) -> Generator[Browser]:
    assert PROGRAM is not None
    with Browser(PROGRAM, tmp_path / "browser") as found:
        yield found


@pytest.fixture
def shots(tmp_path: Path) -> Path:
    return Path(os.environ.get("DEERSTALKER_SCREENSHOTS") or tmp_path / "screenshots")


def versions(server: str, key: str) -> list[dict[str, Any]]:
    """All versions of an artifact, the newest last."""
    asked = {"artifacts": {"key": {"any_": [key]}}}
    found = httpx.post(f"{server}/api/artifacts/filter", json=asked, trust_env=False).raise_for_status().json()
    return sorted(found, key=lambda artifact: artifact["created"])


def open_newest(browser: Browser, server: str, key: str, *awaited: str) -> str:
    newest = versions(server, key)[-1]
    return browser.open(f"{server}/artifacts/artifact/{newest['id']}", key, "Show raw data", *awaited)


def publish(server: str, key: str, text: str) -> None:
    made = {"key": key, "type": "markdown", "data": text}
    httpx.post(f"{server}/api/artifacts/", json=made, trust_env=False).raise_for_status()


def asked_by_text(browser: Browser) -> list[str]:
    """What the hostile texts would have a page fetch."""
    return [address for address in browser.requests if "beacon" in address or address.endswith("/x")]


def pictures(browser: Browser) -> list[int]:
    """Widths of the pictures on the page, 0 where one is broken."""
    script = "[...document.querySelectorAll('main img, .p-markdown-renderer img, img')].map(i => i.naturalWidth)"
    return browser.run(script)


@pytest.mark.usefixtures("trained")
def test_the_flow_run_page_shows_stages_and_artifacts(server: str, browser: Browser, shots: Path) -> None:
    (run,) = httpx.post(f"{server}/api/flow_runs/filter", json={}, trust_env=False).raise_for_status().json()
    assert (run["name"], run["state_name"]) == ("tiny", "Completed")
    browser.open(f"{server}/runs/flow-run/{run['id']}", "tiny", "Completed", "train", "Artifacts")
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
    found = versions(server, "tiny-iterations")
    assert [len(json.loads(artifact["data"])) for artifact in found] == [1, 2, 3, 3]
    accuracy = f"{trained['iterations'][1]['sampled_accuracy']:.1%}"
    assert found[1]["description"].startswith(f"iteration 1, held-out sampled {accuracy}")
    browser.open(f"{server}/artifacts/key/tiny-iterations", *(artifact["id"][:8] for artifact in found))
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
    assert page.count("Statements about the puzzle:") == 3
    assert "contradicted" in page
    browser.screenshot(shots / "completions.png")


@pytest.mark.usefixtures("trained")
def test_plots_and_the_packed_batch_are_pictures(server: str, browser: Browser, shots: Path) -> None:
    for key, count, words in (("tiny-plots", 4, "iteration 2"), ("tiny-batch", 1, "Optimizer steps: 2")):
        open_newest(browser, server, key, words)
        shown = [width for width in pictures(browser) if width > 200]
        assert len(shown) == count, (key, pictures(browser))
        browser.screenshot(shots / f"{key.removeprefix('tiny-')}.png")


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
    assert len(pictures(browser)) == 5
    assert all(pictures(browser))
    assert {address.split(":")[0] for address in browser.requests} <= {"file", "data"}
    browser.screenshot(shots / "report.png")


def test_the_tracker_was_told(trained: dict[str, Any]) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(trained["folder"] / "trackers" / "tiny"))
    events.Reload()
    told = {event.step: event.value for event in events.Scalars("eval/sampled/accuracy")}
    assert told == pytest.approx({row["iteration"]: row["sampled_accuracy"] for row in trained["iterations"]}, rel=1e-5)
    assert [event.step for event in events.Scalars("reward")] == [1, 2]


def test_what_a_model_wrote_is_shown_and_never_obeyed(server: str, browser: Browser, shots: Path) -> None:
    said = [ReadAnswer("A", text, "Mr. Green", correct=False, note="outside") for text in HOSTILE]
    asserted = [Asserted(text, "contradicted") for text in HOSTILE]
    written = [Completion("worst", text, 0.0, -1.0, "stop", said, asserted) for text in HOSTILE]
    page = completions_page(Specimen(1, "`x` | <img src=x>", HOSTILE[0], 8, written))
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
