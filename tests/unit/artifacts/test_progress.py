"""What a person sees of a large upload."""

import logging
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from artifacts.address import ArtifactAddress
from artifacts.identity import Identity
from artifacts.refs import Checkpoint
from artifacts.store.progress import watched
from artifacts.store.store import Store
from flows.report.terminal.live import progress_text
from stages.context import Profile, StageContext

Report = tuple[str, int, int, Mapping[str, float]]


@pytest.fixture
def reports() -> list[Report]:
    return []


def test_whole_megabytes_are_reported_and_never_more_than_there_are(reports: list[Report]) -> None:
    moved = watched("storing Checkpoint", lambda *report: reports.append(report))(5 << 20)
    for by_bytes in (1 << 19, 1 << 19, 3 << 20, 3 << 20, 1 << 20):  # one part was sent twice
        moved(by_bytes)
    assert [(label, done, total) for label, done, total, _ in reports] == [
        ("storing Checkpoint, MB", done, 5) for done in (1, 4, 5)
    ]
    assert progress_text("storing Checkpoint, MB", 4, 5, {"MB_per_s": 80.0}) == (
        "storing Checkpoint, MB: 4 of 5, MB/s 80"
    )


def test_a_stage_shows_its_uploads_and_downloads(reports: list[Report], tmp_path: Path) -> None:
    def report(label: str, done: int, total: int, figures: Mapping[str, float]) -> None:
        reports.append((label, done, total, figures))

    store = Store.open("memory://watched")
    (here := tmp_path / "here").mkdir()
    (elsewhere := tmp_path / "elsewhere").mkdir()
    with StageContext(store, here, Profile(), report, logging.getLogger("test")) as ctx:
        attempt = ArtifactAddress(store, "runs/r/iterations/0001/checkpoint", Checkpoint).attempt(
            Identity.of("finetune", 1, {})
        )
        with ctx.folder(attempt) as folder:
            (folder / "model.safetensors").write_bytes(bytes(3 << 20))
        checkpoint = attempt.publish()
        ctx.local_folder(checkpoint)
    assert {label for label, *_ in reports} == {"storing Checkpoint, MB"}, "what was uploaded is not downloaded again"
    shutil.rmtree(here)  # as on another machine
    with StageContext(store, elsewhere, Profile(), report, logging.getLogger("test")) as ctx:
        ctx.local_folder(checkpoint)
    assert {(label, total) for label, _, total, _ in reports} == {
        ("storing Checkpoint, MB", 3), ("fetching Checkpoint, MB", 3),
    }  # fmt: skip
    assert {done for label, done, _, _ in reports if label.startswith("storing")} >= {3}
