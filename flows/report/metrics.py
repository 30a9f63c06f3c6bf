"""The registry of metrics: for each figure its source, its title, its formats and the views that show it.

The terminal, the HTML report, Prefect's tables, trackers, `summary.json` and comparisons of recipes read it. To add a
metric of an iteration, let a stage store the number in its facts and add a line to `METRICS`; a figure of an evaluation
is a line in `flows.report.measures`. Figures of `summary.json` also need a row in `docs/reference/json.md`.

Tracker names follow other tools: TRL's names for training figures, verl's for stage times and
throughput; held-out accuracy is under `eval/`, the measurement on the test split under `test/`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from statistics import fmean
from typing import TYPE_CHECKING

from stages.statistics.estimates import Interval

if TYPE_CHECKING:
    from flows.lookup.history import IterationRecord

MetricValue = float | Interval | None
"""A number, a mean with its 95% interval, or None where nothing was measured."""
MetricValues = Mapping[str, MetricValue]
"""The figures of one iteration by metric key."""
MetricReader = Callable[["IterationRecord"], MetricValue]

_FEWEST_STATEMENTS = 0.05
OWN = "loss/"
"""Beginning of the keys of the metrics that a user's own loss returns."""
INTERVAL = "interval"
"""The format of a mean with its 95% interval: `62.1% (58.0 to 66.2)`."""


class Presence(IntEnum):
    """When a table of iterations has a metric's column. Columns are sorted by this, then as in the registry."""

    ALWAYS = 0
    WHERE_KNOWN = 1
    """If any iteration has a value."""
    WHERE_NONZERO = 2
    """If any iteration has a value other than 0."""
    LAST = 3
    """Always, after all other columns."""


@dataclass(frozen=True)
class Metric:
    """One figure of an iteration. A view shows the metrics that have a format for it.

    Attributes:
        key: Its unique name, which JSON documents also use.
        title: Its name in words; the title of its plot.
        read: Returns the value of an iteration; None if its stage has not published or did not measure it.
        unit: Its unit; empty for shares and counts.
        column: Its heading in tables of iterations.
        terminal: Format specification in the terminal's table of iterations.
        page: Format specification in the HTML report's table, or a function of the iteration's values that returns the
            cell's text. `INTERVAL` shows the bounds too; every other format takes the mean of an estimate.
        prefect: Decimals in Prefect's table of iterations.
        summary: Whether `summary.json` has it.
        tracker: Its name in trackers.
        compare: Format specification in comparisons of recipes.
        compare_key: Its name in a comparison's JSON document, if that is not `key`.
        plotted: Whether it has a panel in the plot of a run's health.
        presence: When tables of iterations have its column.
        default: Its value in an iteration for which `read` has none.
    """

    key: str
    title: str
    read: MetricReader
    unit: str = ""
    column: str = ""
    terminal: str = ""
    page: str | Callable[[MetricValues], str] = ""
    prefect: int | None = None
    summary: bool = False
    tracker: str = ""
    compare: str = ""
    compare_key: str = ""
    plotted: bool = False
    presence: Presence = Presence.ALWAYS
    default: float | None = None

    def page_text(self, values: MetricValues) -> str:
        """Returns the cell of an iteration in the HTML report."""
        return self.page(values) if callable(self.page) else text(values.get(self.key), self.page)

    @property
    def compared_as(self) -> str:
        """Name in a comparison's JSON document."""
        return self.compare_key or self.key

    @property
    def is_percent(self) -> bool:
        """Whether the page and plots show it in percent."""
        return isinstance(self.page, str) and self.page.endswith("%")


def mean_known(values: Iterable[float | None]) -> float | None:
    """Returns the mean of the values that are not None; None if there are none."""
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def number(value: MetricValue) -> float | None:
    """Returns a value as one number, an interval as its mean; None stays None."""
    return value.mean if isinstance(value, Interval) else value


def text(value: MetricValue, form: str) -> str:
    """Returns a value as text; empty if it is None.

    Args:
        form: A format specification, which shows the mean of an interval, or `INTERVAL`, which adds the bounds.
    """
    if isinstance(value, Interval):
        return interval_text(value) if form == INTERVAL else format(value.mean, form)
    return "" if value is None else format(value, form)


