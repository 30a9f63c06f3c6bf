"""The texts and tables that a run leaves in Prefect's interface; `flows.ui` hands them over."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from artifacts.store import Store
from flows import batch_picture
from flows.batch_picture import BatchView
from flows.figures import IterationFigures, prefect_columns
from flows.history import STAGES, RunRecord
from flows.markdown import code, fenced, picture, table
from flows.specimen import Completion, Specimen
from flows.summary import before_after_rows, solve_command

_BATCH_DPI = 80
_ANSWER_CHARACTERS = 60
_STATEMENTS_SHOWN = 40


def headline(iterations: Sequence[IterationFigures]) -> str:
    """The newest iteration in a line, so that the timeline of a key reads as the learning curve."""
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
    """Before and after, where the artifacts lie, and how to run the promoted model."""
    done = sum(1 for item in record.iterations if item.number)
    lines = [f"## {record.layout.run}", "", f"{done} of {record.recipe['iterations']} iterations.", ""]
    if record.evaluations:
        names = ["before GRPO" if when == "before" else "promoted" for when in record.evaluations]
        lines += [*table(["", *names], before_after_rows(record)), ""]
    if record.promoted:
        score = record.promoted["score"]
        lines += [f"Promoted: iteration {record.promoted['iteration']}, validation {score:.1%}.", ""]
    lines += [f"Artifacts: {code(f'{store.url}/{record.layout.root}')}", ""]
    lines += [f"Report: {code(f'{store.url}/{record.layout.summary}/report.html')}", ""]
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
    """Seconds of each stage when it was executed, one row an iteration; a stage that has not published is None."""
    return [
        {
            "iteration": item.number,
            **{stage: _rounded(item.seconds.get(stage), 2) for stage in STAGES},
            "all": round(item.total_s, 2),
            "tokens/s sampled": _rounded(item.value("sampled_tokens_per_s"), 1),
        }
        for item in iterations
    ]


def completions_page(specimen: Specimen) -> str:
    """Best, median and worst completion of one group, each with what was read of it and what it proves."""
    lines = [
        f"## One puzzle of iteration {specimen.iteration}",
        "",
        f"Puzzle {code(specimen.puzzle_id)}: three of its {specimen.size} completions, as the model wrote them.",
        "",
    ]
    for item in specimen.completions:
        lines += [f"### {completion_title(item)}", "", fenced(item.text), ""]
        if item.answers:
            lines += ["What the grader read:", "", fenced(_answers(item)), ""]
        if item.statements is not None:
            lines += [statement_counts(item), ""]
            if item.statements:
                lines += [fenced(statement_lines(item)), ""]
    return "\n".join([*lines, "### The puzzle", "", fenced(specimen.prompt, 12_000), ""])


def completion_title(item: Completion) -> str:
    """`best: reward 0.750, advantage +1.20, ended by length`."""
    advantage = "not trained on" if item.advantage is None else f"advantage {item.advantage:+.2f}"
    end = "" if item.finish_reason == "stop" else f", ended by {item.finish_reason}"
    return f"{item.title}: reward {item.reward:.3f}, {advantage}{end}"


def statement_counts(item: Completion) -> str:
    """How many statements the clues prove, contradict, state and leave open."""
    found = item.statements or []
    counts = {verdict: sum(said.verdict == verdict for said in found) for verdict in _VERDICTS}
    return "Statements about the puzzle: " + ", ".join(f"{count} {verdict}" for verdict, count in counts.items()) + "."


def statement_lines(item: Completion) -> str:
    """A statement a line, its verdict first; proved and contradicted ones before the others."""
    found = sorted(item.statements or [], key=lambda said: _VERDICTS.index(said.verdict))
    lines = [f"{said.verdict:<13} {' '.join(said.text.split())}" for said in found[:_STATEMENTS_SHOWN]]
    hidden = len(found) - len(lines)
    return "\n".join([*lines, f"... and {hidden} more"] if hidden > 0 else lines)


def store_page(record: RunRecord, store: Store, link: str | None = None) -> str:
    """Where the parts of a run lie: addresses to copy, each a link where the profile's `store_link` is given."""
    layout = record.layout
    lines = [f"## Where {layout.run} lies", ""]
    lines += table(["", "address"], [[name, _address(store, key, link)] for name, key in store_keys(record).items()])
    folder = f"{store.url}/{layout.root}/"
    if store.url.startswith("s3://"):
        lines += ["", fenced(f"aws s3 ls --recursive {shlex.quote(folder)}")]
    elif store.url.startswith("file://"):
        lines += ["", fenced(f"ls -R {shlex.quote(folder.removeprefix('file://'))}")]
    return "\n".join([*lines, ""])


def store_keys(record: RunRecord) -> dict[str, str]:
    """Keys of the run's own objects and of the newest iteration's artifacts, by what they are."""
    layout = record.layout
    keys = {"recipe": layout.recipe, "report": f"{layout.summary}/report.html"}
    if record.promoted:
        keys["promoted"] = layout.promoted
        keys["promoted checkpoint"] = record.promoted["checkpoint"]["key"]
    if record.iterations:
        newest = record.iterations[-1]
        for stage in newest.manifests:
            part = STAGES[stage]
            keys[f"iteration {newest.number}: {part}"] = layout.iteration(newest.number, part)
    return keys | {f"test {when}": layout.evaluation(when) for when in record.evaluations}


def elsewhere(record: RunRecord, store: Store, link: str | None = None) -> str:
    """Where the pictures of a page also lie: Prefect's second interface takes pictures out of running text."""
    layout = record.layout
    report = _address(store, f"{layout.summary}/report.html", link)
    return f"No pictures here? They are in the report: {report}, which `deerstalker report {layout.run}` writes anew."


def plots_page(drawn: Mapping[str, bytes], note: str) -> str:
    """The plots, one below the other, and where else they are."""
    return "\n\n".join([*(picture(png, words) for words, png in drawn.items()), note]) + "\n"


def batch_page(iteration: int, batch: BatchView, note: str) -> str:
    """The packed batch in a sentence and a picture, and where else that is."""
    lines = [f"## The packed batch of iteration {iteration}", "", batch_picture.words(batch), ""]
    if batch.steps:
        lines += [
            picture(batch_picture.draw(batch, _BATCH_DPI), "a bar a row: prompt, completions, padding"),
            "",
            note,
            "",
        ]
    return "\n".join(lines)


_VERDICTS = ("proved", "contradicted", "restated", "open")


def _answers(item: Completion) -> str:
    lines = []
    for answer in item.answers:
        said = " ".join(answer.said.split())[:_ANSWER_CHARACTERS] or f"({answer.note})"
        verdict = "right" if answer.correct else f"wrong, {answer.right}" + (f" ({answer.note})" if answer.note else "")
        lines.append(f"{answer.letter}. {said:<30} {verdict}")
    return "\n".join(lines)


def _address(store: Store, key: str, link: str | None) -> str:
    shown = code(f"{store.url}/{key}")
    return f"[{shown}]({link.replace('{key}', quote(key))})" if link else shown


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
