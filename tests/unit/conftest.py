"""A finished run that the tests of this folder look at."""

from pathlib import Path

import pytest

from artifacts.layout import RunLayout
from artifacts.store.store import Store
from tests.support.made_run import make_run


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, RunLayout]:
    """A directory store with the run `made`, of four iterations; read it only."""
    folder: Path = tmp_path_factory.mktemp("made")
    store = Store.open(str(folder / "store"))
    return store, make_run(store, iterations=4)
