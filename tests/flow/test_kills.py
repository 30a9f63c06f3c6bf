"""The short form of `python -m tests.faults.kills`."""

from pathlib import Path

import pytest

from tests.support.kills import campaign


@pytest.mark.release
def test_a_run_whose_processes_are_killed_loses_nothing(tmp_path: Path) -> None:
    report = campaign(1, tmp_path, seed=3)
    assert report["total"] >= 1


@pytest.mark.release
def test_a_run_that_is_killed_while_it_saves_a_state_repeats_one_finetune_at_most(tmp_path: Path) -> None:
    report = campaign(1, tmp_path, seed=1, kinds=["saving"])
    assert report["total"] >= 1