def interval_text(interval: Interval) -> str:
    """Returns an interval as `62.1% (58.0 to 66.2)`."""
    return f"{interval.mean:.1%} ({interval.low * 100:.1f} to {interval.high * 100:.1f})"


def unfinished_text(truncated_fraction: MetricValue, early_stopped_fraction: MetricValue) -> str:
    """Returns `3.1%` for completions cut at the token limit; `3.1% + 12.0% stopped early` if `early_stop` cut any."""
    early = f" + {text(early_stopped_fraction, '.1%')} stopped early" if early_stopped_fraction else ""
    return "" if truncated_fraction is None else text(truncated_fraction, ".1%") + early


def makes_statements(deductions: Mapping[str, float | None] | None) -> bool:
    """Returns whether answers make statements, on average at least 0.05 each, which tables show as 0.1.

    Fewer are chance matches of the reader in the texts of a model that writes no statements.

    Args:
        deductions: Mean number of statements of an answer, by verdict and in total; None if nothing can be proved.
    """
    if deductions is None:
        return False
    total = deductions.get("statements", sum(value or 0.0 for value in deductions.values()))
    return total is not None and total >= _FEWEST_STATEMENTS


def without_empty(head: Sequence[str], rows: Sequence[Sequence[str]]) -> tuple[list[str], list[list[str]]]:
    """Returns the head and the rows of a table without the columns that are empty in all rows, except the first."""
    kept = [i for i in range(len(head)) if i == 0 or any(row[i] for row in rows)]
    return [head[i] for i in kept], [[row[i] for i in kept] for row in rows]


def _fact(stage: str, key: str) -> MetricReader:
    return lambda record: record.facts(stage).get(key)


def _step_mean(key: str) -> MetricReader:
    return lambda record: mean_known(step.get(key) for step in record.steps)


def _step_max(key: str) -> MetricReader:
    def read(record: IterationRecord) -> float | None:
        return max((step[key] for step in record.steps if step.get(key) is not None), default=None)

    return read


def _held_out(mode: str, share: str = "accuracy") -> MetricReader:
    def read(record: IterationRecord) -> Interval | None:
        measured = record.facts("evaluate").get(mode)
        return Interval(**measured[share]) if measured else None

    return read


def _statements(verdict: str) -> MetricReader:
    """Returns the reader of the mean number of statements with a verdict in a sampled held-out answer.

    Trackers get it by `measures.MEASURES`, as `eval/sampled/statements/proved`.
    """

    def read(record: IterationRecord) -> float | None:
        measured = record.facts("evaluate").get("sampled") or {}
        deductions = measured.get("deductions", {})
        return deductions[verdict] if makes_statements(deductions) else None

    return read


def _clip_fraction(record: IterationRecord) -> float | None:
    return mean_known(step["clip_low_fraction"] + step["clip_high_fraction"] for step in record.steps)


def _skipped_steps(record: IterationRecord) -> float | None:
    return sum(step.get("skipped", False) for step in record.steps) if record.steps else None


def _first_learning_rate(record: IterationRecord) -> float | None:
    return record.steps[0]["learning_rate"] if record.steps else None


def _train_total(key: str, divisor: float = 1.0) -> MetricReader:
    def read(record: IterationRecord) -> float | None:
        totals = record.facts("finetune").get("totals", {})
        return totals[key] / divisor if totals.get(key) is not None else None

    return read


def _promoted(record: IterationRecord) -> float | None:
    decision = record.facts("promote")
    return float(decision["promoted"]) if "promoted" in decision else None


def _alarm(record: IterationRecord) -> float | None:
    return float(record.alarm.certain) if record.alarm else None


def _iterations_behind(record: IterationRecord) -> float | None:
    """Returns 0 if the rollouts were sampled from the weights that were then trained, else 1 (`flows.ahead`).

    None if one of the two stages has not published.
    """
    manifests = [record.manifests[stage] for stage in ("sample", "finetune") if stage in record.manifests]
    digests = [manifest.inputs["weights"]["digest"] for manifest in manifests if "weights" in manifest.inputs]
    return float(len(set(digests)) - 1) if len(digests) == 2 else None


