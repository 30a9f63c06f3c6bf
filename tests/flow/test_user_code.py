"""A whole run on the README's own task by its recipe: killed in `grade`, it loses nothing."""

from pathlib import Path

import pytest

from artifacts.layout import MANIFEST_NAME, RunLayout
from artifacts.reading import Artifact
from artifacts.schemas import GRADES, GRADES_FILE
from artifacts.store.store import Store
from tests.support.tiny_runs import README_TASK, SLOW_GRADES
from tests.support.train_command import TrainCommand
from tests.support.user_tasks import readme_recipe, readme_task


@pytest.mark.long
def test_the_readmes_task_is_trained_killed_and_resumed(tmp_path: Path, prefect_api_url: str) -> None:
    code = tmp_path / "my_tasks.py"
    code.write_text(readme_task() + SLOW_GRADES)
    (tmp_path / "mine.toml").write_text(readme_recipe())
    recipe, layout = str(tmp_path / "mine.toml"), RunLayout("mine")
    train = TrainCommand(tmp_path, "mine", README_TASK, recipe=recipe, PREFECT_API_URL=prefect_api_url)

    train.kill_when((train.store / layout.iteration(1, "rollouts") / MANIFEST_NAME).exists)
    assert layout.iteration(1, "grades") not in train.seen, "killed in grade"

    code.write_text(readme_task())
    assert "the code that it uses has changed" in train.refusal()
    code.write_text(readme_task() + SLOW_GRADES)
    train.finish()
    store = Store.open(str(train.store), writable=False)
    grades = Artifact.at(store, layout.iteration(1, "grades")).read_table(GRADES_FILE, GRADES)
    assert len(grades) == 128
    assert grades["grader"].unique().to_list() == ["function"]
    for report in (layout.iteration(1, "report"), "runs/mine/evaluations/after"):
        assert Artifact.at(store, report).manifest.facts["grader"] == "function"
