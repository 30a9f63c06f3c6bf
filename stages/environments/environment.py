"""The interface of every environment, and the lookup of environments by name.

An environment is a folder beside this file and a line in one of the two tables below. Its config is a line in
`stages.environments.tasks` or `stages.environments.generate`. Its optional methods are the protocols of
`stages.environments.capabilities`.
"""

from collections.abc import Sequence
from importlib import import_module
from typing import Any, Protocol

from artifacts.documents.suggestions import did_you_mean
from artifacts.errors import BadInputError
from stages.environments.config import SourceConfig
from stages.environments.puzzle import Graded, Grader, Puzzle
from stages.environments.user_code.config import installed


class Environment(Protocol):
    """Asks a model questions and grades the completions.

    An environment also has one of the two capabilities that make items: `Generates` or `Lists`. A caller that needs
    another capability requests it by `capabilities.needs`, which raises the same error for all of them.
    """

    @property
    def name(self) -> str:
        """The name for people, as a recipe writes it."""
        ...

    @property
    def graders(self) -> tuple[str, ...]:
        """The rules by which its answers can be read. The setting `grader` chooses one if there are several."""
        ...

    def grade(self, text: str, puzzle: Puzzle, grader: Grader = "strict") -> Graded:
        """Returns the grade of a completion, which may be any text. It is deterministic on every machine.

        Args:
            text: The completion.
            puzzle: Its puzzle.
            grader: Rule by which answers are read, if the environment has several.
        """
        ...


class Named(Protocol):
    """A config of an environment."""

    @property
    def environment(self) -> str: ...


_ENVIRONMENTS = {
    "temporal_clue": "stages.environments.temporal_clue.environment:TEMPORAL_CLUE",
    "zebra": "stages.environments.zebra.environment:ZEBRA",
}
"""The object of each environment by its name."""
FUNCTION, PACKAGE, VERIFIERS = "FILE.py:OBJECT", "package", "verifiers"
_BY_PREFIX = {
    "file": "stages.environments.question_file.environment:question_file",
    FUNCTION: "stages.environments.user_code.environment:user_environment",
    PACKAGE: "stages.environments.user_code.environment:user_environment",
    VERIFIERS: "stages.environments.user_code.environment:user_environment",
    "maths": "stages.environments.maths.environment:maths",
    "reasoning_gym": "stages.environments.reasoning_gym.environment:reasoning_gym",
}
"""Functions from a whole name to its environment, by first word, for names with a parameter, such as `file:number`.

The name that is stored with an item holds everything that its grading depends on, so a stored set can be graded again.
"""

_WITH_NAMES = {"reasoning_gym": "reasoning_gym:TASK", VERIFIERS: f"{VERIFIERS}:NAME"}
"""How a recipe writes kinds whose names have two parts."""


def names() -> tuple[str, ...]:
    """Returns the names of all environments that have a name without a parameter."""
    return tuple(_ENVIRONMENTS)


def names_of_kinds(kinds: Sequence[str]) -> list[str]:
    """Returns how recipes name the environments of some kinds (see `kind_of`), installed packages by their names."""
    return [
        written for kind in kinds for written in (installed() if kind == PACKAGE else [_WITH_NAMES.get(kind, kind)])
    ]


def kind_of(name: str) -> str:
    """Returns the key of a name in the two tables; an unknown name is returned unchanged."""
    word = name.partition(":")[0]
    if word in _BY_PREFIX:
        return word
    if ".py:" in name:
        return FUNCTION
    return PACKAGE if name not in _ENVIRONMENTS and name in installed() else name


def get(name: str) -> Environment:
    """Returns the environment of a name.

    Raises:
        BadInputError: There is no such environment.
    """
    if (kind := kind_of(name)) in _BY_PREFIX:
        return _loaded(_BY_PREFIX[kind])(name)
    if name not in _ENVIRONMENTS:
        known = names_of_kinds([*_ENVIRONMENTS, *_BY_PREFIX])
        raise BadInputError("environment", f"{name[:80]!r}{did_you_mean(name, known)}", f"one of {', '.join(known)}")
    return _loaded(_ENVIRONMENTS[name])


def of(config: Named) -> Environment:
    """Returns the environment that a config selects."""
    return get(config.environment_name if isinstance(config, SourceConfig) else config.environment)


def _loaded(reference: str) -> Any:
    module, _, attribute = reference.partition(":")
    return getattr(import_module(module), attribute)
