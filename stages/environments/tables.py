"""Converts tables of puzzles to `Puzzle` objects and back, and grades to columns."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from typing import Any, cast, get_args

import polars as pl

from artifacts.documents.conversation import readable
from artifacts.errors import BadInputError, IntegrityError
from artifacts.reading import Artifact
from artifacts.refs import Puzzles, Ref
from artifacts.schemas import PUZZLES, THINKING, as_table
from artifacts.store.store import Store
from stages.environments import environment
from stages.environments.capabilities import (
    AnswersCalls,
    GradesMany,
    LocatesAnswers,
    NamesThings,
    Proves,
    ReadsThoughts,
    TakesSteps,
    WritesAnswers,
    WritesDerivations,
    needs,
    offered,
)
from stages.environments.puzzle import Asserted, DeductionCounts, Graded, Grader, Parsed, Puzzle, Style, Taught
from stages.environments.single_answer import ITEM, MISSING
from stages.environments.solver_tool import Passage, write_call, write_tool_output
from stages.environments.thoughts import DEFAULT_THINKING, ThinkingConfig, answer_start

DEDUCTION_COLUMNS = tuple(field.name for field in fields(DeductionCounts))


def to_table(puzzles: Sequence[Puzzle]) -> pl.DataFrame:
    """Returns puzzles as a table of the `puzzles` schema."""
    rows = [
        {
            "prompt_id": puzzle.prompt_id,
            "environment": puzzle.environment,
            "prompt": puzzle.prompt,
            "solution": json.dumps(puzzle.solution),
            "num_clues": puzzle.num_clues,
            "difficulty": json.dumps(puzzle.difficulty),
            "seed": puzzle.seed,
            "digest": puzzle.digest,
            THINKING: puzzle.thinking.model_dump_json(),
        }
        for puzzle in puzzles
    ]
    return as_table(rows, PUZZLES)


def from_table(table: pl.DataFrame) -> list[Puzzle]:
    """Returns the puzzles in a table of the `puzzles` schema."""
    return [_puzzle(row) for row in table.iter_rows(named=True)]


def read_split(store: Store, puzzles: Ref[Puzzles], split: str) -> pl.DataFrame:
    """Returns the puzzles of a split: rows of the `puzzles` schema.

    Raises:
        BadInputError: The puzzle set has no such split.
    """
    source = Artifact.open(store, puzzles)
    if f"{split}.parquet" not in source.manifest.files:
        raise BadInputError(f"split {split!r}", "not in the puzzle set", ", ".join(source.names(".parquet")))
    return source.read_table(f"{split}.parquet", PUZZLES)


def _puzzle(row: dict[str, Any]) -> Puzzle:
    parsed: dict[str, Any] = {
        "solution": json.loads(row["solution"]),
        "difficulty": json.loads(row["difficulty"]),
        THINKING: ThinkingConfig.model_validate_json(row[THINKING]),
    }
    return Puzzle(**{**row, **parsed})


def puzzles_by_id(table: pl.DataFrame, *, thought_opened: bool = False) -> dict[str, Puzzle]:
    """Returns the puzzles in a table by their id.

    Args:
        table: A table of the `puzzles` schema.
        thought_opened: Whether the chat template of the model that answers them opens a thought in the prompt, so that
            a completion which does not close it has no answer.
    """
    return {
        puzzle.prompt_id: replace(puzzle, thinking=puzzle.thinking.after_prompt(thought_opened))
        for puzzle in from_table(table)
    }


def thinking_of(table: pl.DataFrame) -> ThinkingConfig:
    """Returns the rule of thinking of a table of puzzles, which is the same for all puzzles of a set."""
    return ThinkingConfig.model_validate_json(table[THINKING][0]) if len(table) else DEFAULT_THINKING


def graded_texts(answered: Iterable[tuple[str, str]], known: Mapping[str, Puzzle], grader: Grader) -> list[Graded]:
    """Returns the grades of completions, in order.

    Args:
        answered: Each completion, with the id of its puzzle.
        known: Puzzles by id.
        grader: Rule of grading (see `stages.environments.environment.Environment.grade`).

    Raises:
        IntegrityError: A puzzle is not among the known puzzles.
    """
    pairs = list(answered)
    by_environment: dict[str, list[int]] = {}
    for number, (_, prompt_id) in enumerate(pairs):
        by_environment.setdefault(_known(prompt_id, known).environment, []).append(number)
    grades: dict[int, Graded] = {}
    for numbers in by_environment.values():
        texts_there = [(pairs[number][0], known[pairs[number][1]]) for number in numbers]
        grades |= dict(zip(numbers, grades_of(texts_there, grader), strict=True))
    return [grades[number] for number in range(len(pairs))]


def grades_of(answered: Sequence[tuple[str, Puzzle]], grader: Grader = "strict") -> list[Graded]:
    """Returns the grades of completions, each given with its puzzle, in order; all puzzles are of one environment.

    Graders see the answer only, without thoughts (see `thoughts.answer_start`), except those of `ReadsThoughts`. A
    completion without an answer is not shown to them: all its answers are `missing`.

    Args:
        answered: Each completion, any text, with its puzzle.
        grader: Rule of grading (see `stages.environments.environment.Environment.grade`).
    """
    task_environment = environment.get(answered[0][1].environment) if answered else None
    whole = isinstance(task_environment, ReadsThoughts) and task_environment.reads_thoughts
    starts = [0 if whole else answer_start(text, puzzle.thinking) for text, puzzle in answered]
    said = [(text[start:], puzzle) for (text, puzzle), start in zip(answered, starts, strict=True) if start is not None]
    if task_environment is None or not said:
        graded = iter(())
    elif isinstance(task_environment, GradesMany):
        graded = iter(task_environment.grade_many(said))
    else:
        graded = iter([task_environment.grade(text, puzzle, grader) for text, puzzle in said])
    return [
        _unanswered(puzzle) if start is None else next(graded)
        for (_, puzzle), start in zip(answered, starts, strict=True)
    ]


def _unanswered(puzzle: Puzzle) -> Graded:
    """Returns the grade of a completion without an answer."""
    missing = Parsed(None, None, False, MISSING)
    return Graded(0.0, False, {question: missing for question in puzzle.solution if question != ITEM})


def answer_ends(text: str, puzzle: Puzzle, grader: Grader = "strict") -> dict[str, int]:
    """Returns the number of characters of a completion up to the end of each answer in it, by question.

    Args:
        text: The completion, any text.
        puzzle: Its puzzle, whose environment is one of `LocatesAnswers`.
        grader: Rule by which answers are read.
    """
    if (start := answer_start(text, puzzle.thinking)) is None:
        return {}
    locator = cast(LocatesAnswers, environment.get(puzzle.environment))
    return {question: start + end for question, end in locator.answer_ends(text[start:], puzzle, grader).items()}


def _known(prompt_id: str, known: Mapping[str, Puzzle]) -> Puzzle:
    if prompt_id not in known:
        raise IntegrityError(f"puzzle {prompt_id}", "sampled but not in the puzzle set", "rollouts of this set")
    return known[prompt_id]


def graders_of(table: pl.DataFrame) -> tuple[str, ...]:
    """Returns the rules by which the answers to the puzzles of a table can be read.

    In a mixture they are the rules of an environment with several; the setting that chooses one has no effect on the
    other environments. If every environment has one rule, the result is one text with the names of these rules.
    """
    if table.is_empty():
        return get_args(Grader)
    rules = [environment.get(name).graders for name in sorted(table["environment"].unique())]
    return next((item for item in rules if len(item) > 1), (", ".join(sorted({item[0] for item in rules})),))


def grader_of(table: pl.DataFrame, grader: Grader) -> str:
    """Returns the rule by which answers are read under a setting; an environment with only one rule uses that one."""
    graders = graders_of(table)
    return grader if grader in graders else graders[0]


def unread_counts(answers: pl.Series) -> dict[str, int]:
    """Returns the numbers of answers that could not be read or compared, by reason (see `Parsed.note`), sorted.

    Args:
        answers: The column `answers` of the `grades` or `results` schema.
    """
    notes = (answer["note"] for row in answers for answer in json.loads(row).values())
    return dict(sorted(Counter(note for note in notes if note).items()))


def assertions(text: str, puzzle: Puzzle) -> list[Asserted] | None:
    """Returns the statements about its puzzle that a completion asserts; None if nothing can be proved about it.

    A thought asserts nothing; see `thoughts.answer_start`.
    """
    solver = offered(environment.get(puzzle.environment), Proves)
    if solver is None:
        return None
    start = answer_start(text, puzzle.thinking)
    said = solver.deductions("" if start is None else text[start:], puzzle)
    return said and [replace(item, start=(start or 0) + item.start) for item in said]


def count_deductions(text: str, puzzle: Puzzle) -> DeductionCounts | None:
    """Returns the counts of a completion's statements by verdict; None if nothing can be proved about its puzzle."""
    asserted = assertions(text, puzzle)
    return None if asserted is None else DeductionCounts.of(asserted)


