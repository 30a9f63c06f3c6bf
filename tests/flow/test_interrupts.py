"""The short form of `python -m tests.faults.interrupts`."""

from pathlib import Path

import pytest

from tests.support.interrupts import MOMENTS, campaign


@pytest.mark.long
def test_ctrl_c_ends_a_run_at_every_moment_with_one_line_and_loses_nothing(tmp_path: Path) -> None:
    report = campaign(len(MOMENTS), tmp_path)
    assert set(report["seconds"]) == set(MOMENTS) and len(MOMENTS) >= 12
