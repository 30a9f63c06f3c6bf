"""Others' text on the terminal, in JSON and in pages: seen, never obeyed."""

import io
import json
import sys
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table
from rich.tree import Tree

from artifacts.layout import RunLayout
from artifacts.store.store import Store
from flows.cli.app import run_command
from flows.cli.console.output import print_json
from flows.cli.console.terminal import Terminal
from flows.lookup.history import read_run
from flows.report.html.page import TEMPLATES, page
from flows.report.html.run_report import report_files
from flows.report.pictures.plots import bars_plot
from flows.report.run_view import RunView
from flows.report.terminal.live import LiveView
from flows.report.terminal.live_terminal import TerminalView
from flows.report.text.visible import one_line, visible, visible_json
from tests.support.hostile import HOSTILE
from tests.support.made_run import make_run

EVIL = "[red]x[/red] :bomb: [link=http://evil]\x1b[2J\x1b]0;t\x07\x9b1m\u202eevil\r\nerror: forged\x00"
CONTROLS = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}


def unseen(text: str) -> set[str]:
    """Characters of a text that a terminal would obey, or that nobody sees."""
    return {c for c in text if unicodedata.category(c) in CONTROLS and c != "\n"}


@given(st.text(st.characters(codec=None)) | st.sampled_from(HOSTILE))
def test_every_character_is_seen(text: str) -> None:
    assert not unseen(visible(text))
    assert "\n" not in one_line(text)
    assert visible(text).encode().decode() == visible(text)


@given(st.text(st.characters(codec=None), max_size=50))
def test_json_keeps_its_values(text: str) -> None:
    shown = visible_json(json.dumps({"a": text}, ensure_ascii=False))
    assert not unseen(shown)
    assert json.loads(shown) == json.loads(json.dumps({"a": text}))


def test_what_stands_for_what_cannot_be_seen() -> None:
    assert visible("a\x1b[2Jb\r\nc\td\x00\x9b\u202e\U000e0001\ud800") == (
        "a\\u001b[2Jb\nc    d\\u0000\\u009b\\u202e\\U000e0001\\ud800"
    )
    assert visible("Zoë, 東京 🙂") == "Zoë, 東京 🙂"
    assert one_line("a\nb") == "a\\u000ab"
    assert one_line("x" * 30, 10) == "xxxxx [... 20 characters left out ...] xxxxx"


def test_json_on_the_terminal_steers_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"title": EVIL, "half": "\ud800", "delete": "\x7f"})
    out = capsys.readouterr().out
    assert not unseen(out)
    assert json.loads(out) == {"title": EVIL, "half": "\ud800", "delete": "\x7f"}


def test_a_table_a_tree_and_a_line_show_the_letters() -> None:
    console = Terminal(file=io.StringIO(), width=400, force_terminal=True)
    grid = Table(EVIL, title=EVIL, caption=EVIL)
    grid.add_row(EVIL)
    tree = Tree(EVIL)
    tree.add(EVIL)
    for shown in (grid, tree, EVIL):
        console.print(shown, soft_wrap=True)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert text.count("[red]x[/red] :bomb: [link=http://evil]\\u001b[2J") == 7
    assert "\x1b[2J" not in text and "\x1b]" not in text and "\x9b" not in text
    assert not [line for line in text.splitlines() if line.startswith("error:")]


@pytest.fixture(scope="module")
def evil_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, RunLayout]:
    """A run whose recipe has a title that is more than a title."""
    folder = tmp_path_factory.mktemp("evil")
    store = Store.open(str(folder / "store"))
    layout = make_run(store, iterations=1)
    recipe = json.loads(store.read_bytes(layout.recipe))
    store.write_bytes(layout.recipe, json.dumps({**recipe, "title": EVIL.replace("\0", "")}).encode())
    return store, layout


@pytest.mark.parametrize("command", [["runs"], ["show", "made"], ["diff", "made", "made"], ["lineage", "made"]])
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_commands_show_a_title_as_it_stands(
    evil_run: tuple[Store, RunLayout],
    command: list[str],
    form: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    assert run_command([*command, *form, "--store", evil_run[0].url]) == 0
    out = capsys.readouterr().out
    assert not unseen(out)
    assert not [line for line in out.splitlines() if line.startswith("error:")]
    if command[0] in ("runs", "show"):
        assert "[red]x[/red] :bomb: [link=http://evil]\\u001b[2J" in out


def test_a_recipe_is_shown_letter_by_letter(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "[red]own.toml"
    path.write_text(f'title = {json.dumps(EVIL.replace(chr(0), ""))}\niterations = 1\nmodel = {{source = "scratch"}}\n')
    assert run_command(["recipes", "show", str(path)]) == 0
    assert run_command(["recipes", "diff", str(path), "quickstart"]) == 0
    out = capsys.readouterr().out
    assert not unseen(out)
    assert "[red]x[/red] :bomb:" in out


def test_a_report_holds_no_markup_but_ours(evil_run: tuple[Store, RunLayout]) -> None:
    store, layout = evil_run
    record = read_run(store, layout.run)
    record.recipe["title"] = f"<script>alert(1)</script>{EVIL}"
    page = report_files(RunView(record, store))["report.html"].decode()
    assert "<script" not in page
    assert not unseen(page)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;[red]" in page


@pytest.mark.parametrize("text", [*HOSTILE[:6], EVIL])
def test_the_parts_of_a_page_escape_what_they_are_given(text: str) -> None:
    parts = """{% extends "page.html" %}{% from "parts.html" import card, table %}{% block body %}
        {{ card(text, text, text, text) }}{{ table([text], [[text]], name=text) }}{{ text }}{% endblock %}"""
    document = page(TEMPLATES.from_string(parts), title=text, text=text)
    assert document.count("<td>") == 1 == document.count("<b>"), "the parts are there"
    assert not unseen(document)
    assert "<script" not in document and "<img" not in document and "<a " not in document


def test_a_label_of_a_picture_is_no_formula() -> None:
    assert bars_plot({"$\\frac$": 1.0, "a\x00b": 2.0}, "of recipes").startswith(b"\x89PNG")


def test_an_error_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    name = "[red]\x1b[2J\nerror: forged\u202e"
    for arguments in (
        ["recipes", "show", name], ["recipes", "diff", "quickstart", name], ["puzzles", "solve", f"{name}.json"],
        ["recipes", "show", "quickstart", "--set", f"title{name}=1"], ["show", name, "--store", str(tmp_path)],
        [name], ["train", f"--{name}"], ["lineage", "--debug", f"{name}/x", "--store", str(tmp_path)],
    ):  # fmt: skip
        assert run_command(arguments) == 2
        captured = capsys.readouterr()
        assert not unseen(captured.err)
        assert len([line for line in captured.err.splitlines() if line.startswith("error: ")]) == 1


def test_a_long_error_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["recipes", "show", "x" * 100_000]) == 2
    error = capsys.readouterr().err
    assert len(error) < 5_000
    assert "characters left out" in error


def test_the_live_views_write_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    LiveView().opened(EVIL)
    monkeypatch.setenv("COLUMNS", "400")
    view = TerminalView()
    view.console.file = sys.stderr
    view.line(EVIL)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert not unseen("".join(lines))
