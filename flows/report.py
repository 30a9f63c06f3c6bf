"""The report of a run for people: pictures, and a page that holds everything. It is a view, written anew each time."""

import json
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from artifacts.reading import Artifact
from artifacts.schemas import RESULTS
from artifacts.store import Store
from artifacts.sums import write_files
from artifacts.verification import Damage
from flows.batch_picture import BatchView, draw, read_batch, words
from flows.figures import IterationFigures, iteration_figures, kl_titles, measurement, skipped_title
from flows.history import RunRecord, read_run
from flows.markdown import shortened
from flows.page import card, document, escape, picture, table
from flows.plots import accuracy_plot, health_plot, reward_plot, seconds_plot, suites_plot
from flows.specimen import Completion, Specimen, find_specimen
from flows.suites import curves, suites_section
from flows.summary import before_after_rows, interval_text, solve_command, summary, unfinished_text
from flows.ui_text import completion_title, seconds_rows, statement_counts, statement_lines, store_keys
from stages.statistics import Interval, estimate_gain

if TYPE_CHECKING:
    from flows.session import Session

PAGE = "report.html"
_SHOWN, _SAID = 20_000, 200
"""Characters of a completion, and of an answer in it, that the page shows."""

_HEADLINES = (
    ("test accuracy, sampled", "sampled", "accuracy"),
    ("test accuracy, greedy", "greedy", "accuracy"),
    ("all answers right, sampled", "sampled", "exact"),
)


def write_report(run: "Session") -> str:
    """Writes the report of a run in progress, shows all of it in Prefect, and returns the key of its page."""
    started = time.perf_counter()
    run.live.stage_started("report")
    record = read_run(run.ctx.store, run.layout.run)
    page = store_report(record, run.ctx.store)
    run.shown.finished(record)
    run.live.stage_finished("report", time.perf_counter() - started, reused=False)
    return page


def publish_report(store: Store, run: str, *, in_prefect: bool = True, damaged: list[Damage] | None = None) -> str:
    """Writes a run's report into the store, and returns the key of its page.

    Args:
        in_prefect: Also show it in Prefect; call it inside a flow then.
        damaged: Where artifacts are added that cannot be read; the report is on the others.

    Raises:
        IntegrityError: An artifact that it reads is damaged; of manifests where `damaged` is None.
    """
    record = read_run(store, run, damaged)
    page = store_report(record, store)
    if in_prefect:
        from flows.ui import show_in_prefect

        show_in_prefect(record, store)
    return page


def store_report(record: RunRecord, store: Store) -> str:
    """Writes the report into the store and returns the key of its page; needs no Prefect.

    Raises:
        IntegrityError: A stored artifact that it reads is damaged.
    """
    write_files(store, record.layout.summary, report_files(record, store))
    return f"{record.layout.summary}/{PAGE}"


def report_files(record: RunRecord, store: Store) -> dict[str, bytes]:
    """The report's files by name: pictures, the same figures as JSON, and the page.

    Raises:
        IntegrityError: A stored artifact that it reads is damaged.
    """
    iterations = [iteration_figures(iteration) for iteration in record.iterations]
    pictures = {
        "accuracy.png": accuracy_plot(iterations),
        "reward.png": reward_plot(iterations),
        "health.png": health_plot(iterations),
        "seconds.png": seconds_plot(iterations),
    }
    if record.suites:
        pictures["suites.png"] = suites_plot(curves(record))
    graded = [item for item in record.iterations if item.kept("sample", "grade")]
    specimen = find_specimen(graded[-1], record.layout, store) if graded else None
    packed = [item for item in record.iterations if item.kept("pack")]
    batch = read_batch(packed[-1], record.layout, store) if packed else None
    if batch and batch.steps:
        pictures["batch.png"] = draw(batch)
    page = document(
        f"{record.layout.run}: Deerstalker report", _body(record, store, iterations, pictures, specimen, batch)
    )
    return {**pictures, "summary.json": _json(summary(record, store)), PAGE: page.encode()}


