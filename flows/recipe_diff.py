"""Two recipes side by side."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from flows.recipes import Recipe


@dataclass(frozen=True)
class Difference:
    """A setting that two recipes do not share.

    Attributes:
        setting: Its name, sections before it: `finetune.loss.clip_high`.
        values: By side, `a` and `b`; a recipe that has no such setting is left out.
    """

    setting: str
    values: dict[str, Any]


def differences(a: Recipe, b: Recipe) -> list[Difference]:
    """What a run by `a` and one by `b` do differently, in the order of the sections; the title does nothing."""
    ours, theirs = (recipe.model_dump(mode="json", exclude={"title"}) for recipe in (a, b))
    return list(_differences(ours, theirs))


def _differences(a: Mapping[str, Any], b: Mapping[str, Any], path: str = "") -> Iterator[Difference]:
    for key in dict.fromkeys([*a, *b]):
        values = {side: table[key] for side, table in (("a", a), ("b", b)) if key in table}
        if len(values) == 2 and values["a"] == values["b"]:
            continue
        if len(values) == 2 and isinstance(values["a"], dict) and isinstance(values["b"], dict):
            yield from _differences(values["a"], values["b"], f"{path}{key}.")
        else:
            yield Difference(f"{path}{key}", values)
