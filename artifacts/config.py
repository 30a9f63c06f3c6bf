"""The base of every config model: numbers are numbers, finite and bounded, whatever a field says of itself."""

from typing import Any, cast

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler
from pydantic_core import CoreSchema

LARGEST_INT = 2**53 - 1
"""Bound of a whole number that has none of its own: every JSON reader has it exactly."""
LARGEST_FLOAT = 1e18
"""Bound of a float that has none of its own: float32 has room for it, and for its square."""
LONGEST_TEXT = 4096
"""Characters of a text that has no bound of its own: those of a path."""

_NESTED = (
    "schema", "fields", "items_schema", "choices", "keys_schema", "values_schema", "steps", "definitions"
)  # fmt: skip
"""Keys under which a core schema holds others; what stands under the rest is data."""


def _bounded(schema: Any) -> Any:
    """Returns a core schema with its numbers strict and bounded and its texts bounded."""
    if isinstance(schema, (list, tuple)):
        return type(schema)(_bounded(item) for item in schema)  # choices may be (schema, label)
    if not isinstance(schema, dict):
        return schema
    # A mapping of fields or choices to schemas has names for keys, and a name may be any of ours.
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
    """Settings that a person may write, in a file, as `--set` or in Prefect's form.

    An unknown key is refused. A boolean is no number, a number no boolean, a text neither: pydantic's strict mode for
    these types only, so that a list may still be written for a tuple, and an integer for a float. Infinities and NaN
    are refused; a number or text without a bound of its own has one of the constants above.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: type[BaseModel], handler: GetCoreSchemaHandler) -> CoreSchema:
        return cast("CoreSchema", _bounded(handler(source)))
