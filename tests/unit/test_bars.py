"""Benchmarks and fault campaigns: what each prints of its bars."""

import ast
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.bars import Bar, kept, tell

TESTS = Path(__file__).parents[1]
COMMANDS = sorted(
    path
    for folder in ("benchmarks", "faults")
    for path in (TESTS / folder).glob("*.py")
    if "(__doc__" in path.read_text()  # takes options; the other modules are called or started by these
)
PROMISES = {"work repeated": "made again|sampled twice", "work lost": "lost"}


def test_the_commands_are_those_that_are_meant() -> None:
    others = {path.stem for folder in ("benchmarks", "faults") for path in (TESTS / folder).glob("*.py")}
    others -= {path.stem for path in COMMANDS}
    assert others == {
        "__init__", "sampling_raw", "sampling_sides", "trl_step"
    }  # fmt: skip


@pytest.mark.parametrize("path", COMMANDS, ids=lambda path: f"{path.parent.name}.{path.stem}")
def test_each_command_prints_its_figures_and_bars_by_the_shared_helper(path: Path) -> None:
    calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    names = [function.id for function in calls if isinstance(function, ast.Name)]
    assert names.count("tell") == 1


@pytest.mark.long
def test_the_help_of_each_command_names_json() -> None:
    code = (
        "import contextlib, importlib, io, sys\n"
        "for name in sys.argv[1:]:\n"
        "    module, sys.argv = importlib.import_module(name), [name, '--help']\n"
        "    with contextlib.redirect_stdout(io.StringIO()) as text, contextlib.suppress(SystemExit):\n"
        "        module.main(*([['--help']] if name.endswith('.inputs') else []))\n"
        "    print(name, ' --json ' in text.getvalue())\n"
    )
    modules = [f"tests.{path.parent.name}.{path.stem}" for path in COMMANDS]
    done = subprocess.run(
        [sys.executable, "-c", code, *modules], cwd=TESTS.parent, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [f"{name} True" for name in modules]


def test_a_document_has_its_bars_as_names_values_bars_and_whether_they_are_met(
    capsys: pytest.CaptureFixture[str],
) -> None:
    bars = [
        Bar.at_most("seconds", 2.5, 3),
        Bar.at_least("share", 0.25, 0.5),
        Bar("coverage", 0.9, "0.93 to 0.96", False),
    ]
    figures = {
        "took": 2.0,
        "seeds": {7: {"ours": {"gain": 1.23456}, "theirs": {"gain": None}}},
        "rows": [{"a": [1, 2]}],
    }
    tell(figures, bars, as_json=True)
    assert json.loads(capsys.readouterr().out) == {
        "took": 2.0,
        "seeds": {"7": {"ours": {"gain": 1.23456}, "theirs": {"gain": None}}},
        "rows": [{"a": [1, 2]}],
        "bars": [
            {"name": "seconds", "value": 2.5, "bar": 3, "met": True},
            {"name": "share", "value": 0.25, "bar": 0.5, "met": False},
            {"name": "coverage", "value": 0.9, "bar": "0.93 to 0.96", "met": False},
        ],
    }
    tell(figures, bars, as_json=False)
    shown = [" ".join(line.replace("─", "").split()) for line in capsys.readouterr().out.splitlines()]
    shown = [line for line in shown if line]
    assert shown[:-3] == [
        "took", "2", "seeds", "gain", "7 ours 1.235", "7 theirs", "rows", "a", "1 1 2",
    ]  # fmt: skip
    assert shown[-3:] == [
        "met seconds: 2.5 (bar 3)",
        "MISSED share: 0.25 (bar 0.5)",
        "MISSED coverage: 0.9 (bar 0.93 to 0.96)",
    ]


def test_a_broken_promise_is_a_bar_that_is_missed_and_ends_the_campaign(capsys: pytest.CaptureFixture[str]) -> None:
    def campaign() -> Mapping[str, Any]:
        raise AssertionError("runs/r/batch was made again")

    figures, bars = kept(PROMISES, campaign)
    assert figures == {"broken_by": "runs/r/batch was made again"}
    assert [(bar.name, bar.value, bar.met) for bar in bars] == [("work repeated", 1, False)]
    tell(figures, bars, as_json=False)
    told = capsys.readouterr().out
    assert "runs/r/batch was made again" in told and told.endswith("MISSED work repeated: 1 (bar 0)\n")


def test_a_campaign_that_kept_its_promises_has_its_figures() -> None:
    figures, bars = kept(PROMISES, lambda: {"kills": 7})
    assert figures == {"broken_by": None, "kills": 7}
    assert [(bar.value, bar.met) for bar in bars] == [(0, True), (0, True)]


@pytest.mark.parametrize("text", ["no port is free", "it was over before the server was killed: lost"])
def test_an_error_that_tells_of_no_promise_is_no_measurement(text: str) -> None:
    def campaign() -> Mapping[str, Any]:
        raise AssertionError(text)

    with pytest.raises(AssertionError, match=text):
        kept(PROMISES, campaign)
