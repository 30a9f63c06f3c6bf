"""A run whose model writes its reasoning: the statements are seen, with verdicts, wherever the run is shown."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import markdown_it
import polars as pl
import pytest
from rich.console import Console

from artifacts.layout import RunLayout
from artifacts.reading import Artifact
from artifacts.schemas import RESULTS
from artifacts.store.store import Store
from flows.cli.console.derivations import print_before_after
from flows.cli.console.options import Stored
from flows.cli.console.output import show_run
from flows.cli.console.terminal import Terminal
from flows.config.recipe import Recipe
from flows.lookup.history import RunRecord, read_iteration, read_run
from flows.report.before_after import find_before_after
from flows.report.derivation import Derivation, StatementLine, read_derivation, step_line, text_pieces
from flows.report.figures import iteration_figures
from flows.report.html.page import TEMPLATES, page
from flows.report.html.run_report import PAGE, report_files
from flows.report.metric_names import iteration_metrics
from flows.report.prefect_pages.ui import show_in_prefect
from flows.report.prefect_pages.ui_text import before_after_page, iteration_rows
from flows.report.run_view import RunView
from flows.report.summary import summary
from flows.report.terminal.live import LiveView, print_iterations
from stages.environments import environment
from stages.environments.generate import TIERS, generate
from stages.environments.puzzle import Asserted, Puzzle
from tests.support.hostile import HOSTILE
from tests.support.made_run import make_run

WIDTH = 80


@pytest.fixture(scope="module")
def thinking(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, RunLayout]:
    """A run of two iterations whose completions have steps."""
    folder: Path = tmp_path_factory.mktemp("thinking")
    store = Store.open(str(folder / "store"))
    return store, make_run(store, run="thinking", iterations=2, derives=True)


@pytest.fixture(scope="module")
def record(thinking: tuple[Store, RunLayout]) -> RunRecord:
    return read_run(thinking[0], "thinking")


@pytest.fixture(scope="module")
def shown_page(thinking: tuple[Store, RunLayout], record: RunRecord) -> str:
    return report_files(RunView(record, thinking[0]))[PAGE].decode()


def section(shown: str, heading: str) -> str:
    """The part of the page from a heading to the next."""
    (part,) = [part for part in shown.split("<h2>") if part.startswith(heading)]
    return part


def greedy(store: Store, layout: RunLayout, when: str) -> pl.DataFrame:
    table = Artifact.at(store, layout.evaluation(when)).read_table("results.parquet", RESULTS)
    return table.filter(pl.col("mode") == "greedy")


@pytest.fixture(scope="module")
def puzzle() -> Puzzle:
    return generate(TIERS["reduced"], 3)


def said_by_solver(puzzle: Puzzle) -> list[str]:
    """True statements that no clue states."""
    derivation = read_derivation(written(puzzle), "stop", puzzle, every_premise=False)
    assert derivation is not None
    return [step.statement.text for step in derivation.steps if step.statement.verdict == "proved"]


def written(puzzle: Puzzle) -> str:
    return environment.get(puzzle.environment).write_derivation(puzzle)


def test_a_derivation_has_verdicts_premises_and_a_first_false_step(puzzle: Puzzle) -> None:
    true, other, *_ = said_by_solver(puzzle)
    false = other.replace(" was ", " was not ", 1)
    clue = next(line.removeprefix("- ") for line in puzzle.prompt.splitlines() if line.startswith("- "))
    text = f"{clue}. So {true}\r\n\nBut {false}.\nAgain {true}."
    derivation = read_derivation(text, "length", puzzle, every_premise=True)
    assert derivation is not None
    assert [step.statement.verdict for step in derivation.steps] == ["restated", "proved", "contradicted", "proved"]
    assert [step.number for line in derivation.lines for step in line.steps] == [1, 2, 3, 4]
    assert [len(line.steps) for line in derivation.lines] == [2, 0, 1, 1]
    lines = ["".join(piece.text for piece in line.pieces) for line in derivation.lines]
    assert lines == [f"{clue}. So {true}", "", f"But {false}.", f"Again {true}."]
    first, proved, wrong, again = (step_line(step, derivation.lines[0].steps[:1]) for step in derivation.steps)
    assert first == "step 1: restated from clue 1"
    assert re.fullmatch(r"step 2: proved by clues? [\d, and]+", proved)
    assert re.fullmatch(r"step 3: contradicted by clues? [\d, and]+", wrong)
    assert again == proved.replace("step 2", "step 4") + " (repeated)"
    assert step_line(derivation.steps[1], derivation.lines[0].steps).endswith(f": {true}"), "one of two in its line"
    assert derivation.conclusions == [
        f"First false step: step 3 is {wrong.removeprefix('step 3: ')}.",
        "The completion is unfinished (finish reason length).",
    ]


def test_without_a_false_step_an_open_one_is_named(puzzle: Puzzle) -> None:
    def concluded(*verdicts: str) -> list[str]:
        steps = [StatementLine(i, Asserted("x", verdict, 0)) for i, verdict in enumerate(verdicts, start=1)]  # type: ignore[arg-type]
        return Derivation("x", "stop", tuple(steps)).conclusions

    assert concluded() == ["There is no statement about the puzzle."]
    assert concluded("proved", "restated") == ["No step is false."]
    assert concluded("proved", "open", "open") == ["No step is false, but the clues leave step 2 open."]
    assert concluded("open", "contradicted") == ["First false step: step 2 is contradicted."]
    unreadable = replace(puzzle, prompt=puzzle.prompt.replace("\n- ", "\n- Perhaps ", 1))
    assert read_derivation("anything", "stop", unreadable, every_premise=True) is None


def test_a_long_text_loses_its_middle_and_keeps_its_verdicts() -> None:
    text = "ab" + "x" * 100 + "yz"
    said = [Asserted("b" + "x" * 50, "open", 1), Asserted("y", "proved", 102)]
    assert "".join(piece.text for piece in text_pieces(text, said, 1000)) == text
    short = text_pieces(text, said, 30)
    assert [(piece.text, piece.verdict) for piece in short] == [
        ("a", None), ("b" + "x" * 18, "open"), ("\n[... 74 characters left out ...]\n", None),
        ("x" * 8, None), ("y", "proved"), ("z", None),
    ]  # fmt: skip


def test_the_report_shows_one_puzzle_before_and_after(shown_page: str, thinking: tuple[Store, RunLayout]) -> None:
    shown = section(shown_page, "One puzzle before and after GRPO")
    assert "<h3>before GRPO: " in shown and "<h3>after GRPO, promoted: " in shown
    for verdict in ("proved", "contradicted"):
        assert f'<span class="said {verdict}" title="{verdict}">' in shown
    assert re.search(
        r'<p class="conclusion">First false step: step \d+ is contradicted by clues? [\d, and]+\.</p>', shown
    )
    (name,) = re.findall(r"Puzzle (\S+) of the test split", shown)
    for when in ("before", "after"):
        row = greedy(*thinking, when).filter(pl.col("prompt_id") == name).row(0, named=True)
        text = re.sub(r"<[^>]*>", "", shown.replace("&lt;b&gt;&amp; co&lt;/b&gt;", "[markup]"))
        assert row["text"].replace("<b>& co</b>", "[markup]") in text
        assert f"{row['proved']} proved, {row['contradicted']} contradicted" in shown


def test_the_puzzle_was_wrong_before_and_right_after_where_there_is_one(
    thinking: tuple[Store, RunLayout], record: RunRecord
) -> None:
    pair = find_before_after(record, thinking[0])
    assert pair is not None and pair == find_before_after(record, thinking[0])
    gain = {}
    tables = [greedy(*thinking, when) for when in ("before", "after")]
    for first, second in zip(*(table.iter_rows(named=True) for table in tables), strict=True):
        gain[first["prompt_id"]] = (not first["exact"] and second["exact"], second["accuracy"] - first["accuracy"])
    assert gain[pair.prompt_id] == max(gain.values())


def test_a_run_that_goes_on_compares_its_newest_or_promoted_iteration(
    thinking: tuple[Store, RunLayout], record: RunRecord
) -> None:
    store, _ = thinking
    going = replace(record, evaluations={}, promoted=None)
    pair = find_before_after(going, store)
    assert pair is not None
    assert (pair.split, pair.before.title, pair.after.title) == ("val", "before GRPO", "iteration 2")
    assert record.promoted is not None
    promoted = find_before_after(replace(going, promoted=record.promoted.model_copy(update={"iteration": 1})), store)
    assert promoted is not None and promoted.after.title == "iteration 1"
    assert find_before_after(replace(going, iterations=going.iterations[:1]), store) is None


def test_a_run_without_statements_shows_none(made: tuple[Store, RunLayout]) -> None:
    record = read_run(made[0], "made")
    assert find_before_after(record, made[0]) is None
    files = report_files(RunView(record, made[0]))
    assert "statements.png" not in files
    assert b"before and after GRPO" not in files[PAGE] and b"<th>proved</th>" not in files[PAGE]


def test_words_of_a_model_are_never_markup() -> None:
    """Also inside of a statement: a puzzle from a file may name its suspects anything."""
    template = TEMPLATES.from_string(
        '{% from "parts.html" import completion %}{% for item in items %}{{ completion(item) }}{% endfor %}'
    )
    items = [
        {
            "title": "worst", "pieces": text_pieces(text, [Asserted(text[1:-1], "proved", 1)], 20_000),
            "answers": [], "statements": None, "conclusions": [text],
        }
        for text in HOSTILE[:8]
    ]  # fmt: skip
    shown = page(template, items=items)
    assert shown.count('<span class="said proved"') == 10, "two are so long that their middle is left out"
    tags = set(re.findall(r"</?(\w+)", shown))
    assert tags <= {"div", "h3", "pre", "span", "p", "table", "thead", "tr", "th", "tbody"}
    assert "&lt;script&gt;" in shown and "\x1b" not in shown


def test_curves_of_statements_are_in_every_view(
    thinking: tuple[Store, RunLayout], record: RunRecord, shown_page: str, capsys: pytest.CaptureFixture[str]
) -> None:
    store, layout = thinking
    figures = [iteration_figures(item) for item in record.iterations]
    facts = [item.facts("evaluate")["sampled"]["deductions"] for item in record.iterations]
    for kind in ("proved", "contradicted"):
        means = [item[kind] for item in facts]
        assert means[0] > 0
        assert [item.value(f"{kind}_statements") for item in figures] == means
        assert [row[kind] for row in iteration_rows(figures)] == [round(mean, 2) for mean in means]
        assert f"<th>{kind}</th>" in shown_page and f"<td>{means[0]:.1f}</td>" in shown_page
        assert [item[f"{kind}_statements"] for item in summary(record, store)["iterations"]] == means
        assert iteration_metrics(record.iterations[1])[f"eval/sampled/statements/{kind}"] == means[1]
    assert report_files(RunView(record, store))["statements.png"].startswith(b"\x89PNG")
    assert "proved and contradicted statements of a held-out answer" in section(shown_page, "Learning")

    print_iterations(Console(width=200), figures)
    wide = capsys.readouterr().out.splitlines()
    assert "greedy proved contradicted" in " ".join(wide[0].split()) or "proved contradicted" in " ".join(
        wide[0].split()
    )
    assert f" {facts[1]['proved']:.1f} " in wide[2]
    print_iterations(Console(width=WIDTH), figures)
    narrow = capsys.readouterr().out.splitlines()
    assert max(map(len, narrow)) <= WIDTH
    at = next(i for i, line in enumerate(narrow) if line.split() == ["iteration", "proved", "contradicted"])
    assert narrow[at + 1].split() == ["0", *(f"{facts[0][kind]:.1f}" for kind in ("proved", "contradicted"))]

    view = LiveView()
    view.run_opened(store, layout, Recipe.model_validate(record.recipe))
    for n in range(2):
        view.iteration_finished(read_iteration(store, layout, n))
    header, *rows = capsys.readouterr().err.splitlines()[-3:]
    assert "contradicted" in header and f" {facts[1]['contradicted']:.1f} " in rows[1]


def test_the_terminal_shows_five_lines_before_and_after_with_their_verdicts(
    thinking: tuple[Store, RunLayout], record: RunRecord, puzzle: Puzzle, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = find_before_after(record, thinking[0])
    assert pair is not None
    true, other, *_ = said_by_solver(puzzle)
    false = other.replace(" was ", " was not ", 1)
    texts = ("\n".join([*"abcde", true, "", false, "never shown"]), true)
    derivations = [read_derivation(text, "stop", puzzle, every_premise=False) for text in texts]
    assert derivations[0] and derivations[1]
    before, after = (replace(pair.before, derivation=item, answers=[]) for item in (derivations[0], derivations[1]))
    print_before_after(Terminal(width=200), replace(pair, before=before, after=after))
    head, title, *lines = capsys.readouterr().out.splitlines()
    assert "test puzzle" in head and title == "before GRPO: 0 of 0 answers right"
    assert lines[:5] == ["   | c", "   | d", "   | e", f" \u2713 | {true}", f" \u2717 | {false}"]
    assert lines[5].startswith("  3 of its 8 lines are not shown. First false step: step 2 is contradicted by clue")
    assert lines[6:] == [title, f" \u2713 | {true}", "  No step is false."]


def test_quiet_leaves_the_puzzle_out(thinking: tuple[Store, RunLayout], capsys: pytest.CaptureFixture[str]) -> None:
    for quiet in (False, True):
        show_run("thinking", thinking[0], Stored(), quiet=quiet)
        assert ("solved greedily by both models" in capsys.readouterr().out) is not quiet


def test_prefects_page_marks_verdicts_with_signs_and_words(
    thinking: tuple[Store, RunLayout], record: RunRecord
) -> None:
    pair = find_before_after(record, thinking[0])
    assert pair is not None
    shown = before_after_page(pair)
    blocks = [token for token in markdown_it.MarkdownIt("commonmark").parse(shown) if token.type == "fence"]
    before = blocks[0].content.splitlines()
    for line in pair.before.derivation.text.split("\n"):
        assert f"| {line}".rstrip() in [item.rstrip() for item in before]
    marks = [line.strip() for line in before if not line.startswith("|")]
    signs = {"proved": "\u2713", "restated": "=", "open": "?", "contradicted": "\u2717"}
    assert [mark.split(":")[0] for mark in marks] == [
        f"{signs[step.statement.verdict]} step {step.number}" for step in pair.before.derivation.steps
    ]
    assert all(step.statement.verdict in mark for step, mark in zip(pair.before.derivation.steps, marks, strict=True))
    assert pair.before.derivation.conclusions[0] in shown


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_prefects_page_shows_any_completion_in_one_block(
    text: str, thinking: tuple[Store, RunLayout], record: RunRecord
) -> None:
    pair = find_before_after(record, thinking[0])
    assert pair is not None
    said = replace(pair.after, derivation=Derivation(text, "stop", ()), answers=[])
    tokens = markdown_it.MarkdownIt("commonmark").parse(before_after_page(replace(pair, before=said, after=said)))
    top = [token.type for token in tokens if token.level == 0 and token.nesting >= 0]
    assert top == [
        "heading_open", "paragraph_open", "heading_open", "fence", "paragraph_open", "heading_open", "fence",
        "paragraph_open", "heading_open", "fence",
    ]  # fmt: skip


def test_prefect_has_the_page_where_completions_have_steps(
    thinking: tuple[Store, RunLayout],
    record: RunRecord,
    made: tuple[Store, RunLayout],
    prefect_pages: dict[str, dict[str, Any]],
) -> None:
    show_in_prefect(RunView(record, thinking[0]))
    page = prefect_pages["thinking-derivations"]
    assert page["description"] == "One puzzle before and after GRPO, with a verdict on each statement"
    assert "thinking-plots" in prefect_pages
    show_in_prefect(RunView(read_run(made[0], "made"), made[0]))
    assert "made-plots" in prefect_pages and "made-derivations" not in prefect_pages
