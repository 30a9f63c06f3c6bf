"""`deerstalker solve`: one prompt, one engine, no flow."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from rich.table import Table
from rich.text import Text

from artifacts.documents.parsing import is_file
from artifacts.errors import BadInputError
from artifacts.refs import Ref
from artifacts.store.store import Store
from flows.cli.console.options import MACHINE, Flag, Machine, Optional, Repeated, Stored
from flows.cli.console.output import print_json, terminal
from flows.cli.console.profiles import check_devices
from flows.cli.console.puzzle_checks import not_provable, puzzle_at
from flows.cli.console.texts import read_text_argument
from flows.config.settings import validate
from flows.report.text.visible import visible
from stages.environments.capabilities import AnswersCalls, Proves, needs
from stages.environments.environment import get
from stages.environments.published import of_text, read_puzzles
from stages.environments.puzzle import Graded, Puzzle
from stages.environments.thoughts import DEFAULT_THINKING
from stages.processes.scratch import scratch_folder

if TYPE_CHECKING:
    from stages.models.source import FetchedModel, StoredModel
    from stages.sampling.client import GroupSamples, SampledCompletion
    from stages.sampling.config import SamplingConfig

_FORMS = "a puzzle as .json, a text file, or RUN:SPLIT with train, val or test"


@dataclass(frozen=True)
class AskedPrompt:
    """A prompt for the model.

    Attributes:
        puzzle: The puzzle with its solution; None for a prompt from a text file or stdin.
    """

    prompt: str
    puzzle: Puzzle | None


def solve(
    file: Annotated[str, Parameter(allow_leading_hyphen=True)],
    /,
    *,
    checkpoint: str,
    index: int = 0,
    samples: int = 1,
    temperature: float = 0.0,
    max_tokens: Annotated[int | None, Optional] = None,
    tool_calls: Annotated[int | None, Optional] = None,
    stop: Annotated[tuple[str, ...], Repeated] = (),
    stop_token_ids: Annotated[tuple[int, ...], Repeated] = (),
    explain: Flag = False,
    options: Machine = MACHINE,
) -> None:
    """Prints a model's answers to one puzzle, with their grades if the solution is known.

    Args:
        file: Puzzles as JSON in the published format; RUN:SPLIT with train, val or test; a prompt as plain text; or -
            to read a prompt from stdin.
        checkpoint: A run (its promoted checkpoint), RUN@ITERATION, a checkpoint's key, or any other form that evaluate
            takes.
        index: Number of the puzzle in the file or split, from 0.
        samples: Number of answers; several need a temperature above 0.
        temperature: Sampling temperature; 0 takes the most likely answer.
        max_tokens: Maximum length of an answer, in tokens; by default that of the run's training, or 256 for others.
        tool_calls: Number of times that an answer may ask the environment's solver; by default as in the run's
            training.
        stop: String that ends an answer; may be repeated; by default as in the run's training.
        stop_token_ids: Token that ends an answer, besides the model's own; may be repeated; by default as in the run's
            training.
        explain: Print the answer line by line with a verdict on each statement about the puzzle, the clues that decide
            it, and the first false step.
    """
    check_devices(options)
    from flows.config.limits import as_trained
    from flows.lookup.checkpoints import trained_sampling
    from stages.sampling.config import SamplingConfig
    from stages.strategies.config import check_temperatures

    question = read_question(file, index, options.store)
    explained = explained_puzzle(question, file) if explain else None
    settings: dict[str, Any] = {"samples_per_prompt": samples, "temperature": temperature}
    limits = {
        "max_tokens": max_tokens,
        "tool_calls": tool_calls,
        "stop": stop or None,
        "stop_token_ids": stop_token_ids or None,
    }
    settings |= {name: value for name, value in limits.items() if value is not None}
    given = validate(SamplingConfig, settings, "solve")
    check_temperatures(given, "solve")
    sampling = as_trained(given, trained_sampling(checkpoint, Store.open(options.store)))
    tool_output = solver_of(question, file) if sampling.tool_calls else None
    completions, opened = _completions(question, checkpoint, sampling, options, tool_output)
    puzzle, judge = (_after_prompt(item, opened) for item in (question.puzzle, explained))
    print_answers(puzzle, checkpoint, completions, options, judge)


def _after_prompt(puzzle: Puzzle | None, opened: bool) -> Puzzle | None:
    """Returns a puzzle, if there is one, with one model's thinking rule (see `ThinkingConfig.after_prompt`)."""
    return puzzle and replace(puzzle, thinking=puzzle.thinking.after_prompt(opened))