def deduction_columns(counts: DeductionCounts | None) -> dict[str, int | None]:
    """Returns counts as columns of a table; all are null if `counts` is None."""
    return dict.fromkeys(DEDUCTION_COLUMNS) if counts is None else asdict(counts)


def grade_columns(graded: Graded) -> dict[str, Any]:
    """Returns a grade as columns of a table: `accuracy`, `exact`, and `answers` as JSON."""
    answers = {question: vars(answer) for question, answer in graded.answers.items()}
    return {"accuracy": graded.accuracy, "exact": graded.exact, "answers": json.dumps(answers)}


def taught_passages(table: pl.DataFrame, taught: Taught | None, *, thought_opened: bool = False) -> list[list[Passage]]:
    """Returns the text that a model is taught for every puzzle of a table, in passages that are tokenized separately.

    Args:
        table: A table of the `puzzles` schema.
        taught: Style of the derivations, which end with the answers; `transcripts` for a call to the solver with all
            clues, its answer and the answers; None for the answers alone.
        thought_opened: Whether the chat template of the model that learns them opens a thought, which they then end.

    Raises:
        BadInputError: A puzzle's environment writes no such text, or the solver cannot decide the answers.
    """
    puzzles = from_table(table)
    if taught == "transcripts":
        texts = [_transcript(puzzle) for puzzle in puzzles]
    elif taught is not None:
        texts = [[Passage(_derivation(puzzle, taught))] for puzzle in puzzles]
    else:
        texts = [[Passage(_answer_writer(puzzle).write_answer(puzzle))] for puzzle in puzzles]
    thinking = [puzzle.thinking.after_prompt(thought_opened) for puzzle in puzzles]
    return [
        [Passage(f"{rule.before_answer}{first.text}"), *others]
        for rule, (first, *others) in zip(thinking, texts, strict=True)
    ]


