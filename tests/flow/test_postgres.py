"""The same installation on PostgreSQL: the database of anything larger than one person's machine."""

from pathlib import Path

import pytest

from tests.support.installed import Installation
from tests.support.postgres import postgres_server, query

pytestmark = pytest.mark.release

REQUEST = {"puzzles": {"puzzle": {"connectives": False}, "train": 8, "val": 4, "test": 4}}


def test_up_runs_on_postgresql(tmp_path: Path) -> None:
    with postgres_server() as url:
        installed = Installation(tmp_path, PREFECT_SERVER_DATABASE_CONNECTION_URL=url)
        installed.up("--port", "0")
        try:
            run = installed.create_run("prepare/puzzles", REQUEST)
            installed.wait_for(run, "Completed")
            installed.prefect("flow-run", "retry", run)
            installed.wait(lambda: bool(installed.tasks(run, 2)))
            installed.wait_for(run, "Completed")
        finally:
            ended = installed.down()
        assert ended == ["worker", "server"]
        assert not list(tmp_path.rglob("prefect.db"))
        assert query(url, "select state_name, run_count from flow_run") == ["Completed|2"]
        states = query(url, "select flow_run_run_count, state_name from task_run where name = 'prepare' order by 1")
        assert states == ["1|Completed", "2|Cached"]
    assert installed.processes() == {}
