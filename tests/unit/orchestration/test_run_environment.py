"""The environment a flow runs in."""

import os
from pathlib import Path

import pytest
from prefect.settings.models.tasks import TasksRunnerSettings

from flows.orchestration.run_environment import prepare_command_environment


@pytest.fixture(autouse=True)
def _bare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {"PATH": os.environ["PATH"]})


def test_prefect_lives_in_the_data_folder_and_phones_nobody(tmp_path: Path) -> None:
    prepare_command_environment(tmp_path / ".prefect", debug=False)
    assert os.environ["PREFECT_HOME"] == str(tmp_path / ".prefect")
    for name in ("PREFECT_LOCAL_STORAGE_PATH", "PREFECT_MEMO_STORE_PATH"):
        assert Path(os.environ[name]).parent == tmp_path / ".prefect"
    assert os.environ["PREFECT_SERVER_ANALYTICS_ENABLED"] == "false"
    assert os.environ["DO_NOT_TRACK"] == os.environ["VLLM_NO_USAGE_STATS"] == "1"
    assert os.environ["PREFECT_SERVER_SERVICES_SCHEDULER_ENABLED"] == "false"
    runner = TasksRunnerSettings()
    assert runner.thread_pool_max_workers == 64, "a puzzle set of a million has 3,900 stretches"


def test_what_the_user_set_stays(tmp_path: Path) -> None:
    os.environ.update({"PREFECT_HOME": "/mine", "PREFECT_API_URL": "http://a/api"})
    os.environ["PREFECT_SERVER_ANALYTICS_ENABLED"] = "1"
    prepare_command_environment(tmp_path, debug=False)
    assert os.environ["PREFECT_HOME"] == "/mine"
    assert os.environ["PREFECT_LOCAL_STORAGE_PATH"] == "/mine/storage"
    assert os.environ["PREFECT_SERVER_ANALYTICS_ENABLED"] == "1"
    assert "PREFECT_SERVER_SERVICES_SCHEDULER_ENABLED" not in os.environ, "not our server"


def test_debug_leaves_the_console_log_on(tmp_path: Path) -> None:
    prepare_command_environment(tmp_path, debug=True)
    assert "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL" not in os.environ
