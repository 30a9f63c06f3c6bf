"""Prints a completion as a derivation: each line, then its statements with verdicts and the clues that decide them."""

from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.text import Text

from flows.report.derivation import Derivation, step_line
from flows.report.text.visible import visible
from stages.environments.puzzle import StatementVerdict

_STYLES: dict[StatementVerdict, str] = {
    "proved": "green",
    "restated": "cyan",
    "open": "yellow",
    "contradicted": "bold red",
}


def print_lines(console: Console, derivation: Derivation) -> None:
    """Prints the lines of a completion, each after a bar, and below each line its statements with verdicts.

    The colour of a statement is that of its verdict, which is also printed as a word. The bar marks text of the model.
    """
    for line in derivation.lines:
        text = Text("| ")
        for piece in line.pieces:
            text.append(visible(piece.text), _STYLES[piece.verdict] if piece.verdict else "")
        console.print(text, soft_wrap=True)
        for step in line.steps:
            console.print(
                Text(f"    {visible(step_line(step, line.steps))}", _STYLES[step.statement.verdict]), soft_wrap=True
            )


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
