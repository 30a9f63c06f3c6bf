"""Words of a command line that are refused before a command sees them; new options are tried as they come."""

import re
import typing
from inspect import signature

import pytest

from flows.cli.app import run_command
from tests.support.bad_inputs.command_lines import commands

COMMANDS = dict(commands())
OPTIONS = [
    (path, argument.name, kind)
    for path, command in COMMANDS.items()
    for argument in command.assemble_argument_collection()
    for kind in (int, float)
    if argument.show and argument.name.startswith("--")
    if kind in (argument.hint, *typing.get_args(argument.hint))
]


def needed(path: tuple[str, ...], option: str) -> list[str]:
    """A word for each argument that has no default, `option` aside."""
    function = COMMANDS[path].default_command
    assert function is not None
    words: list[str] = []
    for one in signature(function).parameters.values():
        if one.default is one.empty and f"--{one.name}" != option:
            words.append("word" if one.kind is one.POSITIONAL_ONLY else f"--{one.name}=word")
    return words


def test_all_commands_are_tried() -> None:
    assert {("train",), ("puzzles", "make"), ("recipes", "show"), ("prune",)} <= set(COMMANDS)
    assert {"--depth", "--count", "--temperature", "--zombie-after", "--port", "--samples"} <= {
        name for _, name, _ in OPTIONS
    }
    assert len(OPTIONS) > 25


@pytest.mark.usefixtures("no_server")
@pytest.mark.parametrize(("path", "option", "kind"), OPTIONS, ids=str)
def test_an_option_that_is_a_number_takes_only_numbers(
    path: tuple[str, ...], option: str, kind: type, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = ["nan", "inf", "-inf", "1e400", "true", "one", "", "1,5", "9" * 5000] if kind is float else []
    wrong = wrong or ["1.5", "1.0", "1e3", "0x10", "nan", "true", "one", "", "9" * 5000, "1_0", "٣", "1" * 19]
    for value in wrong:
        assert run_command([*path, *needed(path, option), f"{option}={value}"]) == 2, value
        error = capsys.readouterr().err
        assert option in error and error.startswith("error: ") and len(error.splitlines()) == 1
        assert "internal" not in error and len(error) < 500


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_a_command_is_written_in_small_letters(path: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    for word in ("_".join(path[-1:]).upper(), path[-1].title()) if path else ():
        assert run_command([*path[:-1], word]) == 2
        assert f"command '{word}': unknown; expected '{path[-1]}'" in capsys.readouterr().err


@pytest.mark.parametrize("word", ["\udcff", "a\ud800", "a\0b"])
@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_a_word_is_text(path: tuple[str, ...], word: str, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([*path, word], [*path, "--json", f"--store={word}"]):
        assert run_command(arguments) == 2
        assert re.match(rf"error: argument {len(arguments)}: .* expected UTF-8 text\n$", capsys.readouterr().err)