def _completions(
    question: AskedPrompt,
    checkpoint: str,
    sampling: "SamplingConfig",
    options: Machine,
    tool_output: Callable[[list[str]], list[str]] | None,
) -> "tuple[Sequence[SampledCompletion], bool]":
    """Starts an engine with the checkpoint and returns its completions of the prompt, which may ask the solver.

    The second value is whether the chat template opens a thought (see `stages.sampling.collect.opens_thought`).
    """
    import logging

    from flows.config.recipes import load_profile
    from flows.lookup.checkpoints import find_checkpoint
    from stages.environments.tables import observed_by_id, to_table
    from stages.models.tokenizers.chat import ChatTokenizer
    from stages.sampling.client import Prompt
    from stages.sampling.collect import longest_sequence, opens_thought
    from stages.sampling.engine import Engine
    from stages.sampling.turns import Steps, Tool

    hardware = load_profile(options.profile, options.set_profile).engine
    if hardware.replicas == "auto" and not hardware.external_urls:
        hardware = hardware.model_copy(update={"replicas": 1})  # one group cannot use a second engine
    store = Store.open(options.store)
    source = find_checkpoint(checkpoint, store)
    logging.getLogger("deerstalker").setLevel(logging.DEBUG if options.debug else logging.WARNING)
    groups: list[GroupSamples] = []
    with scratch_folder() as scratch:
        folder = model_folder(source, store, scratch)
        tokenizer = ChatTokenizer(folder)
        tokens = tokenizer.prompt_token_ids(question.prompt)
        opened = opens_thought(tokenizer, question.puzzle.thinking if question.puzzle else DEFAULT_THINKING)
        tool = None
        episode = question.puzzle
        if episode and (observe := observed_by_id(to_table([episode]), thought_opened=opened)):
            tool = Steps(
                lambda _, turns: observe(episode.prompt_id, turns), longest_sequence(folder, hardware.max_model_len)
            )
        elif tool_output is not None:
            tool = Tool(lambda _, statements: tool_output(statements), longest_sequence(folder, hardware.max_model_len))
        print("starting the engine", file=sys.stderr)
        with Engine(hardware, scratch / "engine") as engine:
            engine.ensure(folder, source.digest if isinstance(source, Ref) else checkpoint)
            engine.sample_groups([Prompt("question", tokens)], sampling, groups.append, tool)
    return groups[0].completions, opened


def read_question(file: str, index: int, store: str) -> AskedPrompt:
    """Reads a puzzle or a prompt.

    Args:
        file: A .json file, a text file, `-` for stdin, or RUN:SPLIT if no file has that name.
        index: Number of the puzzle, from 0; ignored for a prompt.
        store: Address of the store that holds the split.

    Raises:
        BadInputError: The file is missing, not UTF-8, empty, not in the published format, or has no number `index`;
            there is no such split.
    """
    puzzles = _puzzles(file, store)
    if puzzles is not None:
        puzzle = puzzle_at(puzzles, index, file)
        return AskedPrompt(puzzle.prompt, puzzle)
    text = read_text_argument(file, _FORMS)
    if not text.strip():
        raise BadInputError(file, "empty", "a prompt")
    return AskedPrompt(text, None)


def explained_puzzle(question: AskedPrompt, where: str) -> Puzzle:
    """Returns the puzzle of a question; a prompt without one is read as a puzzle without a known solution.

    Args:
        question: The question.
        where: Name of the puzzle in error messages.

    Raises:
        BadInputError: The prompt is not a puzzle, a sentence of it cannot be read, or its clues contradict one another.
    """
    puzzle = _puzzle_of(question, where)
    solver = needs(get(puzzle.environment), Proves, where, "leave out --explain")
    try:
        provable = solver.deductions("", puzzle) is not None
    except BadInputError as error:
        raise BadInputError(
            f"{where}, {error.where}", error.found, error.expected, "leave out --explain to ask any prompt"
        ) from error
    if not provable:
        raise not_provable(where, solver.check(puzzle))
    return puzzle


def solver_of(question: AskedPrompt, where: str) -> Callable[[list[str]], list[str]]:
    """Returns a function that takes the lines of a call and returns the answer of the puzzle's solver.

    Args:
        question: The question; a prompt without a puzzle is read as one.
        where: Name of the puzzle in error messages.

    Raises:
        BadInputError: The environment has no solver that completions can ask, or a clue cannot be read.
    """
    puzzle = _puzzle_of(question, where)
    solver = needs(get(puzzle.environment), AnswersCalls, where, "set --tool-calls 0")
    try:
        solver.asked(puzzle)
    except BadInputError as error:
        raise BadInputError(
            f"{where}, {error.where}", error.found, error.expected, "set --tool-calls 0 to ask any prompt"
        ) from error
    return lambda statements: solver.tool_output(statements, puzzle)


