"""A run that goes on shows itself after every iteration, however long it gets."""

import gc
import json
import logging
import weakref
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from artifacts.documents.run_files import read_recipe, recipe_bytes
from artifacts.errors import IntegrityError
from artifacts.layout import RunLayout
from artifacts.manifest import Manifest
from artifacts.reading import Artifact
from artifacts.store.store import Store
from flows.lookup.history import read_iteration, read_run
from flows.report import shown_run
from flows.report.figures import iteration_figures
from flows.report.metric_names import iteration_metrics
from flows.report.prefect_pages.ui import TABLE_ROWS, show_in_prefect
from flows.report.run_view import RunView
from flows.report.shown_run import ShownRun
from tests.support.made_run import make_run

Pages = dict[str, dict[str, Any]]
ITERATIONS = 4


class Garbage:
    holds: set[Any]


@pytest.fixture
def made() -> tuple[Store, RunLayout]:
    store = Store.open("memory://shown")
    return store, make_run(store, iterations=ITERATIONS)


@pytest.fixture
def shown(made: tuple[Store, RunLayout]) -> ShownRun:
    store, layout = made
    return ShownRun(layout, store, None, logging.getLogger("shown"))


def manifests() -> int:
    gc.collect()
    return sum(isinstance(item, Manifest) for item in gc.get_objects())


@pytest.mark.long
def test_it_keeps_the_newest_manifests_and_shows_all_iterations(
    made: tuple[Store, RunLayout], shown: ShownRun, prefect_pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shown_run, "KEPT", 1)
    store, layout = made
    record, before = read_run(store, layout.run), manifests()
    one = max(len(item.manifests) for item in record.iterations) + 1  # and that of the optimizer state
    for n in range(ITERATIONS + 1):
        shown.iteration_finished(read_iteration(store, layout, n), executed=True)
        rows = json.loads(prefect_pages["made-iterations"]["data"])
        assert [row["iteration"] for row in rows] == list(range(n + 1))
        assert f"{n} of {ITERATIONS} iterations." in prefect_pages["made-summary"]["data"]
    everything = sum(len(item.manifests) + (item.state is not None) for item in record.iterations)
    assert manifests() - before <= 2 * one < everything, "those of iteration 0 and of the newest one, which is promoted"


class Kept:
    """A tracker that keeps what it gets."""

    def __init__(self) -> None:
        self.figures: dict[int, Mapping[str, float]] = {}

    def log(self, iteration: int, figures: Mapping[str, float]) -> None:
        assert iteration not in self.figures
        self.figures[iteration] = figures

    def conclude(self, figures: Mapping[str, float]) -> None: ...
    def close(self) -> None: ...


