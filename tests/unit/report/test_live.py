"""What a person watches."""

import pytest

from artifacts.layout import RunLayout
from artifacts.store.store import Store
from flows.config.recipe import Recipe
from flows.lookup.history import read_iteration, read_run
from flows.report.figures import iteration_figures, terminal_columns
from flows.report.terminal.live import LiveView, current_view, progress_text, table_header, table_row, use_view
from flows.report.terminal.live_terminal import TerminalView


def test_plain_view_writes_a_line_a_stage_and_a_row_an_iteration(
    made: tuple[Store, RunLayout], capsys: pytest.CaptureFixture[str]
) -> None:
    store, layout = made
    view = LiveView()
    view.run_opened(store, layout, Recipe.model_validate(read_run(store, "made").recipe))
    view.stage_started("sample-0001")
    view.progress("sample 1", 1, 6, {"tokens_per_s": 100.0})
    view.stage_finished("sample-0001", 12.34, reused=False)
    view.iteration_finished(read_iteration(store, layout, 1))
    view.stage_finished("sample-0002", 0.0, reused=True)
    view.iteration_finished(read_iteration(store, layout, 2))
    view.close()
    view.close()
    captured = capsys.readouterr()
    assert captured.out == "", "stdout is kept for results"
    lines = captured.err.splitlines()
    title = "A run for tests, with a title as long as those of the recipes that come with the package"
    assert lines[0] == f"run made: {title}"
    assert lines[2].split() == ["sample-0001", "12.3", "s"]
    assert lines[3] == table_header(terminal_columns([]))
    assert lines[4].split()[0] in {"1", "1*"}
    assert lines[5].split() == ["sample-0002", "cached"]
    assert lines[6].endswith("cached")
    assert len(lines) == 7, "no line for a progress report that comes early"


def test_a_row_shows_the_figures_of_the_manifests(made: tuple[Store, RunLayout]) -> None:
    store, layout = made
    figures = iteration_figures(read_iteration(store, layout, 2))
    cells = table_row(figures, terminal_columns([])).split()
    assert cells[0].rstrip("*") == "2"
    assert float(cells[1]) == pytest.approx(figures.value("reward"), abs=5e-4)
    assert cells[6:9] == ["0.640", "0.0300", "0.0120"], "entropy 1.2 - 0.56; clipped 0.01 + 0.02; gap"
    assert len(cells[0:10]) == 10


def test_iteration_0_has_a_row_of_what_was_measured(
    made: tuple[Store, RunLayout], capsys: pytest.CaptureFixture[str]
) -> None:
    store, layout = made
    view = LiveView()
    view.run_opened(store, layout, Recipe.model_validate(read_run(store, "made").recipe))
    view.iteration_finished(read_iteration(store, layout, 0))
    header, row = capsys.readouterr().err.splitlines()[-2:]
    assert header == table_header(terminal_columns([]))
    assert row.split()[:3] == ["0*", "-", "-"]
    measured = iteration_figures(read_iteration(store, layout, 0)).sampled
    assert measured and float(row.split()[3]) == pytest.approx(measured.accuracy.mean, abs=5e-4)


@pytest.mark.parametrize("view_of", [LiveView, TerminalView])
def test_a_column_appears_with_the_first_row_that_has_it(
    made: tuple[Store, RunLayout],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    view_of: type[LiveView],
) -> None:
    """Iteration 0 trains nothing, so that most figures are known later."""
    monkeypatch.setenv("COLUMNS", "300")
    store, layout = made
    figures = [iteration_figures(read_iteration(store, layout, number)) for number in range(4)]
    figures[2].values["phase"] = 1.0
    view = view_of()
    for item in figures:
        view.show_row(item, "")
    headers = [line for line in capsys.readouterr().err.splitlines() if "promoted" in line]
    assert ["phase" in line.split() for line in headers] == [False, True]


def test_progress_in_words() -> None:
    assert progress_text("sample 3", 2, 8, {"starting": 1.0}) == "sample 3: starting the engine"
    assert progress_text("finetune 3", 1, 2, {"loss": 0.125}) == "finetune 3: 1 of 2, loss 0.125"
    assert progress_text("sample 3", 2, 8, {"tokens_per_s": 351.26}) == "sample 3: 2 of 8, tokens/s 351.3"
    assert progress_text("prepare", 32, 64, {}) == "prepare: 32 of 64"


def test_the_current_view_is_restored_and_closed_after_an_error() -> None:
    closed: list[bool] = []

    class Watched(LiveView):
        def close(self) -> None:
            closed.append(True)

    before, view = current_view(), Watched()
    with pytest.raises(KeyboardInterrupt), use_view(view):
        assert current_view() is view
        raise KeyboardInterrupt
    assert current_view() is before
    assert closed == [True]


def test_terminal_view_gives_the_terminal_back(
    made: tuple[Store, RunLayout], capsys: pytest.CaptureFixture[str]
) -> None:
    store, layout = made
    view = TerminalView()
    with use_view(view):
        view.run_opened(store, layout, Recipe.model_validate(read_run(store, "made").recipe))
        view.stage_started("finetune-0001")
        view.progress("finetune 1", 1, 4, {"loss": 0.5})
        assert any("finetune-0001" in line.plain for line in _texts(view))
        view.stage_finished("finetune-0001", 1.0, reused=False)
        view.iteration_finished(read_iteration(store, layout, 1))
    captured = capsys.readouterr()
    assert captured.out == ""
    assert table_header(terminal_columns([]))[:60] in captured.err


def _texts(view: TerminalView) -> list["object"]:
    from rich.text import Text

    return [Text.from_ansi(line) for line in _rendered(view).splitlines()]


def _rendered(view: TerminalView) -> str:
    with view.console.capture() as capture:
        view.console.print(view)
    return capture.get()
