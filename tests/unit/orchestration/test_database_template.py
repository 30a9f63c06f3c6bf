"""Prefect's new database is a copy of one that was migrated before; what stands already stays."""

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from prefect.settings import PREFECT_API_DATABASE_CONNECTION_URL, PREFECT_HOME, temporary_settings

from flows.orchestration.server.database_template import fill_new_database


def fill(home: Path, name: str = "prefect.db") -> Path:
    url = f"sqlite+aiosqlite:///{home}/{name}"
    with temporary_settings({PREFECT_HOME: home, PREFECT_API_DATABASE_CONNECTION_URL: url}):
        fill_new_database()
    return home / name


def contents(database: Path) -> list[tuple[str, ...]]:
    with closing(sqlite3.connect(database)) as opened:
        made = opened.execute("select name, sql from sqlite_master order by name").fetchall()
        return made + opened.execute("select version_num from alembic_version").fetchall()


@pytest.mark.long
def test_the_second_database_is_a_copy_of_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    migrated = fill(tmp_path / "first")
    (template,) = (tmp_path / "cache" / "deerstalker").iterdir()
    with closing(sqlite3.connect(template)) as opened:
        opened.execute("create table only_in_the_copy (id integer)")
    copied = fill(tmp_path / "second")
    assert len(contents(migrated)) > 100
    assert [row for row in contents(copied) if row not in contents(migrated)] == [
        ("only_in_the_copy", "CREATE TABLE only_in_the_copy (id integer)")
    ]
    assert contents(copied)[-1] == contents(migrated)[-1]

    template.write_bytes(b"not a database")
    assert fill(tmp_path / "second") == copied
    assert not fill(tmp_path / "third", "mine.db").exists()
    assert template.read_bytes() == b"not a database"
    # Prefect migrates once a process.
    code = "from flows.orchestration.server.database_template import fill_new_database as fill; fill()"
    home = {"PREFECT_HOME": str(tmp_path / "fourth")}
    subprocess.run([sys.executable, "-c", code], env={**os.environ, **home}, check=True)
    assert contents(tmp_path / "fourth" / "prefect.db") == contents(template)
    assert contents(template)[-1] == contents(migrated)[-1]
