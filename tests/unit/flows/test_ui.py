"""What a run leaves in Prefect's user interface."""

import json
import re

from hypothesis import given
from hypothesis import strategies as st

from artifacts.layout import RunLayout
from artifacts.store import Store
from flows.figures import iteration_figures
from flows.history import read_run
from flows.plots import accuracy_plot
from flows.ui import markdown, slug, table_rows


@given(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", fullmatch=True))
def test_every_run_name_gives_a_key_that_prefect_takes(name: str) -> None:
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", slug(name))


def test_table_has_the_same_columns_in_every_row_and_is_json(made: tuple[Store, RunLayout]) -> None:
    store, layout = made
    rows = table_rows([iteration_figures(item) for item in read_run(store, layout.run).iterations])
    assert len(rows) == 5
    assert len({tuple(row) for row in rows}) == 1
    json.dumps(rows, allow_nan=False)
    assert rows[0]["reward"] is None, "nothing was sampled before the first update"


def test_markdown_has_before_and_after(made: tuple[Store, RunLayout]) -> None:
    store, layout = made
    text = markdown(read_run(store, layout.run), store)
    assert "| accuracy, sampled |" in text
    assert "deerstalker solve --checkpoint made" in text


def test_the_small_picture_fits_an_address(made: tuple[Store, RunLayout]) -> None:
    store, layout = made
    iterations = [iteration_figures(item) for item in read_run(store, layout.run).iterations]
    assert len(accuracy_plot(iterations, dpi=70)) * 4 / 3 < 100_000
