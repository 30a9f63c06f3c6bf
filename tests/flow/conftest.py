"""What `deerstalker up` starts, once a file of tests."""

from collections.abc import Iterator

import pytest

from tests.support.deployed_story import ZOMBIE_AFTER_S
from tests.support.installed import Installation


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    installed = Installation(tmp_path_factory.mktemp("deployed"))
    installed.up("--port", "0", "--zombie-after", str(ZOMBIE_AFTER_S))
    try:
        yield installed
    finally:
        installed.down()
