"""What a run leaves in Prefect's user interface."""

import json
import re
from dataclasses import replace

import markdown_it
import pytest
from hypothesis import given
from hypothesis import strategies as st

from artifacts.layout import RunLayout
from artifacts.store.store import Store
from artifacts.tensors import PackedBatch
from flows.lookup.history import read_run
from flows.orchestration.artifact_keys import slug
from flows.orchestration.progress import kind_of
from flows.report.example_group import find_example_group
from flows.report.figures import iteration_figures
from flows.report.html.run_report import store_report
from flows.report.pictures import batch_picture
from flows.report.pictures.batch_picture import Segment
from flows.report.pictures.plots import accuracy_plot
from flows.report.pictures.png import smaller
from flows.report.prefect_pages.ui_text import (
    batch_page,
    completions_page,
    headline,
    iteration_rows,
    seconds_rows,
    store_page,
    summary_page,
)
from flows.report.run_view import RunView
from flows.report.text.markdown import fenced, shortened
from stages.environments.puzzle import Asserted
from stages.grpo.groups import Branch, Group
from stages.grpo.packing import PackConfig, pack_groups
from tests.support.hostile import HOSTILE

RUN_NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", fullmatch=True)


@given(RUN_NAMES)
def test_every_run_name_gives_a_key_that_prefect_takes(name: str) -> None:
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", slug(name))


def test_runs_whose_names_look_alike_share_no_key() -> None:
    names = ["my-run", "my.run", "my_run", "My-Run", "my-run-", "my--run"]
    assert len({slug(name) for name in names}) == len(names)
    assert slug("my-run") == "my-run"


def test_progress_of_every_iteration_has_one_key() -> None:
    assert [kind_of(label) for label in ("sample 3", "sample 12", "evaluate greedy", "warm start")] == [
        "sample", "sample", "evaluate greedy", "warm start",
    ]  # fmt: skip


def test_tables_have_the_same_columns_in_every_row_and_are_json(made: tuple[Store, RunLayout]) -> None:
    store, layout = made
    figures = [iteration_figures(item) for item in read_run(store, layout.run).iterations]
    for rows in (iteration_rows(figures), seconds_rows(figures)):
        assert len(rows) == 5
        assert len({tuple(row) for row in rows}) == 1
        json.dumps(rows, allow_nan=False)
    assert iteration_rows(figures)[0]["reward"] is None, "nothing was sampled before the first update"
    assert seconds_rows(figures)[0]["sample"] is None
    assert seconds_rows(figures)[1]["sample"] > 0


def test_the_headline_tells_the_newest_iteration(made: tuple[Store, RunLayout]) -> None:
    store, layout = made
    figures = [iteration_figures(item) for item in read_run(store, layout.run).iterations]
    assert figures[2].sampled is not None
    assert headline(figures[:3]).startswith(f"iteration 2, held-out sampled {figures[2].sampled.accuracy.mean:.1%}")
    assert headline(figures[:1]).startswith("iteration 0, held-out sampled")


def test_summary_has_before_and_after(made: tuple[Store, RunLayout]) -> None:
    store, layout = made
    text = summary_page(read_run(store, layout.run), store)
    assert "| accuracy, sampled |" in text
    assert "deerstalker solve --checkpoint made" in text


def test_addresses_become_links_where_the_store_has_a_web_address(made: tuple[Store, RunLayout]) -> None:
    store, layout = made
    record = read_run(store, layout.run)
    key = "runs/made/iterations/0004/checkpoint"
    assert f"`{store.url}/{key}`" in store_page(record, store)
    linked = store_page(record, store, "https://console.example/bucket?prefix={key}")
    assert f"[`{store.url}/{key}`](https://console.example/bucket?prefix={key})" in linked


def test_the_small_picture_fits_an_address(made: tuple[Store, RunLayout]) -> None:
    store, layout = made
    iterations = [iteration_figures(item) for item in read_run(store, layout.run).iterations]
    assert len(smaller(accuracy_plot(iterations), 0.47)) * 4 / 3 < 100_000


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_a_completion_is_one_block_of_code_whatever_it_says(text: str) -> None:
    (block,) = markdown_it.MarkdownIt("commonmark").parse(fenced(text))
    assert block.type == "fence"
    assert len(block.content) < 5_000
    assert "".join(block.content.split()) == "".join(shortened(text).split())


