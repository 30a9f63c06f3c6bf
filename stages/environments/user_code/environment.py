"""The environment of a user's object."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from itertools import zip_longest
from pathlib import Path
from typing import Any, NoReturn

from artifacts.documents.conversation import stored_prompt
from artifacts.documents.parsing import text_problem
from artifacts.documents.suggestions import did_you_mean
from artifacts.errors import BadInputError
from stages.environments.capabilities import Items, divided, in_no_split
from stages.environments.puzzle import Graded, Grader, Parsed, Puzzle
from stages.environments.question_file.config import place_of
from stages.environments.single_answer import ANSWER, ITEM, single_grade, single_item
from stages.environments.solver_tool import read_episode
from stages.environments.thoughts import answer_start
from stages.environments.user_code.config import FunctionConfig, PackageConfig, VerifiersConfig
from stages.processes.limited_calls import CallResult, LimitedCalls, LoadError
from stages.processes.user_file import changed, digest_of, file_of

UserConfig = FunctionConfig | PackageConfig | VerifiersConfig
_LOAD = "stages.environments.user_code.worker:load"
_ITEMS_S = 600.0
"""CPU seconds within which all items are made."""
STEPS = "@steps"
"""End of the stored name of an object with the methods `reset` and `step`."""
_PACKAGES = ("package", "verifiers")
"""Words in place of a file."""
_REPEATED = 8
"""Least number of completions that are graded twice; of fewer completions all are, except a single one."""
_REPEATED_ITEMS = 32
"""Largest number of items that are made twice more and compared. Making all items again may take minutes."""
_MOST_REQUESTS = 4
"""Number of requests for items, each for twice as many as the one before, after which no more items are expected."""
_NAME = re.compile(
    r"(?P<location>package|verifiers|.*\.py):(?P<object>[^:@]+)@(?P<version>[^@]+)@(?P<limit_s>[-+.e0-9]+)"
    r"(@(?P<arguments>\{.*\}))?(?P<steps>@steps)?",
    re.DOTALL,
)


class UserEnvironment:
    """An object with the methods `items` and `grade`, which are called in processes of their own.

    Args:
        location: The Python file as the items name it (see `config.file_of`); `package` for an entry point, `verifiers`
            for an environment of that package.
        target: Name of the object in the file, of the entry point, or of the environment.
        version: Digest of the file, or version of the package.
        limit_s: CPU seconds for a completion.
        arguments: Arguments of an environment of verifiers, as JSON.
    """

    graders = ("function",)
    _graded_by, _expected = "grade", "a number from 0 to 1"

    def __init__(self, location: str, target: str, version: str, limit_s: float, arguments: str = "") -> None:
        self._location, self._target, self._version, self._limit_s = location, target, version, limit_s
        self._arguments = arguments
        self.name = target if location == "package" else f"{Path(location).name}:{target}"

    @property
    def reads_thoughts(self) -> bool:
        """Whether it gets whole completions: the parsers of verifiers look for thoughts themselves."""
        return self._location == "verifiers"

    def source(self, config: UserConfig) -> "UserSource":
        """Opens the source of the items."""
        return UserSource(self, config)

    def level_names(self) -> list[str]:
        """Returns the names of its levels of difficulty; empty if it has none."""
        return self._called(self._grading, "levels")

    def grade(self, text: str, puzzle: Puzzle, grader: Grader = "strict") -> Graded:
        """Returns the grade of a completion; its accuracy is the score that the object gives."""
        return self.grade_many([(text, puzzle)])[0]

    def grade_many(self, answered: Sequence[tuple[str, Puzzle]]) -> list[Graded]:
        """Returns the grades of completions, each given with its item, in order.

        A completion whose grading fails gets 0. A few of the completions are graded twice.

        Raises:
            BadInputError: A score is not from 0 to 1, or differs between two gradings; the object cannot be loaded.
        """
        calls = [self._call(text, puzzle) for text, puzzle in answered]
        again = range(0, len(calls), max(1, len(calls) // _REPEATED)) if len(calls) > 1 else range(0)
        try:
            outcomes = self._grading.map([*calls, *(calls[i] for i in again)])
        except LoadError as error:
            self._refuse_to_load(error)
        for outcome, (text, puzzle) in zip(outcomes, [*answered, *(answered[i] for i in again)], strict=True):
            if isinstance(outcome.value, str):
                raise self._wrong(f"returned {outcome.value}", self._expected, text, puzzle)
        for i, second in zip(again, outcomes[len(calls) :], strict=True):
            scores = [_said(outcomes[i]), _said(second)]
            if None not in scores and scores[0] != scores[1]:
                found = f"graded the same completion with {scores[0]} and then {scores[1]}"
                raise self._wrong(found, "the same score each time", *answered[i])
        return [_graded(outcome) for outcome in outcomes[: len(calls)]]

    def _call(self, text: str, puzzle: Puzzle) -> tuple[Any, ...]:
        """Returns the method that grades a completion, and its arguments."""
        return "grade", text, puzzle.solution[ITEM]

    def items(self, count: int, seed: int, level: str | None) -> tuple[list[dict[str, Any]], bool]:
        """Returns the items that the object makes when it is asked for `count` of them, and whether they are episodes.

        Raises:
            BadInputError: It cannot be loaded, raises, or makes an item that cannot be used.
        """
        calls = self._processes(_ITEMS_S, workers=1)
        try:
            items, episodes = self._called(calls, "items", count, seed, level)
            return [json.loads(item) for item in items], episodes
        finally:
            calls.close()

    @cached_property
    def _grading(self) -> LimitedCalls:
        return self._processes(self._limit_s)

    @property
    def _place(self) -> str:
        """The path of the file, or the word in its place."""
        if self._location in _PACKAGES:
            return self._location
        return str(file_of(self._location, self._version).resolve())

    def _processes(self, limit_s: float, workers: int | None = None) -> LimitedCalls:
        start = self._place, self._target, self._version, self._arguments
        return LimitedCalls(_LOAD, *start, limit_s=limit_s, workers=workers)

    def _called(self, calls: LimitedCalls, method: str, *arguments: Any) -> Any:
        try:
            outcome = calls.call(method, *arguments)
        except LoadError as error:
            self._refuse_to_load(error)
        if outcome.failure is not None:
            raise BadInputError(f"{self.name}.{method}", outcome.failure, "a method that returns", "correct the method")
        return outcome.value

    def _refuse_to_load(self, error: LoadError) -> NoReturn:
        """Raises the error for an object that cannot be loaded; a changed file is named as such."""
        if self._location not in _PACKAGES and (now := digest_of(Path(self._place))) != self._version:
            raise changed(self._place, self._version, now) from error
        expected = (
            "an environment without tools, whose rubric grades each completion by functions"
            if self._location == "verifiers"
            else "an object with the methods items(self, count, seed) and grade(self, completion, item), or "
            "reset(self, seed) and step(self, completion)"
        )
        raise BadInputError(self.name, f"cannot be loaded ({error.found})", expected, "correct it") from error

    def _wrong(self, found: str, expected: str, text: str, puzzle: Puzzle) -> BadInputError:
        where = f"{self.name}.{self._graded_by}, item {puzzle.prompt_id}, completion {text[:80]!r}"
        return BadInputError(where, found, expected, "correct the method, and start a new run")


class StepEnvironment(UserEnvironment):
    """An object with the methods `reset` and `step`; a completion is an episode of several turns.

    An episode is played again from its start for each observation and each grade, so nothing is lost with a process.
    """

    _graded_by, _expected = "step", "a reward from 0 to 1, and the same observations each time"

    @property
    def reads_thoughts(self) -> bool:
        """True: each turn may have a thought, which `_answers` leaves out."""
        return True

    def observe(self, turns: Sequence[str], puzzle: Puzzle) -> str | None:
        """Returns the observation after the last turn; None if the episode ends, also if a step fails."""
        try:
            outcome = self._grading.call("observe", self._answers(turns, puzzle), puzzle.solution[ITEM])
        except LoadError as error:
            self._refuse_to_load(error)
        return outcome.value

    def _call(self, text: str, puzzle: Puzzle) -> tuple[Any, ...]:
        turns, observations = read_episode(text)
        return "episode", self._answers(turns, puzzle), observations, puzzle.solution[ITEM]

    def _answers(self, turns: Sequence[str], puzzle: Puzzle) -> list[str]:
        """Returns what an object reads of turns: their answers, without thoughts; a turn without an answer is empty."""
        if self._location == "verifiers":
            return list(turns)
        starts = [answer_start(turn, puzzle.thinking) for turn in turns]
        return ["" if start is None else turn[start:] for turn, start in zip(turns, starts, strict=True)]


class UserSource:
    """The items of a user's object."""

    def __init__(self, environment: UserEnvironment, config: UserConfig) -> None:
        self._environment, self._config = environment, config
        if isinstance(config, FunctionConfig):
            digest = digest_of(Path(config.location or ""))
            if config.sha256 != digest:
                raise changed(config.environment.rpartition(":")[0], str(config.sha256), digest)
            self.identity: dict[str, Any] = {"sha256": digest}
        else:
            self.identity = {"version": config.version}

    def items(self, sizes: Mapping[str, int], seed: int) -> Items:
        """Returns different items for each split, the held-out ones first, so that they stay when `train` grows.

        Raises:
            BadInputError: There are too few different items, or one cannot be used.
        """
        total, level = sum(sizes.values()), getattr(self._config, "level", None)
        if level is not None and level not in (known := self._environment.level_names()):
            expected = ", ".join(known) or f"no level, because {self._environment.name} has none"
            raise BadInputError("puzzles.puzzle.level", f"{level!r}{did_you_mean(level, known)}", expected)
        puzzles: dict[str, Puzzle] = {}
        made = requested = given = 0
        for doubling in range(_MOST_REQUESTS):
            requested = total << doubling
            items, episodes = self._environment.items(requested, seed, level)
            puzzles, given = {}, len(items)
            for item in items:
                puzzle = self._puzzle(item, len(puzzles), episodes=episodes)
                puzzles.setdefault(puzzle.digest, puzzle)
            if len(puzzles) >= total or len(items) <= made:
                break
            made = len(items)
        self._check_repeatable(min(requested, _REPEATED_ITEMS), seed, level)
        if len(puzzles) < total:
            raise BadInputError(
                f"{self._environment.name}.items",
                f"{len(puzzles)} different prompts for items(count={requested}, seed={seed})",
                f"at least {total}",
                "lower puzzles.train, puzzles.val or puzzles.test, or make more items",
            )
        place = {"file": self._config.location, "place": place_of(self._config.location)}
        unused = len(puzzles) - total if given > requested else 0  # `items` returned all that it has
        warnings = (in_no_split(self._environment.name, unused, f"{len(puzzles)} items", sizes),) if unused else ()
        return Items(divided([*puzzles.values()], sizes), place if self._config.location else {}, warnings)

    def _check_repeatable(self, count: int, seed: int, level: str | None) -> None:
        """Checks that two processes that are asked for the same few items make the same ones."""
        first, second = (self._environment.items(count, seed, level)[0] for _ in range(2))
        for number, (one, other) in enumerate(zip_longest(first, second, fillvalue={})):
            if one != other:
                raise BadInputError(
                    f"{self._environment.name}.items, item {number}",
                    f"{_difference(one, other)} for items(count={count}, seed={seed})",
                    "the same items each time",
                    "make them from random.Random(seed) alone, without time, sets or global state",
                )

    def _puzzle(self, item: dict[str, Any], number: int, *, episodes: bool) -> Puzzle:
        prompt = item["prompt"] if isinstance(item["prompt"], str) else stored_prompt(item["prompt"])
        if problem := text_problem(prompt):
            raise BadInputError(f"{self._environment.name}.items, item {number}", problem, "a text", "remove it")
        answer = item.get("answer")
        solution = {ANSWER: "" if answer is None else str(answer), ITEM: json.dumps(item)}
        name = self._config.environment_name
        if not episodes:
            return single_item(f"item-{number:06d}", name, prompt, solution)
        # Episodes that begin alike may go on differently, so their digests are those of all that sets them. The number
        # of a row in a data set of verifiers, `example_id`, is not: a question may stand there twice.
        episode = single_item(f"item-{number:06d}", f"{name}{STEPS}", prompt, solution, seed=item.get("seed"))
        sets = json.dumps({field: value for field, value in item.items() if field != "example_id"})
        return replace(episode, digest=hashlib.sha256(sets.encode()).hexdigest())


