"""Limits of completions. Sampling outside a run's iterations follows their limits unless it sets its own.

An evaluation with other limits measures other answers than those that are trained on: with a lower `max_tokens`, for
instance, answers that it has cut. So every setting of `SamplingConfig` is followed, except those that choose among
tokens and the number of samples.
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from stages.sampling.config import SamplingConfig

_OWN = (
    "samples_per_prompt", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty",
    "frequency_penalty",
)  # fmt: skip
FOLLOWED = tuple(name for name in SamplingConfig.model_fields if name not in _OWN)
"""Settings that are those of `sample.sampling` unless they are set; a new field of `SamplingConfig` is one of them."""
_FOLLOWERS = ("evaluate.sampled", "final.sampled", "rate.sampling", "distil.sample.sampling")
"""Sections of a recipe that follow."""
_NO_TOOL = ("distil.sample.sampling",)
"""Sections whose completions never call a tool."""


def longest(samplings: Sequence[SamplingConfig]) -> SamplingConfig:
    """Returns the settings with the highest `max_tokens`; of equal ones the last."""
    return max(reversed(samplings), key=lambda sampling: sampling.max_tokens)


def with_followed_limits(data: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a recipe's plain settings with the limits of its iterations where other sections set none.

    The limits are those of `sample.sampling`, or of the phase of the run with the highest `max_tokens`.

    Args:
        data: Plain settings, before they are validated; phases have whole sections.
    """
    phases = data.get("phases")
    parts = cast("list[Any]", phases) if isinstance(phases, list) and phases else [data]
    sampled = [found for part in parts if isinstance(found := _section(part, "sample.sampling"), Mapping)]
    if not sampled:
        return dict(data)
    limits = max(reversed(sampled), key=_max_tokens)
    followed = dict(data)
    for name in _FOLLOWERS:
        names = [field for field in FOLLOWED if field in limits and not (name in _NO_TOOL and field == "tool_calls")]
        followed = _filled(followed, name.split("."), {field: limits[field] for field in names})
    return followed


def _max_tokens(sampling: Mapping[str, Any]) -> float:
    """Returns the limit of plain settings; 0 for one that the validation will refuse."""
    value = sampling.get("max_tokens", SamplingConfig.model_fields["max_tokens"].default)
    return value if isinstance(value, int) else 0


def _section(data: Any, name: str) -> Any:
    for part in name.split("."):
        data = data.get(part) if isinstance(data, Mapping) else None
    return data


def _filled(table: dict[str, Any], path: Sequence[str], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Returns settings in which the table at a path has defaults where it sets nothing.

    `rate` and `distil` are optional: they are filled only if the recipe has them.
    """
    head, *rest = path
    inner = table.get(head, None if head in ("rate", "distil") else {})
    if not isinstance(inner, dict):
        return table
    known = cast("dict[str, Any]", inner)
    return {**table, head: _filled(known, rest, defaults) if rest else {**defaults, **known}}
