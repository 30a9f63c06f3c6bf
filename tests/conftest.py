"""What holds for the whole suite, which runs in four processes: they wait for servers more than they compute.

Property tests have no deadline and no limit for drawing examples: how long these take tells of the machine, not of the
code.
"""

import os
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from flows.cli.console.wheel_tag import correct_wheel_tag
from tests.support import memory_store

os.environ.setdefault("OMP_NUM_THREADS", "1")
# Without cached bytecode every command that a test starts compiles its imports: 1.2 s of CPU each.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
settings.register_profile("no-deadline", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("no-deadline")
memory_store.register()
correct_wheel_tag()  # as the command line does, for who calls `uv run pytest` only


_START_PROCESSES = {"flow", "contract", "gpu", "training", "plan", "stages", "orchestration"}
"""Folders of tests that start servers, engines and trainers, or simulate large ones."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Lets the files with long tests begin, so that in the end no worker is alone with one."""
    items.sort(key=lambda item: item.path.parent.name not in _START_PROCESSES)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says what each tier took, since CI runs two at once; four processes share the two cores."""
    seconds = {"default": 0.0, "long": 0.0, "release": 0.0}
    for report in (report for reports in terminalreporter.stats.values() for report in reports):
        if isinstance(report, pytest.TestReport):
            seconds[next((tier for tier in ("long", "release") if tier in report.keywords), "default")] += (
                report.duration
            )
    terminalreporter.write_line(", ".join(f"{tier} tests: {total:.0f} s" for tier, total in seconds.items() if total))


@pytest.fixture(scope="module")
def prefect_api_url(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    """A Prefect server to which the commands of a file report, with the settings of a command's own server.

    A start takes 4 s of CPU: one for each command would cost more.
    """
    from flows.orchestration.run_environment import SHORT_LIVED_SERVER
    from tests.support.prefect_server import own_server

    with own_server(tmp_path_factory.mktemp("prefect"), **SHORT_LIVED_SERVER) as url:
        yield url


@pytest.fixture
def small_disk(tmp_path: Path) -> Generator[Path]:
    """A file system of one megabyte."""
    place = tmp_path / "small"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    made = subprocess.run(command, capture_output=True, check=False)
    if made.returncode != 0:
        pytest.skip("mounting a small file system needs rights that are not given here")
    yield place
    subprocess.run(["umount", str(place)], check=True)
