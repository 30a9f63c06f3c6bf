"""The short forms of `tests.faults`: the same code, fewer faults."""

from pathlib import Path

import pytest

from artifacts.store.store import Store
from tests.support.flips import flip_bits
from tests.support.race import KINDS, Place, on_server, race
from tests.support.servers import BUCKET, S3Server
from tests.support.store_faults import campaign

pytestmark = pytest.mark.long


def test_nothing_is_lost_or_half_published_behind_faults(s3_server: S3Server, tmp_path: Path) -> None:
    report = campaign(s3_server, 40, tmp_path, bucket=BUCKET)
    assert report["injected"] >= 40 and report["artifacts"] >= 4


def test_every_flipped_bit_is_named_in_a_folder(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path / "store"))
    assert flip_bits(store, 60, tmp_path / "cache", seed=1) == {"files": 60, "detected": 60}


def test_every_flipped_bit_is_named_on_a_server(rclone: S3Server, tmp_path: Path) -> None:
    store = Store.open(f"s3://{BUCKET}/flips", options=rclone.options())
    assert flip_bits(store, 20, tmp_path / "cache", seed=2) == {"files": 20, "detected": 20}


@pytest.mark.parametrize("kind", KINDS)
def test_two_processes_race_and_agree(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    where = Place(kind, str(tmp_path / "store"))
    if kind != "directory":
        where = on_server(kind, request.getfixturevalue(kind))
    row = race(where, 5)
    assert row["races"] == row["won_by_first"] + row["won_by_second"] == 5
