"""The capabilities that an environment may have besides grading, each as a protocol, and the error if one is missing.

An environment has a capability if it has its methods; nothing else declares it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol, TypeVar, cast, runtime_checkable

from artifacts.errors import BadInputError
from stages.environments.environment import Environment
from stages.environments.puzzle import Asserted, Checked, Graded, Grader, Kinds, Puzzle, Style

C = TypeVar("C")


@runtime_checkable
class Generates(Protocol):
    """Makes puzzles from seeds. They are independent of one another, so several processes draw them."""

    def generate(self, config: Any, seed: int) -> Puzzle:
        """Returns a puzzle, the same for (config, seed) on every machine. A logic puzzle has exactly one solution."""
        ...


@dataclass(frozen=True)
class Items:
    """The items of a set.

    Attributes:
        splits: Items by split; the sizes are those that were requested, and no item is in two splits.
        facts: Facts for the manifest of the set.
        warnings: Sentences for the log.
    """

    splits: dict[str, list[Puzzle]]
    facts: dict[str, Any] = field(default_factory=dict[str, Any])
    warnings: tuple[str, ...] = ()


def divided(items: Sequence[Puzzle], sizes: Mapping[str, int]) -> dict[str, list[Puzzle]]:
    """Returns the first items by split, the held-out ones first, so that they stay the same when `train` grows."""
    val, test = sizes["val"], sizes["test"]
    train = items[val + test : val + test + sizes["train"]]
    return {"train": list(train), "val": list(items[:val]), "test": list(items[val : val + test])}


def in_no_split(where: str, unused: int, of: str, sizes: Mapping[str, int]) -> str:
    """Returns a warning that a source has more items than its splits take.

    Args:
        where: The source.
        unused: Number of items that no split has.
        of: Number of all items, and what they are.
        sizes: Sizes of the splits.
    """
    wanted = ", ".join(f"puzzles.{split} = {size}" for split, size in sizes.items())
    return f"{where}: {unused} of {of} are in no split ({wanted})"


class ItemSource(Protocol):
    """An opened source of items."""

    @property
    def identity(self) -> dict[str, Any]:
        """The digest or version of the source's content, by name. It is part of the set's identity."""
        ...

    def items(self, sizes: Mapping[str, int], seed: int) -> Items:
        """Returns the items of each split.

        Args:
            sizes: Number of items by split: `train`, `val`, `test`.
            seed: Seed of the choice. The same seed and identity give the same items on every machine.

        Raises:
            BadInputError: There are too few items, or one cannot be used.
        """
        ...


@runtime_checkable
class Lists(Protocol):
    """Reads or makes its items all at once. The config's class is a `stages.environments.config.SourceConfig`."""

    def source(self, config: Any) -> ItemSource:
        """Opens the source of the items.

        Raises:
            BadInputError: It does not exist, or cannot be read.
        """
        ...


@runtime_checkable
class GradesMany(Protocol):
    """Grades many completions at once, if that is faster, for example in several processes."""

    def grade_many(self, answered: Sequence[tuple[str, Puzzle]]) -> list[Graded]:
        """Returns the grades of completions, each given with its puzzle, in order."""
        ...


@runtime_checkable
class HasLevels(Protocol):
    """Named difficulties."""

    @property
    def levels(self) -> dict[str, Any]:
        """The configs for `generate` by name of difficulty, easiest first."""
        ...


@runtime_checkable
class ReadsPublished(Protocol):
    """Reads the published format: `{num_clues, prompt, solution}`."""

    @property
    def name(self) -> str:
        """The name of the environment."""
        ...

    @property
    def mark(self) -> str:
        """Words that occur in every prompt of this environment and in no prompt of another."""
        ...

    def read(self, prompt_id: str, num_clues: int, prompt: str, solution: dict[str, str]) -> Puzzle:
        """Returns a puzzle from its text and solution.

        Raises:
            BadInputError: The text is not of this environment, or the solution does not fit it.
        """
        ...


@runtime_checkable
class WritesAnswers(Protocol):
    """Right answers as text, for warm starts on answers."""

    def write_answer(self, puzzle: Puzzle) -> str:
        """Returns the right answers as `grade` reads them."""
        ...


@runtime_checkable
class WritesDerivations(Protocol):
    """Derivations, for warm starts."""

    def write_derivation(self, puzzle: Puzzle, style: Style = "plain") -> str:
        """Returns a short derivation, whose steps are all proved, followed by the right answers.

        `Proves.deductions` can read every step, in every style.

        Raises:
            BadInputError: The puzzle's text has a clue that cannot be read, or the clues do not determine the answers.
        """
        ...


@runtime_checkable
class LocatesAnswers(Protocol):
    """The places of answers in a completion."""

    def answer_ends(self, text: str, puzzle: Puzzle, grader: Grader = "strict") -> dict[str, int]:
        """Returns the number of characters up to the end of each answer that `grade` can read, by question."""
        ...


@runtime_checkable
class ChecksFormat(Protocol):
    """A layout of answers that `grade.reward.format_weight` rewards."""

    def well_formed(self, text: str, puzzle: Puzzle) -> bool:
        """Returns whether a whole completion, thoughts included, has the layout that the prompt asks for."""
        ...


@runtime_checkable
class NamesThings(Protocol):
    """The names in a puzzle, which get tokens of their own in a tokenizer that is made for derivations."""

    def names(self, puzzle: Puzzle) -> tuple[str, ...]:
        """Returns the names that the puzzle's text uses for people, things, places and so on, without articles."""
        ...


