"""Reads test-time strategies from the command line."""

import re
from typing import Any

from artifacts.documents.suggestions import did_you_mean
from artifacts.errors import BadInputError
from flows.config.settings import parsed_value
from stages.strategies.config import STRATEGIES

_SHOWN = 60
_NEXT_SETTING = re.compile(r",(?=\s*\w+\s*=)")


def strategy_settings(text: str) -> dict[str, Any]:
    """Returns the settings of a strategy from its text: `majority`, or `truncation_probe:budgets=[0,64],answer="A."`.

    Raises:
        BadInputError: There is no such strategy, or a part is not `key=value`.
    """
    name, _, rest = text.partition(":")
    where = f"--strategy {text[:_SHOWN]}"
    if name not in STRATEGIES:
        raise BadInputError(where, f"unknown{did_you_mean(name, STRATEGIES)}", f"one of {', '.join(STRATEGIES)}")
    settings: dict[str, Any] = {"strategy": name}
    for part in _NEXT_SETTING.split(rest) if rest else ():
        key, equals, value = part.partition("=")
        if not equals:
            raise BadInputError(where, f"{part[:_SHOWN]!r} is not key=value", "NAME:key=value,key=value")
        settings[key.strip()] = parsed_value(value, where)
    return settings
