"""The base class of all config models. It makes numbers strict, finite and bounded, and strings bounded."""

from collections.abc import Iterable
from typing import Any, cast

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler
from pydantic_core import CoreSchema

LARGEST_INT = 2**53 - 1
"""Bound of integers without their own bound: the largest that every JSON reader represents exactly."""
LARGEST_FLOAT = 1e18
"""Bound of floats without their own bound: float32 can represent it and its square."""
LONGEST_TEXT = 4096
"""Largest length of strings without their own bound: the length of the longest path."""

_NESTED = (
    "schema", "fields", "items_schema", "choices", "keys_schema", "values_schema", "steps", "definitions"
)  # fmt: skip
"""Keys of a core schema whose values are core schemas; other values are data."""


def _bounded(schema: Any) -> Any:
    """Returns a core schema with its numbers strict and bounded and its strings bounded."""
    if isinstance(schema, (list, tuple)):
        return type(schema)(_bounded(item) for item in schema)  # choices may be (schema, label)
    if not isinstance(schema, dict):
        return schema
    # A mapping of fields or choices to schemas has user-defined keys, which may equal a key of a schema.
    if not isinstance(schema.get("type"), str):
        return {name: _bounded(item) for name, item in schema.items()}
    bounded = {key: _bounded(item) if key in _NESTED else item for key, item in schema.items()}
    match schema["type"]:
        case "int":
            bounded |= {"strict": True} | _limits(schema, LARGEST_INT)
        case "float":
            bounded |= {"strict": True, "allow_inf_nan": False} | _limits(schema, LARGEST_FLOAT)
        case "bool":
            bounded["strict"] = True
        case "str":
            bounded.setdefault("max_length", LONGEST_TEXT)
        case _:
            pass
    return bounded


def _limits(schema: dict[str, Any], largest: float) -> dict[str, float]:
    above = {} if "le" in schema or "lt" in schema else {"le": largest}
    below = {} if "ge" in schema or "gt" in schema else {"ge": -largest}
    return above | below


class Config(BaseModel):
    """Settings that a person writes in a file, with `--set` or in Prefect's form.

    Unknown keys are refused. Numbers, booleans and strings are validated in pydantic's strict mode and not converted
    into one another, except an integer to a float; a list is accepted for a tuple. Infinities and NaN are refused.
    Numbers and strings without their own bound get one of the constants above.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: type[BaseModel], handler: GetCoreSchemaHandler) -> CoreSchema:
        return cast("CoreSchema", _bounded(handler(source)))

    def changed(self, *names: str) -> list[str]:
        """Returns the fields among `names` whose values are not their defaults, sorted."""
        return sorted(name for name in names if getattr(self, name) != type(self).model_fields[name].default)

    def refuse_unread(self, names: Iterable[str], where: str) -> None:
        """Refuses settings that would have no effect.

        Args:
            names: Fields that nothing reads, because of the value of another.
            where: What has no use for them, for the error: "on ...", "with ...".

        Raises:
            ValueError: One of them was set, to another value than its default.
        """
        if ignored := self.changed(*self.model_fields_set & {*names}):
            defaults = ", ".join(repr(type(self).model_fields[name].default) for name in ignored)
            raise ValueError(
                f"{', '.join(ignored)} would have no effect {where}: drop it, or set its default {defaults}"
            )
