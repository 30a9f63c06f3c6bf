"""Prefect's database as it is before its first run, migrated once on a machine instead of once for every store.

Prefect makes a new SQLite file by some hundred migrations, which takes 4 s of CPU, more than all else that its server
does to start. What comes out depends on Prefect's version only, so a copy is kept in the user's cache folder.
"""

import asyncio
import os
import sqlite3
import tempfile
from contextlib import closing, suppress
from pathlib import Path

import prefect
from prefect.server.database import provide_database_interface
from prefect.settings import get_current_settings


def fill_new_database() -> None:
    """Puts a migrated database where a server that is about to start has none; other databases are left alone.

    One that is there becomes readable by its owner only.
    """
    database = own_database()
    if database is None:
        return
    if database.exists():
        for suffix in ("", "-wal", "-shm"):
            with suppress(FileNotFoundError, PermissionError):
                database.with_name(database.name + suffix).chmod(0o600)
        return
    database.parent.mkdir(parents=True, exist_ok=True)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "deerstalker"
    template = cache / f"prefect-{prefect.__version__}.db"
    with suppress(OSError, sqlite3.Error):
        if template.exists():
            _copy(template, database)
            return
    asyncio.run(_migrate())
    with suppress(OSError, sqlite3.Error):
        cache.mkdir(parents=True, exist_ok=True)
        template.unlink(missing_ok=True)  # one that stands here could not be read
        _copy(database, template)


def own_database() -> Path | None:
    """The SQLite file in Prefect's home; None where Prefect is told of another database, which others may use too."""
    settings = get_current_settings()
    database = settings.home / "prefect.db"
    url = settings.server.database.connection_url
    return database if url is not None and url.get_secret_value() == f"sqlite+aiosqlite:///{database}" else None


def _copy(source: Path, target: Path) -> None:
    """Copies a database, whole or not at all; one that has appeared meanwhile stays."""
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as folder:
        made = Path(folder) / target.name
        with closing(sqlite3.connect(f"file:{source}?mode=ro", uri=True)) as old, closing(sqlite3.connect(made)) as new:
            old.backup(new)
            new.execute("pragma journal_mode = delete")  # no files beside it; Prefect sets its own mode
        with suppress(FileExistsError):
            os.link(made, target)


async def _migrate() -> None:
    interface = provide_database_interface()
    await interface.create_db()
    await (await interface.engine()).dispose()
