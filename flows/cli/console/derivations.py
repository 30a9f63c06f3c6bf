"""Prints a completion as a derivation: each line, then its statements with verdicts and the clues that decide them."""

from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.text import Text

from flows.report.before_after import BeforeAfter
from flows.report.derivation import SYMBOLS, Derivation, DerivationLine, step_line
from flows.report.text.visible import visible
from stages.environments.puzzle import StatementVerdict

_STYLES: dict[StatementVerdict, str] = {
    "proved": "green",
    "restated": "cyan",
    "open": "yellow",
    "contradicted": "bold red",
}
_LINES = 5
"""Lines of each completion that `print_before_after` prints."""


def print_before_after(console: Console, pair: BeforeAfter) -> None:
    """Prints how two models solve one puzzle: five lines of each, the verdicts on their statements, and the result.

    The lines are the first ones, or those up to the first false statement. Signs of the verdicts precede the bar.
    """
    console.print(f"One {pair.split} puzzle, solved greedily by both models:")
    for item in (pair.before, pair.after):
        right = sum(answer.correct for answer in item.answers)
        console.print(f"{item.title}: {right} of {len(item.answers)} answers right", style="bold", soft_wrap=True)
        lines = [line for line in item.derivation.lines if line.pieces]
        shown = _excerpt(lines)
        for line in shown:
            signs = "".join(SYMBOLS[step.statement.verdict] for step in line.steps)
            console.print(_written(f"{signs:>2} | ", line), soft_wrap=True)
        left_out = f"{len(lines) - len(shown)} of its {len(lines)} lines are not shown. " if shown != lines else ""
        console.print(f"  {left_out}{' '.join(item.derivation.conclusions)}", style="dim", soft_wrap=True)


def _excerpt(lines: list[DerivationLine]) -> list[DerivationLine]:
    false = (n for n, line in enumerate(lines) if any(step.statement.verdict == "contradicted" for step in line.steps))
    end = max(_LINES, next(false, 0) + 1)
    return lines[end - _LINES : end]


def print_lines(console: Console, derivation: Derivation) -> None:
    """Prints the lines of a completion, each after a bar, and below each line its statements with verdicts.

    The colour of a statement is that of its verdict, which is also printed as a word. The bar marks text of the model.
    """
    for line in derivation.lines:
        console.print(_written("| ", line), soft_wrap=True)
        for step in line.steps:
            console.print(
                Text(f"    {visible(step_line(step, line.steps))}", _STYLES[step.statement.verdict]), soft_wrap=True
            )


def _written(margin: str, line: DerivationLine) -> Text:
    pieces = ((visible(piece.text), _STYLES[piece.verdict] if piece.verdict else "") for piece in line.pieces)
    return Text.assemble(margin, *pieces)


def derivation_json(derivation: Derivation) -> dict[str, Any]:
    """Returns a derivation without its text as a JSON object (`explanation` of `solve` in `docs/reference/json.md`)."""
    first = derivation.first_false
    return {
        "steps": [
            {"step": step.number, **asdict(step.statement), "premises": step.premises} for step in derivation.steps
        ],
        "counts": asdict(derivation.counts),
        "first_false_step": first.number if first else None,
        "unfinished": derivation.is_unfinished,
    }