def tokenizer_texts(table: pl.DataFrame, taught: Taught | None) -> list[str]:
    """Returns the texts from which a tokenizer is made: prompts and, if all environments write answers, taught texts.

    Each passage of a taught text is a text of its own, so that no token crosses its border. The prompt is repeated for
    each passage, because half of the texts must be prompts.

    Args:
        table: A table of the `puzzles` schema.
        taught: Kind of the taught texts (see `taught_passages`).
    """
    asked = [readable(prompt) for prompt in table["prompt"]]
    if not all(isinstance(environment.get(name), WritesAnswers) for name in table["environment"].unique()):
        return asked
    texts = taught_passages(table, taught)
    prompts = [prompt for prompt, passages in zip(asked, texts, strict=True) for _ in passages]
    return prompts + [passage.text for passages in texts for passage in passages]


def names_of(table: pl.DataFrame) -> list[str]:
    """Returns the names that the puzzles of a table use for people, things, places and so on, sorted."""
    found = {name: environment.get(name) for name in table["environment"].unique()}
    namers = {name: item for name, item in found.items() if isinstance(item, NamesThings)}
    puzzles = [puzzle for puzzle in from_table(table) if puzzle.environment in namers]
    return sorted({name for puzzle in puzzles for name in namers[puzzle.environment].names(puzzle)})


