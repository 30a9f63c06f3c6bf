"""`show --watch` and `show --samples`: what a person sees of a run that goes on, from its store."""

import itertools
import os
import pty
import shutil
import signal
from dataclasses import replace
from io import StringIO
from pathlib import Path

import polars as pl
import pytest
from rich.console import Console

from artifacts.address import ArtifactAddress
from artifacts.errors import TransientError
from artifacts.identity import Identity
from artifacts.layout import RunLayout
from artifacts.reading import Artifact
from artifacts.refs import Grades
from artifacts.schemas import GRADES, GRADES_FILE
from artifacts.store.store import Store
from flows.cli.app import run_command
from flows.cli.console.output import terminal
from flows.lookup.history import read_run
from flows.report.example_group import find_samples
from flows.report.terminal import watch
from flows.report.terminal.samples import print_samples
from flows.report.terminal.watch import RunScreen, sparkline
from tests.support.made_run import copied_store
from tests.support.processes import DEERSTALKER


def drawn(screen: RunScreen, width: int = 120) -> list[str]:
    console = Console(file=StringIO(), width=width, height=50)
    console.print(screen)
    assert isinstance(console.file, StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


@pytest.fixture
def going_on(made: tuple[Store, RunLayout], tmp_path: Path) -> Path:
    """A copy of the run `made` in the middle of iteration 4: rollouts are there, grades are not."""
    folder = tmp_path / "store"
    copied_store(made[0], folder)
    shutil.rmtree(folder / "runs/made/evaluations/after")
    for part in ("grades", "batch", "checkpoint", "report", "decision"):
        (folder / "runs/made/iterations/0004" / part).rename(tmp_path / part)
    return folder


def test_a_curve_goes_from_the_lowest_to_the_highest_value() -> None:
    assert sparkline([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], 8) == "▁▂▃▄▅▆▇█"
    assert sparkline([None, 1.0, None, 3.0], 8) == " ▁ █"
    assert sparkline([0.0, 0.0, 7.0, 7.0], 2) == "▁█", "the mean of several values"
    assert sparkline([5.0, 5.0], 8) == "▁▁"
    assert sparkline([None, None], 8) == "  "


def test_the_screen_follows_the_store(going_on: Path, tmp_path: Path) -> None:
    screen = RunScreen(Store.open(str(going_on)), "made", samples=2)
    screen.look()
    lines = drawn(screen)
    assert lines[0].startswith("made: A run for tests")
    assert lines[1].startswith("iteration 4 of 4: grade; the newest artifact is ")
    assert [line.split()[0].rstrip("*") for line in lines[4:9]] == ["0", "1", "2", "3", "4"]
    curves = [line.split() for line in lines[10:]]
    reward = next(words for words in curves if words[:1] == ["reward"])
    assert len(reward[1]) == 3, "one character for each iteration with a reward"
    assert sum(line.startswith("iteration 3, ") for line in lines) == 2, "samples of the newest graded iteration"

    for part in ("grades", "batch", "checkpoint", "report", "decision"):
        (tmp_path / part).rename(going_on / "runs/made/iterations/0004" / part)
    screen.look()
    lines = drawn(screen)
    assert lines[1].startswith("iteration 5 of 5: sample, 0 groups are stored; ")
    assert sum(line.startswith("iteration 4, ") for line in lines) == 2


def test_an_advantage_is_shown_as_a_teacher_has_changed_it(going_on: Path) -> None:
    store = Store.open(str(going_on))
    screen = RunScreen(store, "made", samples=1)
    screen.look()
    grades = Artifact.at(store, RunLayout("made").iteration(3, "grades"), Grades)
    address = ArtifactAddress(store, RunLayout("made").iteration(3, "taught_grades"), Grades)
    attempt = address.attempt(Identity.of("teach", 1, {}))
    table = grades.read_table(GRADES_FILE, GRADES).with_columns(advantage=pl.lit(-7.5))
    attempt.write_table(GRADES_FILE, table, GRADES)
    attempt.publish(grades=grades.ref)
    assert not any("advantage -7.500" in line for line in drawn(screen))
    screen.look()
    assert any("advantage -7.500" in line for line in drawn(screen))


def test_a_screen_is_as_wide_as_the_terminal(made: tuple[Store, RunLayout]) -> None:
    screen = RunScreen(made[0], "made", samples=3)
    screen.look()
    lines = drawn(screen, width=60)
    assert max(map(len, lines)) <= 60
    assert lines[1].startswith("finished: ")


def test_a_store_that_does_not_answer_ends_no_watch(
    made: tuple[Store, RunLayout], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = itertools.count(1)
    look = RunScreen.look

    def unsteady(screen: RunScreen) -> float:
        match next(looks):
            case 2:
                raise TransientError("the store", "no answer")
            case 4:
                raise KeyboardInterrupt
            case _:
                return look(screen)

    monkeypatch.setattr(RunScreen, "look", unsteady)
    monkeypatch.setattr(watch, "_LOOK_EVERY_S", 0.0)
    console = Console(file=StringIO(), force_terminal=True, width=120, height=40)
    with pytest.raises(KeyboardInterrupt):
        watch.watch(made[0], "made", 0, console)
    assert next(looks) == 5
    screen = RunScreen(made[0], "made")
    look(screen)
    screen.trouble = "no answer"
    assert drawn(screen)[1].startswith("not up to date: no answer; finished: ")


def test_a_damaged_file_is_counted(going_on: Path) -> None:
    (going_on / "runs/made/promoted.json").write_text("half")
    screen = RunScreen(Store.open(str(going_on)), "made")
    screen.look()
    assert drawn(screen)[1].endswith("; 1 damaged files: see `deerstalker verify`")


def test_samples_range_from_the_best_to_the_worst(made: tuple[Store, RunLayout]) -> None:
    store, layout = made
    record = read_run(store, "made").iterations[2]
    every, three, one = (find_samples(record, layout, store, count) for count in (100, 3, 1))
    rewards = [sample.completion.reward for sample in every]
    assert len(every) == 24
    assert rewards == sorted(rewards, reverse=True)
    assert [sample.completion for sample in three] == [every[place].completion for place in (0, 11, 23)]
    assert one[0].completion == every[11].completion


def test_samples_are_printed_with_their_grades(
    made: tuple[Store, RunLayout], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    store, layout = made
    assert run_command(["show", "made", "--samples", "2", "--store", store.url]) == 0
    shown = capsys.readouterr().out
    for sample in find_samples(read_run(store, "made").iterations[-1], layout, store, 2):
        item = sample.completion
        assert f"{item.title}: reward {item.reward:.3f}, advantage {item.advantage:+.3f}, {item.finish_reason}" in shown
        assert "\n".join(f"  {line}" for line in item.text.splitlines()) in shown


def test_a_run_without_grades_has_no_samples(made: tuple[Store, RunLayout], capsys: pytest.CaptureFixture[str]) -> None:
    record = read_run(made[0], "made")
    print_samples(replace(record, iterations=record.iterations[:1]), made[0], 1, terminal())
    assert capsys.readouterr().out == "no iteration has completions and grades yet\n\n"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--watch"], "--watch: stdout is no terminal; expected a terminal; leave --watch out"),
        (["--samples", "1", "--json"], "`deerstalker rollouts RUN --out FILE.jsonl` writes completions"),
        (["--samples", "-1"], "--samples"),
    ],
)
def test_what_cannot_be_shown_is_one_line(
    made: tuple[Store, RunLayout], capsys: pytest.CaptureFixture[str], options: list[str], words: str
) -> None:
    assert run_command(["show", "made", *options, "--store", made[0].url]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert words in captured.err


@pytest.mark.long
def test_a_person_watches_until_ctrl_c(made: tuple[Store, RunLayout]) -> None:
    process, terminal = pty.fork()
    if process == 0:
        os.environ["COLUMNS"] = "100"
        os.execv(DEERSTALKER, [DEERSTALKER, "show", "made", "--watch", "--store", made[0].url])
    seen = b""
    while b"finished: " not in seen:
        seen += os.read(terminal, 4096)
    os.kill(process, signal.SIGINT)
    while b"error: interrupted" not in seen:
        seen += os.read(terminal, 4096)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 130
    assert "█" in seen.decode(), "curves"
    assert b"\x1b[?25h" in seen, "the cursor is shown again"
