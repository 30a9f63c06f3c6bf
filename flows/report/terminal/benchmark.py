"""The tables of a benchmark for the terminal."""

from collections.abc import Sequence

from rich.table import Table

from flows.report.metrics import interval_text
from stages.answering.estimate import Estimate
from stages.answering.measured import BenchmarkedModel


def benchmark_table(models: Sequence[BenchmarkedModel], puzzles: str) -> Table:
    """Returns a row for each model: accuracy by each grader with 95% intervals, tokens, cost and outcomes."""
    counts = sorted({(model.puzzles, model.samples) for model in models})
    sizes = ", ".join(f"{count} x {samples}" for count, samples in counts)
    table = Table(title=f"{puzzles}, {sizes} answers, means with 95% intervals", title_justify="left")
    table.add_column("model")
    graders = list(dict.fromkeys(grader for model in models for grader in model.gradings))
    for grader in graders:
        table.add_column(f"letters, {grader}", justify="right")
    for name in ("all right", "prompt", "completion", "$ an answer"):
        table.add_column(name, justify="right")
    table.add_column("outcomes")
    for model in models:
        letters = [interval_text(item.letters) if (item := model.gradings.get(name)) else "" for name in graders]
        tokens = [_number(count, ",.0f") for count in (model.prompt_tokens, model.completion_tokens)]
        outcomes = ", ".join(f"{count} {outcome}" for outcome, count in model.outcomes.items())
        cost = _number(model.cost_per_answer, ".6f")
        table.add_row(model.name, *letters, interval_text(model.all_right), *tokens, cost, outcomes)
    return table


def estimate_table(estimates: Sequence[Estimate]) -> Table:
    """Returns a row for each model: the answers to buy, their expected cost and its bound."""
    table = Table(title="missing answers, and their cost in dollars", title_justify="left")
    for name, justify in (("model", "left"), ("to buy", "right"), ("expected", "right"), ("at most", "right")):
        table.add_column(name, justify="right" if justify == "right" else "left")
    table.add_column("expected by")
    for item in estimates:
        buying = f"{item.missing} of {item.answers}"
        table.add_row(item.name, buying, _number(item.expected, ".4f"), _number(item.most, ".4f"), item.by)
    if estimates and all(item.expected is not None or not item.missing for item in estimates):
        table.add_row("all", "", f"{sum(item.expected or 0.0 for item in estimates):.4f}", "", "")
    return table


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