def _answer_writer(puzzle: Puzzle) -> WritesAnswers:
    where, remedy = "warm_start", "drop the section"
    return needs(environment.get(puzzle.environment), WritesAnswers, where, remedy)


def _derivation(puzzle: Puzzle, style: Style) -> str:
    where, remedy = "warm_start.text = 'derivations'", "set warm_start.text to answers"
    writer = needs(environment.get(puzzle.environment), WritesDerivations, where, remedy)
    text = writer.write_derivation(puzzle, style)
    if text.strip() in ("", _answer_writer(puzzle).write_answer(puzzle)):
        raise BadInputError(
            "warm_start.text = 'derivations'",
            f"the environment {puzzle.environment} wrote no step for puzzle {puzzle.prompt_id}",
            "an environment that writes derivations",
            "set warm_start.text to answers",
        )
    return text


def _transcript(puzzle: Puzzle) -> list[Passage]:
    where = "warm_start.text = 'transcripts'"
    tool = needs(environment.get(puzzle.environment), AnswersCalls, where, "set warm_start.text to answers")
    asked = tool.asked(puzzle)
    tool_output = tool.tool_output(asked, puzzle)
    if len(tool_output) < len(puzzle.solution):
        raise BadInputError(
            where,
            f"the solver does not decide all answers of puzzle {puzzle.prompt_id}; it says "
            f"{'; '.join(tool_output)[:80]!r}",
            "puzzles that it solves within its limit",
            "choose a smaller puzzles.puzzle, or another warm_start.text",
        )
    answer = _answer_writer(puzzle).write_answer(puzzle)
    return [Passage(write_call(asked)), Passage(write_tool_output(tool_output), by_tool=True), Passage(answer)]


def tool_outputs(table: pl.DataFrame) -> Callable[[str, list[str]], list[str]]:
    """Returns a function from a puzzle's id and the statements of a call to the answer of the puzzle's solver.

    Raises:
        BadInputError: An environment of the table has no solver that completions can ask.
    """
    tools = {
        name: needs(environment.get(name), AnswersCalls, "sampling.tool_calls", "set it to 0")
        for name in table["environment"].unique()
    }
    by_id = puzzles_by_id(table)

    def tool_output(prompt_id: str, statements: list[str]) -> list[str]:
        puzzle = by_id[prompt_id]
        return tools[puzzle.environment].tool_output(statements, puzzle)

    return tool_output


def are_episodes(table: pl.DataFrame) -> bool:
    """Returns whether a table of the `puzzles` schema has episodes of several turns."""
    return any(isinstance(environment.get(name), TakesSteps) for name in table["environment"].unique())


def observed_by_id(
    table: pl.DataFrame, *, thought_opened: bool = False
) -> Callable[[str, Sequence[str]], str | None] | None:
    """Returns a function from the id of an episode and its turns to an observation (see `TakesSteps.observe`).

    Args:
        table: A table of the `puzzles` schema.
        thought_opened: As in `puzzles_by_id`.

    Returns:
        The function; None if the puzzles of the table are not episodes.
    """
    if not are_episodes(table):
        return None
    by_id = puzzles_by_id(table, thought_opened=thought_opened)

    def observe(prompt_id: str, turns: Sequence[str]) -> str | None:
        puzzle = by_id[prompt_id]
        return cast(TakesSteps, environment.get(puzzle.environment)).observe(turns, puzzle)

    return observe
