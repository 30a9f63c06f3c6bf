"""What a killed command leaves behind is found, even if it hides."""

import os
import signal
import subprocess
from pathlib import Path

from tests.support.processes import Descendants
from tests.support.waiting import wait_until

MARK = "DEERSTALKER_DESCENDANTS_TEST"


def test_a_child_without_the_variable_is_found_after_its_parent_was_killed(tmp_path: Path) -> None:
    descendants = Descendants(MARK, tmp_path)
    parent = subprocess.Popen(
        ["bash", "-c", "env -i sleep 60; true"], env={**os.environ, MARK: str(tmp_path)}, start_new_session=True
    )
    wait_until(lambda: "sleep 60 " in descendants.living().values(), 20, descendants.living, 0.01)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    assert list(descendants.living().values()) == ["sleep 60 "]
    for pid in descendants.living():
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not descendants.living(), 20, descendants.living, 0.01)
