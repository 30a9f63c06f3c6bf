"""The short form of `python -m tests.faults.interrupts`."""

import tempfile
from pathlib import Path

import pytest

from tests.support.interrupts import MOMENTS, campaign


@pytest.mark.release
def test_ctrl_c_ends_a_run_at_every_moment_with_one_line_and_loses_nothing() -> None:
    with tempfile.TemporaryDirectory() as short:  # below a long folder a run keeps its sockets elsewhere
        report = campaign(len(MOMENTS), Path(short))
    assert set(report["seconds"]) == set(MOMENTS) and len(MOMENTS) >= 12