def test_a_tracker_gets_all_iterations_of_a_run_that_goes_on(
    made: tuple[Store, RunLayout], prefect_pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first row comes late, and of most iterations before that only the figures are kept."""
    monkeypatch.setattr(shown_run, "KEPT", 1)
    store, layout = made
    whole = {item.number: iteration_metrics(item) for item in read_run(store, layout.run).iterations}
    tracker = Kept()
    shown = ShownRun(layout, store, tracker, logging.getLogger("shown"))
    for n in range(ITERATIONS - 1, ITERATIONS + 1):
        shown.iteration_finished(read_iteration(store, layout, n), executed=n == ITERATIONS)
    assert tracker.figures == whole


def test_a_page_that_cannot_be_made_does_not_end_the_run(
    made: tuple[Store, RunLayout], shown: ShownRun, prefect_pages: Pages, caplog: pytest.LogCaptureFixture
) -> None:
    store, layout = made
    report = Artifact.at(store, layout.iteration(0, "report"))
    for name in report.manifest.files:
        store.write_bytes(f"{report.key}/{report.manifest.attempt}/{name}", b"damaged")
    shown.iteration_finished(read_iteration(store, layout, ITERATIONS), executed=True)
    assert "pages in Prefect are not up to date" in caplog.text
    with pytest.raises(IntegrityError):
        shown.finished()


class Broken(Kept):
    """A tracker whose disk is full."""

    def log(self, iteration: int, figures: Mapping[str, float]) -> None:
        raise OSError(28, "No space left on device")


def test_nothing_that_is_only_shown_ends_the_run(
    made: tuple[Store, RunLayout], prefect_pages: Pages, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither a tracker, nor a damaged manifest that no stage reads."""
    store, layout = made
    newest = read_iteration(store, layout, ITERATIONS)
    broken = ShownRun(layout, store, Broken(), logging.getLogger("shown"))
    assert broken.iteration_finished(newest, executed=True) is None
    assert f"iteration {ITERATIONS} is not shown: [Errno 28] No space" in caplog.text
    caplog.clear()
    store.write_bytes(damaged := f"{layout.root}/suites/panel/0001/manifest.json", b"garbage")
    ShownRun(layout, store, None, logging.getLogger("shown")).iteration_finished(newest, executed=True)
    store.delete(damaged)
    assert "not shown" not in caplog.text
    assert f"{ITERATIONS} of {ITERATIONS} iterations." in prefect_pages["made-summary"]["data"]


def test_a_run_that_is_longer_than_its_recipe_says_how_long_it_is(made: tuple[Store, RunLayout]) -> None:
    store, layout = made
    record = read_run(store, layout.run)
    assert replace(record, recipe={**record.recipe, "iterations": 1}).planned_iterations == ITERATIONS
    assert replace(record, iterations=[]).planned_iterations == ITERATIONS == record.planned_iterations


def test_the_summary_names_the_iteration_that_is_promoted_by_now(
    made: tuple[Store, RunLayout], shown: ShownRun, prefect_pages: Pages
) -> None:
    store, layout = made
    promoted = store.read_bytes(layout.promoted)
    store.delete(layout.promoted)
    shown.iteration_finished(read_iteration(store, layout, 0), executed=True)
    assert "Promoted:" not in prefect_pages["made-summary"]["data"]
    store.write_bytes(layout.promoted, promoted)
    shown.iteration_finished(read_iteration(store, layout, 1), executed=True)
    assert f"Promoted: iteration {ITERATIONS}," in prefect_pages["made-summary"]["data"]


def test_the_garbage_of_an_iteration_does_not_lie_until_many_have_passed(
    made: tuple[Store, RunLayout], shown: ShownRun, prefect_pages: Pages
) -> None:
    store, layout = made
    gc.disable()  # Python would collect it some time
    try:
        one, other = set[Any](), Garbage()
        one.add(other)
        other.holds = one
        left = weakref.ref(other)
        del one, other
        assert left() is not None
        shown.iteration_finished(read_iteration(store, layout, 0), executed=True)
        assert left() is None
    finally:
        gc.enable()


def test_tables_in_prefect_do_not_grow_with_a_run(made: tuple[Store, RunLayout], prefect_pages: Pages) -> None:
    store, layout = made
    record = read_run(store, layout.run)
    figures = iteration_figures(record.iterations[-1])
    view = RunView(record, store, [replace(figures, number=number) for number in range(TABLE_ROWS + 7)])
    show_in_prefect(view, slow=False)
    for name in ("iterations", "seconds"):
        table = prefect_pages[f"made-{name}"]
        assert [row["iteration"] for row in json.loads(table["data"])] == list(range(7, TABLE_ROWS + 7))
        assert table["description"].endswith("; the report has the 7 before them")


def test_the_report_of_a_finished_run_is_written_again_only_if_it_would_differ(
    made: tuple[Store, RunLayout], shown: ShownRun, prefect_pages: Pages
) -> None:
    store, layout = made
    picture = f"{layout.summary}/accuracy.png"

    def written() -> bool:
        store.write_bytes(picture, b"left alone")
        prefect_pages.clear()
        page, reused = shown.finished()
        assert page == layout.page and store.exists(page)
        assert reused == (store.read_bytes(picture) == b"left alone") == (not prefect_pages)
        return not reused

    assert written(), "there was none"
    assert not written()
    store.write_bytes(f"{layout.iteration(1, 'checkpoint')}/added", b"")
    assert written(), "something was published"
    assert not written()
    store.delete(layout.page)
    assert written(), "the page was deleted"
    store.write_bytes(f"{layout.summary}/shown.sha256", b"\xff")
    assert written(), "the digest was damaged"
    recipe = {**read_recipe(store, layout), "title": "Another title"}
    store.write_bytes(layout.recipe, recipe_bytes(recipe))
    assert written(), "the recipe was changed"
    assert not written()
    store.delete(f"{layout.summary}/SHA256SUMS")
    assert written(), "a command was killed while it wrote the files"