def paired_gain(record: RunRecord, store: Store, mode: str, metric: str = "accuracy") -> Interval | None:
    """Mean difference between after and before, puzzle by puzzle of the test split; None where one is missing."""
    if set(record.evaluations) != {"before", "after"}:
        return None
    results = {
        when: Artifact(store, record.layout.evaluation(when), manifest).read_table("results.parquet", RESULTS)
        for when, manifest in record.evaluations.items()
    }
    return estimate_gain(results["after"], results["before"], mode=mode, metric=metric)


def _body(
    record: RunRecord,
    store: Store,
    iterations: Sequence[IterationFigures],
    pictures: dict[str, bytes],
    specimen: Specimen | None,
    batch: BatchView | None,
) -> list[str]:
    done, total_s = sum(1 for item in iterations if item.number), sum(item.total_s for item in iterations)
    parts = [
        f'<header><span class="kicker">Deerstalker &middot; run {escape(record.layout.run)}</span>'
        f"<h1>{escape(record.recipe['title'])}</h1>"
        f"<p>{done} of {record.recipe['iterations']} iterations of GRPO in {_duration(total_s)}, "
        f"{total_s / max(1, done):.1f} s each</p></header>",
        _cards(record, store, iterations),
    ]
    if record.evaluations:
        facts = next(iter(record.evaluations.values())).facts
        head = ["", *("before GRPO" if when == "before" else "promoted" for when in record.evaluations)]
        parts += [
            "<h2>Before and after</h2>",
            f'<div class="panel">{table(head, before_after_rows(record))}'
            f'<p class="note">{facts["puzzles"]} test puzzles that no choice looked at, read by the '
            f"{escape(facts['grader'])} grader. Means over puzzles with their 95% intervals.</p></div>",
        ]
    parts += [
        "<h2>Learning</h2>",
        f'<div class="plots">{picture(pictures["accuracy.png"], "accuracy of each iteration")}'
        f"{picture(pictures['reward.png'], 'reward of each iteration')}</div>",
        *suites_section(record, pictures),
        "<h2>Health and time</h2>",
        f'<div class="plots">{picture(pictures["health.png"], "length, entropy, clip fraction, gap, KL")}'
        f"{picture(pictures['seconds.png'], 'seconds of each stage')}</div>",
        "<h2>Iterations</h2>",
        f'<div class="panel long">{_iteration_table(iterations)}</div>'
        '<p class="note">Green: the checkpoint was promoted. Sampled and greedy are measured on the validation split, '
        "which promotion looks at; train is the accuracy of the rollouts that the iteration learned from.</p>",
    ]
    if specimen is not None:
        parts += _specimen(specimen)
    if batch is not None:
        drawn = picture(pictures["batch.png"], "a bar a row: prompt, completions, padding") if batch.steps else ""
        parts += [
            "<h2>The newest packed batch</h2>",
            f'<div class="plots">{drawn}</div>',
            f'<p class="note">{escape(words(batch))}</p>',
        ]
    parts += ["<h2>Seconds of each stage</h2>", f'<div class="panel long">{_seconds_table(iterations)}</div>']
    parts += _use(record, store)
    return parts


def _cards(record: RunRecord, store: Store, iterations: Sequence[IterationFigures]) -> str:
    cards: list[str] = []
    for title, mode, metric in _HEADLINES:
        found = {when: measurement(manifest.facts, mode) for when, manifest in record.evaluations.items()}
        before, after = found.get("before"), found.get("after")
        gain = paired_gain(record, store, mode, metric)
        if before and after and gain:
            low, high = (item.accuracy.mean if metric == "accuracy" else item.exact.mean for item in (before, after))
            note = f"{gain.mean * 100:+.1f} points ({gain.low * 100:.1f} to {gain.high * 100:.1f})"
            value = f"{low:.1%} \N{RIGHTWARDS ARROW} {high:.1%}"
            cards.append(card(title, value, note, "up" if gain.mean >= 0 else "down"))
    if record.promoted:
        note = _standing(record, len(iterations))
        cards.append(card("promoted", f"iteration {record.promoted['iteration']}", note))
    return f'<div class="cards">{"".join(cards)}</div>'