def _puzzle_of(question: AskedPrompt, where: str) -> Puzzle:
    """Returns the puzzle of a question; a prompt without one is a puzzle without a known solution."""
    return question.puzzle or Puzzle(where, of_text(question.prompt).name, question.prompt, {}, 0, None, "", {})


def _puzzles(file: str, store_url: str) -> list[Puzzle] | None:
    """Returns the puzzles of a file or split; None if `file` names a prompt."""
    from flows.lookup.splits import named_split
    from stages.environments.tables import from_table, read_split

    if file.endswith(".json"):
        return read_puzzles(Path(file))
    if ":" not in file or is_file(Path(file)):
        return None
    store = Store.open(store_url)
    puzzles, split = named_split(file, store, file)
    return from_table(read_split(store, puzzles, split))


def model_folder(source: "Ref[Any] | FetchedModel | StoredModel", store: Store, scratch: Path) -> Path:
    """Returns a local folder with the model that a run would begin with; one that is not local is made in `scratch`.

    A local folder without prompt settings is used where it is, because a copy of its weights would change no answer.

    Raises:
        BadInputError: As for `materialise` and `adopt`.
    """
    from artifacts.store.location import local_folder
    from flows.lookup.checkpoints import published_checkpoint
    from stages.models.adapters import with_base
    from stages.models.folder import check_folder
    from stages.models.from_scratch import ScratchModel
    from stages.models.source import FolderModel, StoredModel, materialise
    from stages.models.stored import local_artifact
    from stages.optional.adopt import write_adapted

    if isinstance(source, Ref):
        return local_artifact(store, source, scratch / "downloads")[0]
    if not isinstance(source, ScratchModel) and source.adapter is not None:
        base, adapted = model_folder(source.model_copy(update={"adapter": None}), store, scratch), scratch / "adapted"
        adapted.mkdir(parents=True)
        name = source.name if isinstance(source, StoredModel) else base.name
        write_adapted(source.adapter, base, name, adapted)
        return with_base(adapted, base, scratch / "with-base")
    if isinstance(source, StoredModel):
        return model_folder(published_checkpoint(source.name, store), store, scratch)
    plain = source if isinstance(source, FolderModel) and not source.adapts_template else None
    if plain is not None and (folder := local_folder(plain.path)) is not None:
        check_folder(folder)
        return folder
    materialise(source, scratch / "model")
    return scratch / "model"


def print_answers(
    puzzle: Puzzle | None,
    checkpoint: str,
    completions: "Sequence[SampledCompletion]",
    options: Stored,
    explained: Puzzle | None = None,
) -> None:
    """Prints completions, each with its grade if the solution is known.

    Args:
        puzzle: The puzzle with its solution; None for a prompt without one.
        checkpoint: Name of the checkpoint on the command line.
        completions: The answers.
        options: Whether to print JSON.
        explained: The puzzle whose clues decide the verdict on each statement; None prints no verdicts.
    """
    from flows.cli.console.derivations import derivation_json, print_lines
    from flows.report.derivation import read_derivation
    from stages.environments.tables import grades_of

    derivations = [
        read_derivation(item.text, item.finish_reason, explained, every_premise=True) if explained else None
        for item in completions
    ]
    graded = [grades_of([(item.text, puzzle)])[0] if puzzle else None for item in completions]
    if options.json:
        print_json(
            {
                "checkpoint": checkpoint,
                "puzzle": puzzle.prompt_id if puzzle else None,
                "completions": [
                    {
                        "text": item.text,
                        "tokens": item.model_tokens,
                        "finish_reason": item.finish_reason,
                        "grade": asdict(grades) if grades else None,
                        "explanation": derivation_json(derivation) if derivation else None,
                    }
                    for item, grades, derivation in zip(completions, graded, derivations, strict=True)
                ],
            }
        )
        return
    console = terminal()
    for item, grades, derivation in zip(completions, graded, derivations, strict=True):
        if derivation:
            print_lines(console, derivation)
        else:
            console.print(Text(visible(item.text)), soft_wrap=True)
        if item.finish_reason != "stop":
            console.print(f"(ended by {item.finish_reason} after {item.model_tokens} tokens)")
        if puzzle and grades:
            console.print(_grade_table(puzzle, grades))
        for sentence in derivation.conclusions if derivation else ():
            console.print(sentence, soft_wrap=True)


def _grade_table(puzzle: Puzzle, grades: Graded) -> Table:
    right = sum(answer.correct for answer in grades.answers.values())
    table = Table(title=f"{right} of {len(grades.answers)} right: {grades.accuracy:.1%}", title_justify="left")
    for name in ("", "read", "right answer", ""):
        table.add_column(name)
    for question, answer in grades.answers.items():
        answer_text = answer.value or answer.text or answer.note
        table.add_row(
            question, answer_text or "", puzzle.solution.get(question, ""), "right" if answer.correct else "wrong"
        )
    return table
