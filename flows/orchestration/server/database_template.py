"""Creates Prefect's database from a template, so that a machine runs Prefect's migrations once, not for every store.

Prefect creates a new SQLite file by about a hundred migrations. They take 4 s of CPU time, more than the rest of the
server's start. The result depends only on Prefect's version, so a copy is kept in the user's cache folder.
"""

import asyncio
import os
import sqlite3
import tempfile
from contextlib import closing, suppress
from pathlib import Path

import prefect
from prefect.settings import get_current_settings


def fill_new_database() -> None:
    """Creates the database of a server that is about to start, unless it exists or Prefect is set to another database.

    If the file exists, only its permissions change: it becomes readable by its owner only.
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
        template.unlink(missing_ok=True)  # an existing template could not be read
        _copy(database, template)


def own_database() -> Path | None:
    """Returns the SQLite file in Prefect's home; None if Prefect is set to another database, which may be shared."""
    settings = get_current_settings()
    database = settings.home / "prefect.db"
    url = settings.server.database.connection_url
    return database if url is not None and url.get_secret_value() == f"sqlite+aiosqlite:///{database}" else None


def _copy(source: Path, target: Path) -> None:
    """Copies a database completely or not at all; does not replace a file that has appeared meanwhile."""
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as folder:
        draft = Path(folder) / target.name
        with (
            closing(sqlite3.connect(f"file:{source}?mode=ro", uri=True)) as old,
            closing(sqlite3.connect(draft)) as new,
        ):
            old.backup(new)
            new.execute("pragma journal_mode = delete")  # one file only; Prefect sets its own mode
        with suppress(FileExistsError):
            os.link(draft, target)


async def _migrate() -> None:
    from prefect.server.database import provide_database_interface  # takes 0.6 s to import

    interface = provide_database_interface()
    await interface.create_db()
    await (await interface.engine()).dispose()
