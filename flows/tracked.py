"""A run's figures under the names that trackers' users know from other trainers.

Training figures are called as TRL calls them, stage times and throughput as verl does; held-out accuracy stands under
`eval/`, the measurement on the test split under `test/`.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from artifacts.manifest import Manifest
from flows.figures import mean_known
from flows.history import IterationRecord

_GRADES = {
    "reward": "reward/mean",
    "reward_std": "reward/std_within_group",
    "accuracy": "accuracy/mean",
    "exact": "exact/mean",
    "frac_reward_zero_std": "groups/uniform_fraction",
    "completions/mean_length": "completion_tokens/mean",
    "completions/max_length": "completion_tokens/max",
    "completions/clipped_ratio": "truncated/fraction",
    "completions/early_stopped_ratio": "early_stopped/fraction",
}
_STEP_MEANS = {
    "loss": "loss",
    "policy_loss": "policy_loss",
    "entropy": "entropy",
    "kl": "kl",
    "grad_norm": "grad_norm",
    "learning_rate": "learning_rate",
    "clip_ratio/low_mean": "clip_low_fraction",
    "clip_ratio/high_mean": "clip_high_fraction",
    "sampling/sampling_logp_difference/mean": "sampler_gap_mean",
    "sampling/importance_sampling_ratio/mean": "sampler_ratio_mean",
    "sampling/effective_sample_size": "sampler_ess",
}
_STEP_TOPS = {
    "sampling/sampling_logp_difference/max": "sampler_gap_max",
    "sampling/importance_sampling_ratio/max": "sampler_ratio_max",
}


def iteration_metrics(record: IterationRecord) -> dict[str, float]:
    """What is known of one iteration; means and maxima over its optimizer steps."""
    grades, report, totals = record.facts("grade"), record.facts("evaluate"), record.facts("finetune").get("totals", {})
    found: dict[str, float | None] = {name: grades.get(fact) for name, fact in _GRADES.items()}
    for fact, value in grades.items():
        if fact.startswith("reward/") and fact.count("/") == 2:  # the mean of one term: reward/format/mean
            found[f"rewards/{fact.removeprefix('reward/')}"] = value
    for name, key in _STEP_MEANS.items():
        found[name] = mean_known(step.get(key) for step in record.steps)
    for name, key in _STEP_TOPS.items():
        found[name] = _top(step.get(key) for step in record.steps)
    if record.steps:
        found["skipped_steps"] = float(sum(step.get("skipped", False) for step in record.steps))
    found |= _measured(report, "eval")
    found |= {f"timing_s/{stage}": seconds for stage, seconds in record.seconds().items()}
    found["perf/sampled_tokens_per_s"] = record.facts("sample").get("tokens_per_s")
    found["perf/throughput"] = totals.get("tokens_per_s")
    found["perf/max_memory_gb"] = totals["peak_memory_bytes"] / 1e9 if "peak_memory_bytes" in totals else None
    decision = record.facts("promote")
    found["promoted"] = float(decision["promoted"]) if "promoted" in decision else None
    return _finite(found)


def before_after_metrics(evaluations: Mapping[str, Manifest]) -> dict[str, float]:
    """Before and after, on the test split."""
    found: dict[str, float | None] = {}
    for when, manifest in evaluations.items():
        found |= _measured(manifest.facts, f"test/{when}")
    return _finite(found)


def _measured(facts: Mapping[str, Any], group: str) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    for mode in ("sampled", "greedy"):
        if mode in facts:
            at, measured = f"{group}/{mode}", facts[mode]
            found |= {f"{at}/accuracy": measured["accuracy"]["mean"], f"{at}/exact": measured["exact"]["mean"]}
            found |= {f"{at}/accuracy_{end}": measured["accuracy"][end] for end in ("low", "high")}
            found[f"{at}/mean_length"] = measured["completion_tokens_mean"]
            found[f"{at}/clipped_ratio"] = measured["truncated_fraction"]
            found[f"{at}/early_stopped_ratio"] = measured.get("early_stopped_fraction")
            found |= {f"{at}/statements/{name}": value for name, value in measured["deductions"].items()}
    return found


def _top(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _finite(values: Mapping[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in values.items() if value is not None and math.isfinite(value)}