def _alarm_cell(values: MetricValues) -> str:
    return "reward up, accuracy down" if values["reward_alarm"] else ""


def _unfinished_cell(values: MetricValues) -> str:
    return unfinished_text(values["truncated_fraction"], values["early_stopped_fraction"])


def _skipped_cell(values: MetricValues) -> str:
    return f"{values['skipped_steps']} of {values['updates']}"


METRICS: tuple[Metric, ...] = (
    Metric("reward", "mean reward", _fact("grade", "reward/mean"),
           column="reward", terminal=".3f", page=".3f", prefect=4, summary=True, tracker="reward", compare=".3f"),
    Metric("reward_spread", "spread within a group", _fact("grade", "reward/std_within_group"), tracker="reward_std"),
    Metric("train_accuracy", "accuracy of the rollouts", _fact("grade", "accuracy/mean"),
           column="train", terminal=".3f", page=".1%", prefect=4, summary=True, tracker="accuracy"),
    Metric("train_exact", "rollouts with all answers right", _fact("grade", "exact/mean"), tracker="exact"),
    Metric("sampled_accuracy", "held-out accuracy, sampled", _held_out("sampled"),
           column="sampled", terminal=".3f", page=INTERVAL, prefect=4, summary=True,
           compare=INTERVAL, compare_key="held_out_sampled"),
    Metric("greedy_accuracy", "held-out accuracy, greedy", _held_out("greedy"),
           column="greedy", terminal=".3f", page=".1%", prefect=4, summary=True,
           compare=INTERVAL, compare_key="held_out_greedy"),
    Metric("sampled_exact", "held-out puzzles with all answers right, sampled", _held_out("sampled", "exact"),
           column="all right", page=INTERVAL, prefect=4, summary=True),
    Metric("greedy_exact", "held-out puzzles with all answers right, greedy", _held_out("greedy", "exact"),
           column="all right, greedy", page=INTERVAL, prefect=4, summary=True),
    Metric("proved_statements", "proved statements of a held-out answer", _statements("proved"), "statements",
           column="proved", terminal=".1f", page=".1f", prefect=2, summary=True, presence=Presence.WHERE_KNOWN),
    Metric("contradicted_statements", "contradicted statements of a held-out answer", _statements("contradicted"),
           "statements", column="contradicted", terminal=".1f", page=".1f", prefect=2, summary=True,
           presence=Presence.WHERE_KNOWN),
    Metric("completion_tokens", "completion length", _fact("grade", "completion_tokens/mean"), "tokens",
           column="tokens", terminal=".1f", page=".1f", prefect=1, summary=True, plotted=True,
           tracker="completions/mean_length"),
    Metric("longest_completion_tokens", "longest completion", _fact("grade", "completion_tokens/max"), "tokens",
           tracker="completions/max_length"),
    Metric("truncated_fraction", "completions cut at the token limit", _fact("grade", "truncated/fraction"),
           column="unfinished", page=_unfinished_cell, tracker="completions/clipped_ratio"),
    Metric("early_stopped_fraction", "completions stopped early", _fact("grade", "early_stopped/fraction"),
           tracker="completions/early_stopped_ratio"),
    Metric("uniform_fraction", "groups whose rewards are equal", _fact("grade", "groups/uniform_fraction"),
           tracker="frac_reward_zero_std", compare=".1%"),
    Metric("masked_completions", "completions left out of training because they are cut",
           _fact("pack", "masked_completions"), "completions", column="masked", terminal=".0f", page="d", prefect=0,
           summary=True, tracker="completions/masked", compare="d", presence=Presence.WHERE_NONZERO, default=0),
    Metric("overlong_completions", "completions left out of training because they do not fit into a row",
           _fact("pack", "overlong_completions"), "completions", column="overlong", terminal=".0f", page="d", prefect=0,
           summary=True, tracker="completions/overlong", compare="d", presence=Presence.WHERE_NONZERO, default=0),
    Metric("value_explained_variance", "explained variance of the values", _fact("value", "explained_variance/all"),
           column="EV", terminal=".2f", page=".1%", prefect=3, summary=True, plotted=True,
           tracker="critic/vf_explained_var", presence=Presence.WHERE_KNOWN),
    Metric("value_explained_first", "explained variance before the first token",
           _fact("value", "explained_variance/first_token"), tracker="critic/vf_explained_var_first"),
    Metric("value_explained_last", "explained variance before the last token",
           _fact("value", "explained_variance/last_token"), column="EV, last token", page=".1%", prefect=3,
           summary=True, tracker="critic/vf_explained_var_last", presence=Presence.WHERE_KNOWN),
    Metric("value_mean", "mean value", _fact("value", "value/mean"), tracker="critic/values/mean"),
    Metric("value_error", "mean squared error of the values before training", _fact("value", "value/error"),
           tracker="critic/vf_loss"),
    Metric("positive_nll", "negative log-probability of right completions", _step_mean("positive_nll"),
           "nats a token", tracker="positive_nll"),
    Metric("router_aux_loss", "load-balancing loss of the router", _step_mean("router_aux_loss"),
           column="router", page=".3f", prefect=3, summary=True, tracker="router_aux_loss",
           presence=Presence.WHERE_KNOWN),
    Metric("updates", "optimizer steps", lambda record: len(record.steps), compare="d"),
    Metric("skipped_steps", "skipped optimizer steps", _skipped_steps,
           column="skipped", page=_skipped_cell, prefect=0, summary=True, tracker="skipped_steps",
           compare="d", compare_key="skipped", presence=Presence.WHERE_NONZERO, default=0),
    Metric("learning_rate", "mean learning rate", _step_mean("learning_rate"), tracker="learning_rate", compare=".1e"),
    Metric("first_learning_rate", "learning rate of the first step", _first_learning_rate,
           column="lr", page=".1e", presence=Presence.LAST),
    Metric("loss", "loss", _step_mean("loss"), tracker="loss", compare=".4f"),
    Metric("policy_loss", "policy loss", _step_mean("policy_loss"), tracker="policy_loss", compare=".4f"),
    Metric("kl", "KL to the reference", _step_mean("kl"), "nats",
           column="KL", page=".4f", prefect=5, summary=True, plotted=True, tracker="kl", compare=".4f",
           presence=Presence.WHERE_KNOWN),
    Metric("kl_penalty", "reward lost to the KL penalty", _step_mean("kl_penalty"),
           column="KL penalty", page=".4f", prefect=5, summary=True, compare=".4f", presence=Presence.WHERE_KNOWN),
    Metric("teacher_kl", "KL to the teacher, of the rollouts", _fact("teach", "teacher/kl/mean"), "nats",
           column="teacher KL", terminal=".3f", page=".4f", prefect=5, summary=True, plotted=True, tracker="teacher_kl",
           presence=Presence.WHERE_KNOWN),
    Metric("entropy", "entropy", _step_mean("entropy"), "nats a token",
           column="entropy", terminal=".3f", page=".3f", prefect=4, summary=True, plotted=True, tracker="entropy",
           compare=".3f"),
    Metric("grad_norm", "gradient norm", _step_mean("grad_norm"), tracker="grad_norm", compare=".3f"),
    Metric("movement_lost", "movement of the weights lost to rounding", _train_total("movement_lost"),
           column="rounded off", terminal="z.0%", page="z.1%", prefect=3, summary=True, tracker="movement_lost",
           compare=".1%", presence=Presence.WHERE_KNOWN),
    Metric("ratio_mean", "mean importance ratio", _step_mean("ratio_mean"), compare=".4f"),
    Metric("ratio_max", "highest importance ratio", _step_max("ratio_max"), compare=".2f"),
    Metric("clip_low_fraction", "tokens clipped from below", _step_mean("clip_low_fraction"),
           tracker="clip_ratio/low_mean", compare=".2%"),
    Metric("clip_high_fraction", "tokens clipped from above", _step_mean("clip_high_fraction"),
           tracker="clip_ratio/high_mean", compare=".2%"),
    Metric("clip_fraction", "clipped tokens", _clip_fraction,
           column="clipped", terminal=".4f", page=".2%", prefect=5, summary=True, plotted=True),
    Metric("sampler_gap", "gap to the sampler", _step_mean("sampler_gap_mean"), "nats",
           column="gap", terminal=".4f", page=".4f", prefect=5, summary=True, plotted=True,
           tracker="sampling/sampling_logp_difference/mean", compare=".4f", compare_key="sampler_gap_mean"),
    Metric("sampler_gap_max", "largest gap to the sampler", _step_max("sampler_gap_max"), "nats",
           tracker="sampling/sampling_logp_difference/max"),
    Metric("sampler_ratio_mean", "mean importance trainer / sampler", _step_mean("sampler_ratio_mean"),
           tracker="sampling/importance_sampling_ratio/mean"),
    Metric("sampler_ratio_max", "highest importance trainer / sampler", _step_max("sampler_ratio_max"),
           tracker="sampling/importance_sampling_ratio/max"),
    Metric("sampler_ess", "effective share of the tokens as samples of the trainer", _step_mean("sampler_ess"),
           tracker="sampling/effective_sample_size", compare=".3f"),
    Metric("iterations_behind", "iterations between the weights that sampled and those that were trained",
           _iterations_behind, column="behind", terminal=".0f", page=".0f", prefect=0,
           summary=True, tracker="sampling/iterations_behind", presence=Presence.WHERE_NONZERO),
    Metric("sampled_tokens_per_s", "sampling speed", _fact("sample", "tokens_per_s"), "tokens/s",
           tracker="perf/sampled_tokens_per_s"),
    Metric("trained_tokens_per_s", "training speed", _train_total("tokens_per_s"), "tokens/s",
           tracker="perf/throughput"),
    Metric("peak_memory_gb", "highest memory of training", _train_total("peak_memory_bytes", 1e9), "GB",
           tracker="perf/max_memory_gb"),
    Metric("reward_alarm", "1 where reward rises while held-out accuracy falls", _alarm,
           column="alarm", terminal=".0f", page=_alarm_cell, prefect=0, summary=True, tracker="reward_alarm",
           presence=Presence.WHERE_NONZERO),
    Metric("eligible_puzzles", "train puzzles that the filter leaves", _fact("sample", "eligible_puzzles"), "puzzles",
           column="eligible", terminal=".0f", page="d", prefect=0, summary=True, tracker="sampling/eligible_puzzles",
           presence=Presence.WHERE_KNOWN),
    Metric("phase", "number of the phase of the run", _fact("advance", "phase"),
           column="phase", terminal=".0f", page="d", prefect=0, summary=True, tracker="phase",
           presence=Presence.WHERE_KNOWN),
    Metric("promoted", "1 where the checkpoint was promoted", _promoted, tracker="promoted"),
)  # fmt: skip
"""The figures of an iteration."""


def values_of(record: IterationRecord) -> dict[str, MetricValue]:
    """Returns the value of every metric in an iteration, by key; None if it was not measured and has no default."""
    values = {item.key: item.read(record) for item in (*METRICS, *own_metrics([record]))}
    return values | {item.key: item.default for item in METRICS if values[item.key] is None}


def own_metrics(records: Iterable[IterationRecord]) -> list[Metric]:
    """Returns a metric `loss/NAME` for each that the user's own loss returns in any iteration."""
    return named_own(name for record in records for step in record.steps for name in step.get("own", {}))


def named_own(names: Iterable[str]) -> list[Metric]:
    """Returns the metrics of the user's own loss with these names, each once."""
    return [
        Metric(key, key, _own_mean(name), column=key, terminal=".4g", page=".4g", prefect=5, plotted=True,
               tracker=key, presence=Presence.WHERE_KNOWN)
        for name, key in {name: f"{OWN}{name}" for name in names}.items()
    ]  # fmt: skip


def _own_mean(name: str) -> MetricReader:
    return lambda record: mean_known(step.get("own", {}).get(name) for step in record.steps)
