"""A whole run on the README's own task by its recipe: killed in `grade`, it loses nothing."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from artifacts.manifest import Manifest
from artifacts.reading import Artifact
from artifacts.schemas import GRADES, GRADES_FILE
from artifacts.store.store import Store
from tests.support.installed import ONE_ENGINE, Installation
from tests.support.tiny_runs import README_TASK, SLOW_GRADES
from tests.support.user_tasks import readme_recipe, readme_task
from tests.support.waiting import changes, wait_until


def killed_when(place: Installation, command: list[str], reached: Callable[[], object]) -> None:
    """Starts a command and kills it as soon as it has reached something."""
    program = str(Path(sys.executable).with_name("deerstalker"))
    with (place.folder / "log.txt").open("ab") as log:
        process = subprocess.Popen([program, *command], stdout=log, stderr=log, env=place.environment, cwd=place.folder)
    try:
        wait_until(
            lambda: reached() or process.poll() is not None, 300.0, poll_s=0.01, progress=lambda: changes(place.folder)
        )
        assert process.poll() is None, (place.folder / "log.txt").read_text()[-2000:]
    finally:
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.long
def test_the_readmes_task_is_trained_killed_and_resumed(tmp_path: Path, prefect_api_url: str) -> None:
    place = Installation(tmp_path, PREFECT_API_URL=prefect_api_url)
    code = tmp_path / "my_tasks.py"
    code.write_text(readme_task() + SLOW_GRADES)
    (tmp_path / "mine.toml").write_text(readme_recipe())
    store = ("--store", str(place.store), "--profile", str(ONE_ENGINE), "--json")
    changes = [word for setting in README_TASK for word in ("--set", setting)]
    train = ["train", "--recipe", str(tmp_path / "mine.toml"), "--run", "mine", *changes, *store]
    rollouts = place.part("mine", 1, "rollouts")

    killed_when(place, train, (rollouts / "manifest.json").exists)
    assert not (place.part("mine", 1, "grades") / "manifest.json").exists(), "killed in grade"

    code.write_text(readme_task())
    refused = place.attempt("deerstalker", *train)
    assert refused.returncode != 0
    assert "the code that it uses has changed" in refused.stderr
    code.write_text(readme_task() + SLOW_GRADES)
    place.deerstalker(*train)
    grades = Artifact.at(Store.open(str(place.store)), "runs/mine/iterations/0001/grades").read_table(
        GRADES_FILE, GRADES
    )
    assert len(grades) == 128
    assert grades["grader"].unique().to_list() == ["function"]
    for report in (place.part("mine", 1, "report"), place.store / "runs/mine/evaluations/after"):
        assert Manifest.from_bytes((report / "manifest.json").read_bytes(), "report").facts["grader"] == "function"
