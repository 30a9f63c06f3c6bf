"""Text that is no wider than the terminal, and `show` and `lineage`, which print it."""

import os
import shlex
import subprocess
import sys
from dataclasses import replace

import pytest
from rich.console import Console

from artifacts.layout import RunLayout
from artifacts.reading import Artifact
from artifacts.store.store import Store
from flows.cli.app import run_command
from flows.lookup.history import read_iteration, read_run
from flows.report.figures import IterationFigures, iteration_figures, terminal_columns
from flows.report.summary import solve_command
from flows.report.terminal.live import print_iterations, table_header
from flows.report.text.wrapping import command_lines, print_labelled, wrapped
from tests.support.made_run import copied_store

WIDTH = 80


@pytest.fixture(scope="module")
def far(made: tuple[Store, RunLayout], tmp_path_factory: pytest.TempPathFactory) -> Store:
    """The finished run `made` in a store whose address alone is longer than a line."""
    folder = tmp_path_factory.mktemp("far") / "a-folder-with-a-long-name" / "and-another-one-below-it" / ("x" * 90)
    return copied_store(made[0], folder)


def printed(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert run_command(arguments) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        ["show", "made"],
        ["lineage", "made"],
        ["lineage", "made@2", "--depth", "0"],
        ["lineage", "runs/made/iterations/0003/decision", "--depth", "0"],
    ],
)
@pytest.mark.parametrize("store_name", ["near", "far"])
def test_no_line_is_wider_than_80_columns(
    arguments: list[str],
    store_name: str,
    made: tuple[Store, RunLayout],
    far: Store,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    store = {"near": made[0], "far": far}[store_name]
    lines = printed([*arguments, "--store", store.url], capsys).splitlines()
    assert len(lines) > 10
    assert [line for line in lines if len(line) > WIDTH] == []


def test_without_a_terminal_lines_have_80_columns(far: Store) -> None:
    """The longest line is full, because the store's address has a word that is longer than a line."""
    code = f"from flows.cli.app import run_command; run_command(['show', 'made', '--store', {far.url!r}])"
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}

    done = subprocess.run(
        [sys.executable, "-c", code],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment, check=True,
    )  # fmt: skip
    assert max(map(len, done.stdout.splitlines())) == WIDTH


def test_a_wider_terminal_is_used_and_wide_prints_whole_lines(
    made: tuple[Store, RunLayout], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, layout = made
    show, lineage = (["show", "made", "--store", store.url], ["lineage", "made", "--store", store.url])
    monkeypatch.setenv("COLUMNS", "150")
    at_150 = printed(show, capsys)
    assert table_header(terminal_columns([])) in at_150 and WIDTH < max(map(len, at_150.splitlines())) <= 150
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    assert table_header(terminal_columns([])) not in printed(show, capsys)
    wide = printed([*show, "--wide"], capsys)
    assert table_header(terminal_columns([])) in wide
    assert f"report:   {store.url}/{layout.summary}/report.html\n" in wide
    assert f"try it:   {solve_command(read_run(store, 'made'), store)}\n" in wide
    versions = Artifact.at(store, layout.iteration(4, "checkpoint")).manifest.provenance["versions"]
    whole = "versions  " + ", ".join(f"{name} {version}" for name, version in versions.items()) + "\n"
    assert whole in printed([*lineage, "--wide"], capsys)
    assert " ".join(whole.split()) in " ".join(printed(lineage, capsys).split()), "wrapped, but nothing is left out"


def test_the_star_is_explained(
    made: tuple[Store, RunLayout], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for columns in ("80", "150"):
        monkeypatch.setenv("COLUMNS", columns)
        text = printed(["show", "made", "--store", made[0].url], capsys)
        assert "4*" in text and "* promoted" in text


def test_skipped_steps_are_told_at_80_columns(
    made: tuple[Store, RunLayout], capsys: pytest.CaptureFixture[str]
) -> None:
    figures = iteration_figures(read_iteration(made[0], made[1], 2))
    skipped: IterationFigures = replace(figures, values={**figures.values, "skipped_steps": 1})
    print_iterations(Console(width=WIDTH), [skipped])
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "iteration 2: 1 of 1 steps skipped"
    assert max(map(len, lines)) <= WIDTH


def test_a_tree_deeper_than_the_terminal_says_what_it_leaves_out(
    made: tuple[Store, RunLayout], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    command = ["lineage", made[1].iteration(4, "decision"), "--depth", "0", "--store", made[0].url]
    narrow = printed(command, capsys)
    assert "drawn 2 steps deep; --json lists" in " ".join(narrow.split()) and "--wide draws" in narrow
    assert "drawn" not in printed([*command, "--wide"], capsys)


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("", []),
        ("one two three", ["one two three"]),
        ("one two three four five six", ["one two three four", "five six"]),
        ("file:///folder/another/third", ["file:///folder/", "another/third"]),
        ("a" * 45, ["a" * 20, "a" * 20, "a" * 5]),
        ("\u4e2d" * 11, ["\u4e2d" * 10, "\u4e2d"]),
    ],
)
def test_words_stay_whole_where_they_fit_and_paths_break_after_a_slash(text: str, lines: list[str]) -> None:
    assert wrapped(text, 20) == lines


def test_a_label_that_fills_the_line_is_text_like_the_rest(capsys: pytest.CaptureFixture[str]) -> None:
    print_labelled(Console(width=WIDTH), f"{'r' * 64}: ", "a title of a few words that do not fit beside it")
    lines = capsys.readouterr().out.splitlines()
    assert lines == [f"{'r' * 64}: a title of a", "few words that do not fit beside it"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["deerstalker", "solve", "--checkpoint", "made", "made:test", "--index", "0"],
        ["deerstalker", "solve", "--store", f"file:///{'folder/' * 12}store", "made:test", "--index", "0"],
        ["deerstalker", "solve", "--store", f"file:///with a space/{'x' * 200}", "it's:test", "--index", "0"],
        ["deerstalker", "solve", "file:///" + "'" * 60 + "/" + "$x " * 60, "--index", "0"],
    ],
)
def test_a_shell_reads_a_command_of_several_lines_as_one(arguments: list[str]) -> None:
    lines = command_lines(shlex.join(arguments), WIDTH, "try it:   ")
    assert max(map(len, lines)) <= WIDTH and lines[0].startswith("try it:   deerstalker")
    script = "deerstalker() { printf '%s\\n' deerstalker \"$@\"; }\n" + "\n".join(lines).removeprefix("try it:   ")
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == arguments