def _standing(record: RunRecord, candidates: int) -> str:
    """What the rule of promotion says of what stands (see `stages.gate.PromoteConfig`)."""
    assert record.promoted is not None
    rule, score = record.recipe["promote"], f"{record.promoted['score']:.1%} on the validation split"
    if rule["tolerance_se"]:
        return f"{score}, within {rule['tolerance_se']:g} standard error of the best of {candidates}"
    if rule["min_gain"]:
        return f"{score}; none since has beaten the best before it by more than {rule['min_gain'] * 100:g} points"
    return f"{score}, the best of {candidates}"


def _iteration_table(iterations: Sequence[IterationFigures]) -> str:
    kl = kl_titles(iterations)
    head = ["", "reward", "train", "sampled", "greedy", "tokens", "unfinished", "entropy", "clipped", "gap"]
    skipped = skipped_title(iterations)
    head += [*kl.values(), *skipped, "lr", "s"]
    rows = [
        [
            str(item.number),
            _form(item.reward, ".3f"),
            _form(item.train_accuracy, ".1%"),
            interval_text(item.sampled.accuracy) if item.sampled else "",
            _form(item.greedy.accuracy.mean if item.greedy else None, ".1%"),
            _form(item.completion_tokens, ".1f"),
            unfinished_text(item),
            _form(item.entropy, ".3f"),
            _form(item.clip_fraction, ".2%"),
            _form(item.gap, ".4f"),
            *(_form(getattr(item, name), ".4f") for name in kl),
            *(f"{item.skipped_steps} of {item.steps}" for _ in skipped),
            _form(item.learning_rate, ".1e"),
            f"{item.total_s:.1f}",
        ]
        for item in iterations
    ]
    return table(head, rows, marked=[item.promoted for item in iterations])


def _seconds_table(iterations: Sequence[IterationFigures]) -> str:
    rows = seconds_rows(iterations)
    return table(list(rows[0]), [["" if cell is None else str(cell) for cell in row.values()] for row in rows])


def _specimen(specimen: Specimen) -> list[str]:
    return [
        f"<h2>One puzzle of iteration {specimen.iteration}</h2>",
        f'<p class="note">Puzzle {escape(specimen.puzzle_id)}: three of its {specimen.size} completions, as the model '
        "wrote them, with what the grader read for each letter.</p>",
        f'<div class="completions">{"".join(_completion(item) for item in specimen.completions)}</div>',
        f'<details class="panel"><summary>The puzzle</summary><pre>{escape(specimen.prompt)}</pre></details>',
    ]


def _completion(item: Completion) -> str:
    rows = "".join(
        f'<tr class="{"right" if answer.correct else "wrong"}"><td>{escape(answer.letter)}</td>'
        f"<td>{escape(shortened(answer.said or answer.note, _SAID))}</td>"
        f"<td>{'' if answer.correct else escape(answer.right)}</td></tr>"
        for answer in item.answers
    )
    return (
        f'<div class="panel"><h3>{escape(completion_title(item))}</h3><pre>{escape(shortened(item.text, _SHOWN))}</pre>'
        f"<table><thead><tr><th></th><th>read</th><th>right answer</th></tr></thead><tbody>{rows}</tbody></table>"
        f"{_statements(item)}</div>"
    )


def _statements(item: Completion) -> str:
    if item.statements is None:
        return ""
    lines = f"<pre>{escape(shortened(statement_lines(item)))}</pre>" if item.statements else ""
    return f'<p class="note">{escape(statement_counts(item))}</p>' + lines


def _use(record: RunRecord, store: Store) -> list[str]:
    facts: list[tuple[str, str]] = [("store", store.url), ("run", f"{store.url}/{record.layout.root}")]
    facts += [(name, f"{store.url}/{key}") for name, key in store_keys(record).items()]
    if record.promoted:
        facts.append(("its content", record.promoted["checkpoint"]["digest"]))
    return [
        "<h2>Use the promoted model</h2>",
        f'<code class="command">{escape(solve_command(record, store))}</code>',
        '<p class="note">It is asked the first puzzle of the test split. In place of '
        f"{record.layout.run}:test may stand a file: puzzles as JSON in the published format, or a prompt as text.</p>",
        f'<div class="panel">{table([], facts, name="facts")}'
        "<details><summary>Recipe</summary>"
        f"<pre>{escape(json.dumps(record.recipe, indent=2, ensure_ascii=False))}</pre></details></div>",
    ]


def _form(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def _json(value: dict[str, Any]) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()
