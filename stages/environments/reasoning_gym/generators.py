"""Calls the generators and scorers of reasoning-gym, and limits the answers that scorers see.

Some scorers pass the answer to Python's `eval`, or to sympy's parser, which uses it. They get an answer only if it is
written in the characters and names that a right answer needs; see `is_scorable`.
"""

import dataclasses
import json
import math
import re
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import lru_cache
from importlib import import_module
from typing import Any

from artifacts.documents.suggestions import did_you_mean

LONGEST_ANSWER = 20_000
"""Characters of the longest answer that is scored."""
_LITERAL = re.compile(r"[A-Za-z0-9_ \t\r\n,\[\]'\".-]*")
"""Lists of numbers and texts. Without parentheses, `eval` calls nothing."""
_ARITHMETIC = re.compile(r"(?!.*(?:\*[ \t]*\*|/[ \t]*/))[0-9 \t.+\-*/()]*")
"""One line of arithmetic without powers."""
_FORMULA = re.compile(r"[A-Za-z0-9 \t.+\-*/^(),]*")
_NAME = re.compile(r"[A-Za-z_]+[A-Za-z0-9_]*")
_FUNCTIONS = frozenset(
    ("sin", "cos", "tan", "sec", "csc", "cot", "sinh", "cosh", "tanh", "asin", "acos", "atan", "asinh", "acosh",
     "atanh", "exp", "log", "ln", "sqrt", "pi", "Abs")
)  # fmt: skip
_NO_SYMBOLS = frozenset("NOQS")
"""Letters that sympy's parser reads as functions."""


def _is_literal(answer: str) -> bool:
    return _LITERAL.fullmatch(answer) is not None


def _is_arithmetic(answer: str) -> bool:
    return _ARITHMETIC.fullmatch(answer.strip()) is not None


def _is_formula(answer: str) -> bool:
    names = set(_NAME.findall(answer))
    symbols = names - _FUNCTIONS
    return (
        _FORMULA.fullmatch(answer.strip()) is not None
        and symbols.isdisjoint(_NO_SYMBOLS)
        and all(len(name) == 1 for name in symbols)
    )


EVALUATED = {
    "binary_matrix": _is_literal,
    "n_queens": _is_literal,
    "spiral_matrix": _is_literal,
    "string_insertion": _is_literal,
    "countdown": _is_arithmetic,
    "puzzle24": _is_arithmetic,
    "intermediate_integration": _is_formula,
    "polynomial_multiplication": _is_formula,
    "simple_integration": _is_formula,
}
"""Tasks whose scorer evaluates the answer as Python, each with a function that tests whether an answer is harmless.

Refused tasks are among them, because their stored items are still graded.
"""


_WHOLE = frozenset({"acre", "gsm_symbolic", "list_functions", "word_ladder"})
"""Tasks whose generator prepares all items at once, or limits their number; each item comes from a new generator.

Some of them are refused tasks, whose stored items are still graded.
"""
_WHOLE_SIZE = 10


def is_scorable(task: str, answer: str) -> bool:
    """Returns whether a scorer may see an answer; any other answer is wrong."""
    if len(answer) > LONGEST_ANSWER:
        return False
    harmless = EVALUATED.get(task)
    return harmless is None or harmless(answer)


@lru_cache(maxsize=64)
def setting_problem(task: str, level: int | None, attributes: str) -> str | None:
    """Returns why the settings of a task, its attributes as JSON, cannot be used; None if they can."""
    factory = _factory()
    if task not in factory.DATASETS:
        return f"environment: reasoning-gym has no generator {task!r}{did_you_mean(task, factory.DATASETS)}"
    if level is not None:
        if task not in factory.CURRICULA:
            return f"level: reasoning_gym:{task} has no curriculum; leave level out, or set attributes"
        if level >= (levels := level_count(task)):
            return f"level: reasoning_gym:{task} has the levels 0 to {levels - 1} (found {level})"
    fields = dataclasses.fields(factory.DATASETS[task][1])
    names = [field.name for field in fields if field.name not in ("seed", "size")]
    if unknown := [name for name in json.loads(attributes) if name not in names]:
        hint = did_you_mean(unknown[0], names)
        return f"attributes: reasoning_gym:{task} has no {unknown[0]!r}{hint}; it has {', '.join(names)}"
    try:
        _scorer(task, level, attributes)
    except Exception as error:  # third-party code may raise anything
        return f"reasoning_gym:{task} refuses these settings: {type(error).__name__}: {error}"
    return None


def _factory() -> Any:
    """Returns the module with the tables of generators. The package is optional, so type checkers may not find it."""
    return import_module("reasoning_gym.factory")


def level_count(task: str) -> int:
    """Returns the number of levels of a task's curriculum; 0 if it has none."""
    factory = _factory()
    attributes = factory.CURRICULA[task]().attributes.values() if task in factory.CURRICULA else ()
    return max((len(attribute.levels) for attribute in attributes), default=0)


def entry_at(task: str, level: int | None, attributes: dict[str, Any], index: int) -> dict[str, Any]:
    """Returns an item as the generator makes it: `question`, `answer` and `metadata`.

    Args:
        task: Name of the generator.
        level: Level of its curriculum; None for its defaults.
        attributes: Settings that override those of the level.
        index: Number of the item, below 2^31; the same number gives the same item.
    """
    written = json.dumps(attributes)
    with redirect_stdout(sys.stderr):  # stdout may be a JSON document of the command, and some generators print
        if task in _WHOLE:
            return _dataset(task, level, written, seed=index, size=_WHOLE_SIZE)[index % _WHOLE_SIZE]
        return _scorer(task, level, written)[index]


def load_scorer() -> Callable[..., float]:
    """Imports the package, which takes seconds, and returns `score`."""
    import_module("reasoning_gym")
    return score


def score(task: str, level: int | None, attributes: dict[str, Any], answer: str, entry: str) -> float:
    """Returns the scorer's score of an answer, from 0 to 1. It may loop or exhaust memory: call it in a worker process.

    Args:
        task: Name of the generator.
        level: Level of its curriculum with which the item was made.
        attributes: Settings with which the item was made.
        answer: The answer, for which `is_scorable` holds.
        entry: The item as JSON.

    Raises:
        ValueError: The scorer returned no number from 0 to 1.
    """
    scored = float(_scorer(task, level, json.dumps(attributes)).score_answer(answer, json.loads(entry)))
    if not (math.isfinite(scored) and 0.0 <= scored <= 1.0):
        raise ValueError(f"the scorer of {task} returned {scored}")
    return scored


@lru_cache(maxsize=128)
def _scorer(task: str, level: int | None, attributes: str) -> Any:
    """Returns a cached generator, which scores and, unless the task is in `_WHOLE`, makes items by number."""
    return _dataset(task, level, attributes, seed=0, size=_WHOLE_SIZE if task in _WHOLE else 2**31)


def _dataset(task: str, level: int | None, attributes: str, *, seed: int, size: int) -> Any:
    """Returns a new generator.

    Args:
        task: Its name.
        level: Level of its curriculum; None for its defaults.
        attributes: Settings that override those of the level, as JSON.
        seed: Its seed.
        size: Number of its items.
    """
    factory = _factory()
    kind, config_kind = factory.DATASETS[task]
    fixed = {"seed": seed, "size": size}
    if level is None:
        config = config_kind(**fixed)
    else:
        curriculum = factory.CURRICULA[task]()
        curriculum.set_global_level(level)
        config = curriculum.generate_configuration(fixed)
    config = dataclasses.replace(config, **json.loads(attributes))
    if hasattr(config, "validate"):
        config.validate()
    return kind(config=config)
