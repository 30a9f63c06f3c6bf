"""The texts and tables of a run's pages in Prefect's interface, which `flows.report.prefect_pages.ui` publishes."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from artifacts.store.store import Store
from flows.lookup.history import RunRecord
from flows.lookup.preparation import preparation_lines
from flows.lookup.stages import PARTS
from flows.report.before_after import BeforeAfter, CheckedCompletion
from flows.report.derivation import SYMBOLS, Derivation, statement_counts, statements_by_verdict, step_line
from flows.report.example_group import Completion, ExampleGroup, ReadAnswer
from flows.report.figures import IterationFigures, prefect_columns
from flows.report.pictures.batch_picture import BatchView, describe_batch
from flows.report.summary import PHASE_HEAD, before_after_names, before_after_rows, phase_rows, solve_command
from flows.report.text.markdown import code, fenced, picture, table
from stages.environments.puzzle import Asserted

_ANSWER_CHARACTERS = 60
_STATEMENTS_SHOWN = 40


def headline(iterations: Sequence[IterationFigures]) -> str:
    """Returns the main figures of the newest iteration in a line; the titles of versions form a learning curve."""
    newest = iterations[-1]
    parts = [f"iteration {newest.number}"]
    if newest.sampled:
        parts.append(f"held-out sampled {newest.sampled.accuracy.mean:.1%}")
    if newest.greedy:
        parts.append(f"greedy {newest.greedy.accuracy.mean:.1%}")
    if (reward := newest.value("reward")) is not None:
        parts.append(f"reward {reward:.3f}")
    return ", ".join(parts)


def summary_page(record: RunRecord, store: Store) -> str:
    """Returns the page of results: before and after training, addresses, and a command that runs the promoted model."""
    done = max((item.number for item in record.iterations), default=0)
    lines = [f"## {record.layout.run}", "", f"{done} of {record.planned_iterations} iterations.", ""]
    if record.evaluations:
        lines += [*table(["", *before_after_names(record)], before_after_rows(record)), ""]
    for name, line in preparation_lines(record, code):
        lines += [f"{name}: {line}.", ""]
    if phases := phase_rows(record):
        lines += [*table(PHASE_HEAD, [[code(name), *rest] for name, *rest in phases]), ""]
    if record.promoted:
        score = record.promoted.score
        lines += [f"Promoted: iteration {record.promoted.iteration}, validation {score:.1%}.", ""]
    lines += [f"Artifacts: {code(f'{store.url}/{record.layout.root}')}", ""]
    lines += [f"Report: {code(f'{store.url}/{record.layout.page}')}", ""]
    return "\n".join([*lines, fenced(solve_command(record, store)), ""])


def iteration_rows(iterations: Sequence[IterationFigures]) -> list[dict[str, Any]]:
    """Returns a row for each iteration, all with the same columns; unknown figures are None, as JSON has no NaN."""
    columns = prefect_columns(iterations)
    return [
        {
            "iteration": item.number,
            **{metric.column: _rounded(item.value(metric.key), metric.prefect or 0) for metric in columns},
            "promoted": "yes" if item.promoted else "",
            "seconds": round(item.total_s, 1),
        }
        for item in iterations
    ]


def seconds_rows(iterations: Sequence[IterationFigures]) -> list[dict[str, Any]]:
    """Returns a row for each iteration: the seconds of each stage and of all stages, and the sampling speed.

    A cell is None if the stage has not published. A stage has a column only if an iteration has it, and so has the
    sampling speed.
    """
    stages = [stage for stage in PARTS if any(stage in item.seconds for item in iterations)]
    speeds = [_rounded(item.value("sampled_tokens_per_s"), 1) for item in iterations]
    has_speed = any(speed is not None for speed in speeds)
    return [
        {
            "iteration": item.number,
            **{stage: _rounded(item.seconds.get(stage), 2) for stage in stages},
            "all": round(item.total_s, 2),
            **({"tokens/s sampled": speed} if has_speed else {}),
        }
        for item, speed in zip(iterations, speeds, strict=True)
    ]


def completions_page(example: ExampleGroup) -> str:
    """Returns the page of an example group: completions, the grader's reading of each, and their statements."""
    lines = [
        f"## One puzzle of iteration {example.iteration}",
        "",
        f"Puzzle {code(example.prompt_id)}: three of its {example.size} completions, as the model wrote them.",
        "",
    ]
    for item in example.completions:
        lines += [f"### {completion_title(item)}", "", fenced(item.text), ""]
        if item.answers:
            lines += ["What the grader read:", "", fenced(_answers(item.answers)), ""]
        if item.statements is not None and example.makes_statements:
            lines += [statement_counts(item.statements), ""]
            if item.statements:
                lines += [fenced(statement_lines(item.statements)), ""]
    return "\n".join([*lines, "### The puzzle", "", fenced(example.prompt, 12_000), ""])


def before_after_page(shown: BeforeAfter) -> str:
    """Returns the page of one puzzle before and after GRPO: each line of a completion, then its steps with verdicts.

    Prefect's interface shows no colours, so verdicts are signs and words.
    """
    lines = [
        "## One puzzle before and after GRPO",
        "",
        f"Puzzle {code(shown.prompt_id)} of the {shown.split} split, the most likely completion of each model. The "
        "lines of a completion begin with a bar; its statements about the puzzle are below them, with verdicts.",
        "",
    ]
    for item in (shown.before, shown.after):
        lines += [f"### {checked_title(item)}", "", fenced(_derivation_text(item.derivation)), ""]
        lines += [*item.derivation.conclusions, statement_counts(item.derivation.statements), ""]
        if item.answers:
            lines += ["What the grader read:", "", fenced(_answers(item.answers)), ""]
    return "\n".join([*lines, "### The puzzle", "", fenced(shown.prompt, 12_000), ""])


