"""The two tiers of the suite: tests that everybody runs, and those marked `long`."""

from collections.abc import Iterable
from typing import Any

import pytest


def long_except(values: Iterable[Any], *quick: Any) -> list[Any]:
    """Returns a test's parameters: the `quick` ones are tried by default, the others are marked `long`.

    Raises:
        AssertionError: One of `quick` is none of the values, which would leave it untried.
    """
    values = list(values)
    assert all(value in values for value in quick), (values, quick)
    return [value if value in quick else pytest.param(value, marks=pytest.mark.long) for value in values]