@given(st.text(max_size=300))
def test_no_text_leaves_its_block(text: str) -> None:
    tokens = markdown_it.MarkdownIt("commonmark").parse(f"before\n\n{fenced(text)}\n\nafter")
    assert [token.type for token in tokens if token.level == 0 and token.nesting >= 0] == [
        "paragraph_open", "fence", "paragraph_open",
    ]  # fmt: skip


def test_nothing_invisible_is_left() -> None:
    shown = shortened("nul\x00 bell\a rtl\u202e zero\u200b tab\t end")
    assert shown == "nul\\u0000 bell\\u0007 rtl\\u202e zero\\u200b tab     end"
    assert shortened("x" * 9_000).count("x") == 4_000
    assert "[... 5000 characters left out ...]" in shortened("x" * 9_000)


def test_completions_tell_what_they_prove(made: tuple[Store, RunLayout]) -> None:
    store, layout = made
    example = find_example_group(read_run(store, layout.run).iterations[-1], layout, store)
    assert all(item.statements is not None for item in example.completions)
    said = [Asserted("Miss Scarlet was in the Hall", "open", 0), Asserted("Mr. Green was in the Hall", "proved", 33)]
    page = completions_page(replace(example, completions=[replace(example.completions[0], statements=said)]))
    assert "1 proved, 0 contradicted, 0 restated, 1 open." in page
    assert page.index("proved        Mr. Green was") < page.index("open          Miss Scarlet was")
    assert page.index("What the grader read:") < page.index("Statements about the puzzle:")


def _packed() -> PackedBatch:
    groups = [
        Group([1] * 4, [Branch([2] * 3, [-0.1] * 3, 1.0), Branch([3] * 2, [-0.1] * 2, -1.0)]),
        Group([4] * 5, [Branch([5] * 6, [-0.1] * 6, 0.5), Branch([6], [-0.1], 0.0)]),
    ]
    return pack_groups(groups, PackConfig(row_tokens=16, uniform_groups="kept"))[0]


def test_the_packed_batch_is_cut_into_its_segments() -> None:
    shown = batch_picture.batch_view(_packed())
    kinds = {row: [(s.kind, s.length) for s in shown.segments if s.row == row] for row in range(len(shown.steps))}
    assert sorted(kinds.values()) == [
        [("prompt", 4), ("advantage > 0", 3), ("advantage < 0", 2), ("padding", 3)],
        [("prompt", 5), ("advantage > 0", 6), ("advantage 0", 1)],
    ]
    assert sum(s.length for s in shown.segments) == len(shown.steps) * shown.row_tokens
    assert shown.used_tokens == 4 + 3 + 2 + 5 + 6 + 1
    assert shown.unshared_tokens == (4 + 3) + (4 + 2) + (5 + 6) + (5 + 1)


def test_the_packed_batch_is_drawn_even_where_it_is_large_or_empty() -> None:
    shown = batch_picture.batch_view(_packed())
    assert batch_picture.draw(shown).startswith(b"\x89PNG")
    many = replace(
        shown,
        segments=[Segment(row, start, 1, "prompt") for row in range(300) for start in range(16)],
        steps=list(range(1, 301)),
    )
    assert len(smaller(batch_picture.draw(many), 0.47)) < 150_000
    empty = batch_picture.batch_view(pack_groups([], PackConfig(row_tokens=2048))[0])
    assert empty.steps == []
    assert "No rows" in batch_page(3, empty, None, "")
    assert "data:image" not in batch_page(3, empty, None, "")


def test_the_report_can_be_written_without_prefect(made: tuple[Store, RunLayout]) -> None:
    store, layout = made
    key = store_report(RunView(read_run(store, layout.run), store))
    page = store.read_bytes(key).decode()
    assert "The newest packed batch" in page
    assert page.count("data:image/png;base64") == 9
    assert "Statements about the puzzle:" not in page, "the completions make none"