def _derivation_text(derivation: Derivation) -> str:
    lines: list[str] = []
    for line in derivation.lines:
        lines.append("| " + "".join(piece.text for piece in line.pieces))
        lines += [f"    {SYMBOLS[step.statement.verdict]} {step_line(step, line.steps)}" for step in line.steps]
    return "\n".join(lines)


def checked_title(item: CheckedCompletion) -> str:
    """Returns a heading such as `before GRPO: 3 of 7 right, ended by length`."""
    right = sum(answer.correct for answer in item.answers)
    end = f", ended by {item.derivation.finish_reason}" if item.derivation.is_unfinished else ""
    return f"{item.title}: {right} of {len(item.answers)} right{end}"


def completion_title(item: Completion) -> str:
    """Returns a heading such as `best: reward 0.750, advantage +1.20, ended by length`."""
    advantage = "not trained on" if item.advantage is None else f"advantage {item.advantage:+.2f}"
    end = "" if item.finish_reason == "stop" else f", ended by {item.finish_reason}"
    return f"{item.title}: reward {item.reward:.3f}, {advantage}{end}"


def statement_lines(statements: Sequence[Asserted]) -> str:
    """Returns a line for each different statement with its verdict; proved and contradicted statements come first."""
    different = statements_by_verdict(statements)
    shown = different[:_STATEMENTS_SHOWN]
    lines = [f"{statement.verdict:<13} {' '.join(statement.text.split())}" for statement in shown]
    hidden = len(different) - len(lines)
    return "\n".join([*lines, f"... and {hidden} more"] if hidden > 0 else lines)


def store_page(record: RunRecord, store: Store, link: str | None = None) -> str:
    """Returns the page of the addresses of a run and its parts, which are links if the profile has a `store_link`."""
    layout = record.layout
    lines = [f"## Where {layout.run} is stored", ""]
    lines += table(["", "address"], [[name, _address(store, key, link)] for name, key in store_keys(record).items()])
    folder = f"{store.url}/{layout.root}/"
    if store.url.startswith("s3://"):
        lines += ["", fenced(f"aws s3 ls --recursive {shlex.quote(folder)}")]
    elif store.url.startswith("file://"):
        lines += ["", fenced(f"ls -R {shlex.quote(folder.removeprefix('file://'))}")]
    return "\n".join([*lines, ""])


def store_keys(record: RunRecord) -> dict[str, str]:
    """Returns the store keys of the run's own objects and of its newest iteration's artifacts, by name."""
    layout = record.layout
    keys = {"recipe": layout.recipe, "report": layout.page}
    if record.promoted:
        keys["promoted"] = layout.promoted
        keys["promoted checkpoint"] = record.promoted.checkpoint.key
    if record.pass_rates:
        keys["pass_rates"] = layout.pass_rates
    if record.first_critic:
        keys["first critic"] = layout.first_critic("critic")
    if record.iterations:
        newest = record.iterations[-1]
        parts = [PARTS[stage] for stage in newest.manifests]
        if {"value", "pack"} <= newest.manifests.keys():  # `value` has then published all its artifacts
            parts.insert(parts.index("values") + 1, "critic")
        keys |= {f"iteration {newest.number}: {part}": layout.iteration(newest.number, part) for part in parts}
    return keys | {f"test {when}": layout.evaluation(when) for when in record.evaluations}


def pictures_note(record: RunRecord, store: Store, link: str | None = None) -> str:
    """Returns a note that names the report, for readers whose Prefect interface removes pictures from text."""
    layout = record.layout
    report = _address(store, layout.page, link)
    return f"No pictures here? They are in the report: {report}, which `deerstalker report {layout.run}` writes again."


def plots_page(drawn: Mapping[str, bytes], note: str) -> str:
    """Returns the page of plots, one below the other, and a note."""
    return "\n\n".join([*(picture(png, words) for words, png in drawn.items()), note]) + "\n"


def batch_page(iteration: int, batch: BatchView, drawn: bytes | None, note: str) -> str:
    """Returns the page of a packed batch: a description, its picture as PNG if it has rows, and a note."""
    lines = [f"## The packed batch of iteration {iteration}", "", describe_batch(batch), ""]
    if drawn:
        lines += [picture(drawn, "one bar for each row: prompts, completions, padding"), "", note, ""]
    return "\n".join(lines)


def _answers(answers: Sequence[ReadAnswer]) -> str:
    lines: list[str] = []
    for answer in answers:
        answer_text = " ".join(answer.said.split())[:_ANSWER_CHARACTERS] or f"({answer.note})"
        verdict = "right" if answer.correct else f"wrong, {answer.right}" + (f" ({answer.note})" if answer.note else "")
        mark = "." if len(answer.question) == 1 else ":"
        lines.append(f"{answer.question}{mark} {answer_text:<30} {verdict}")
    return "\n".join(lines)


def _address(store: Store, key: str, link: str | None) -> str:
    shown = code(f"{store.url}/{key}")
    return f"[{shown}]({link.replace('{key}', quote(key))})" if link else shown


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