def _difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """Returns a field in which two items differ, with both values."""
    name = next(name for name in (*one, *other) if name not in one or name not in other or one[name] != other[name])
    values = (repr(item[name])[:60] if name in item else "nothing" for item in (one, other))
    return f"{name!r} is {' and then '.join(values)}"


def _said(outcome: CallResult) -> str | None:
    """Returns what the method itself said of a completion; None if its process was ended, as on a busy machine."""
    if outcome.failure is not None:
        return "an error" if outcome.failure.startswith("raised ") else None
    return f"{outcome.value:g}"


def _graded(outcome: CallResult) -> Graded:
    if outcome.failure is not None:
        return single_grade(None, 0.0, outcome.failure)
    words, right = f"score {outcome.value:g}", outcome.value >= 1.0
    return Graded(outcome.value, right, {ANSWER: Parsed(words, None, right)})  # what was answered is not known


@lru_cache(maxsize=64)
def user_environment(name: str) -> UserEnvironment:
    """Returns the environment of a stored name, `FILE.py:OBJECT@DIGEST@SECONDS` or `package:NAME@VERSION@SECONDS`.

    Arguments of an environment of verifiers follow. The name of one with several turns ends in `STEPS`.

    Raises:
        BadInputError: It is no such name.
    """
    parts = _NAME.fullmatch(name)
    if parts is None:
        expected = "FILE.py:OBJECT below [puzzles.puzzle] of a recipe"
        raise BadInputError("environment", repr(name[:80]), expected, "name it in a recipe, and train with it")
    kind = StepEnvironment if parts["steps"] else UserEnvironment
    return kind(parts["location"], parts["object"], parts["version"], float(parts["limit_s"]), parts["arguments"] or "")