@runtime_checkable
class ListsValues(Protocol):
    """The values that an answer may have."""

    def answer_values(self, puzzle: Puzzle) -> dict[str, tuple[str, ...]]:
        """Returns for each letter the values that the puzzle's text allows as its answer."""
        ...


@runtime_checkable
class HasKinds(Protocol):
    """Kinds of clues and questions, for the report of a set."""

    def kinds(self, puzzle: Puzzle) -> Kinds:
        """Returns the numbers of the puzzle's clues and questions by kind; those that cannot be read do not count."""
        ...


@runtime_checkable
class Proves(Protocol):
    """A solver: checks puzzles, and proves or refutes the statements of a completion."""

    def check(self, puzzle: Puzzle, *, minimal: bool = False) -> Checked:
        """Solves the puzzle from its prompt only and compares the result with its solution.

        The result has no answers if the clues contradict one another.

        Args:
            puzzle: The puzzle.
            minimal: Whether to also prove for each clue that there is another solution without it.
        """
        ...

    def deductions(self, text: str, puzzle: Puzzle) -> list[Asserted] | None:
        """Returns the statements about the puzzle in a completion, which may be any text, in order and with verdicts.

        Returns:
            The statements, repeated ones marked as such; None if nothing can be proved, because a clue cannot be read
            or the clues contradict one another.
        """
        ...

    def premises(self, statement: str, puzzle: Puzzle) -> tuple[int, ...] | None:
        """Returns numbers (from 1) of clues that entail a statement, or entail its opposite if they contradict it.

        None of these clues can be left out. A restated clue has its own number as its premise. The tuple is empty if
        the rules of the environment alone decide the statement.

        Args:
            statement: The words of one statement, as in `Asserted.text`.
            puzzle: The puzzle.

        Returns:
            The numbers in ascending order; None if the clues leave the statement open, if the words are not a
            statement, or if nothing can be proved about the puzzle.
        """
        ...


@runtime_checkable
class AnswersCalls(Protocol):
    """A solver that completions can ask (see `stages.environments.solver_tool`)."""

    def tool_output(self, statements: list[str], puzzle: Puzzle) -> list[str]:
        """Returns the solver's answer to some statements: sentences in the words of the puzzle, or a fixed sentence.

        The sentences in the words of the puzzle are proved from the rules and the statements that can be read.

        Args:
            statements: Lines of a call, which may be any text.
            puzzle: The puzzle whose questions are answered.
        """
        ...

    def asked(self, puzzle: Puzzle) -> list[str]:
        """Returns the statements of a call that decides all questions: the puzzle's clues.

        Raises:
            BadInputError: The puzzle's text has a clue that cannot be read.
        """
        ...


@runtime_checkable
class TakesSteps(Protocol):
    """Answers each turn of a completion with an observation, until the episode ends."""

    def observe(self, turns: Sequence[str], puzzle: Puzzle) -> str | None:
        """Returns the observation after the last turn; None if the episode ends with it.

        Args:
            turns: What the model wrote, turn by turn, from the start of the episode; texts without marks (see
                `stages.environments.solver_tool.without_marks`).
            puzzle: The episode.
        """
        ...


@runtime_checkable
class ReadsThoughts(Protocol):
    """May grade whole completions, with their thoughts."""

    @property
    def reads_thoughts(self) -> bool:
        """Whether it does, instead of grading answers only."""
        ...


_ABILITIES: dict[type[Any], str] = {
    Generates: "generate puzzles from a seed",
    Lists: "list its items",
    GradesMany: "grade many completions at once",
    HasLevels: "name levels of difficulty",
    ReadsPublished: "read the published format",
    WritesAnswers: "write an answer",
    WritesDerivations: "derive an answer",
    LocatesAnswers: "find the place of an answer in a completion",
    ChecksFormat: "check the format of an answer",
    NamesThings: "list the names in a puzzle",
    ListsValues: "list the values of an answer",
    HasKinds: "sort clues and questions by kind",
    Proves: "solve a question or prove a statement",
    AnswersCalls: "answer calls of a solver",
    TakesSteps: "answer in several turns",
    ReadsThoughts: "read thoughts",
}


@lru_cache(maxsize=256)
def _has(environment: Environment, capability: type[Any]) -> bool:
    """Asks once, because the question takes 0.1 ms on CPython 3.11, as long as the grade of a short completion."""
    return isinstance(environment, capability)


def offered(environment: Environment, capability: type[C]) -> C | None:
    """Returns the environment as one that has a capability, a protocol of this module; None if it lacks it."""
    return cast(C, environment) if _has(environment, capability) else None


def missing(environment: Environment, capability: type[Any]) -> str | None:
    """Returns a clause that names the capability that an environment lacks; None if it has it."""
    if _has(environment, capability):
        return None
    return f"the environment '{environment.name}' cannot {_ABILITIES[capability]}"


def needs(environment: Environment, capability: type[C], where: str, remedy: str) -> C:
    """Returns the environment as one that has a capability.

    Args:
        environment: The environment.
        capability: A protocol of this module.
        where: The setting or command that needs it.
        remedy: What the user can do instead.

    Raises:
        BadInputError: The environment lacks the capability.
    """
    if (reason := missing(environment, capability)) is not None:
        raise BadInputError(where, reason, "an environment that can, such as temporal_clue", remedy)
    return cast(C, environment)
