"""`deerstalker solve`: one prompt, one engine, no flow."""

import logging
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from artifacts.errors import BadInputError
from artifacts.parsing import is_file
from artifacts.reading import Artifact
from artifacts.refs import Ref
from artifacts.schemas import PUZZLES
from artifacts.store import Store
from flows.checkpoints import find_checkpoint
from flows.commands.output import print_json, terminal
from flows.commands.texts import given_text
from flows.options import Stored
from flows.recipes import load_profile, validate
from flows.splits import named_split
from flows.visible import visible
from stages.models.chat import ChatTokenizer
from stages.models.folder import check_folder
from stages.models.source import FolderModel, ModelConfig, materialise
from stages.puzzles.grading import grade
from stages.puzzles.published import read_puzzles
from stages.puzzles.puzzle import Graded, Puzzle
from stages.puzzles.tables import from_table
from stages.sampling.client import GroupSamples, Prompt, SampledCompletion
from stages.sampling.config import SamplingConfig
from stages.sampling.engine import Engine
from stages.scratch import scratch_folder

_FORMS = "a puzzle as .json, a text file, or RUN:SPLIT with train, val or test"


@dataclass(frozen=True)
class Question:
    """What the model is asked; `puzzle` where the solution is known."""

    prompt: str
    puzzle: Puzzle | None


def solve_command(
    checkpoint: str, file: str, index: int, profile: str, *, settings: dict[str, Any], options: Stored
) -> None:
    """Asks a model and prints its answers, graded where the solution is known.

    Args:
        file: JSON in the published format or RUN:SPLIT (number `index` of it is asked), a text file, or `-` for stdin.
        settings: Fields of `stages.sampling.config.SamplingConfig`, as given.
    """
    question = read_question(file, index, options.store)
    sampling = validate(SamplingConfig, settings, "solve")
    hardware = load_profile(profile).engine
    if hardware.replicas == "auto" and not hardware.external_urls:
        hardware = hardware.model_copy(update={"replicas": 1})  # one group keeps no second engine busy
    store = Store.open(options.store)
    source = find_checkpoint(checkpoint, store)
    logging.getLogger("deerstalker").setLevel(logging.DEBUG if options.debug else logging.WARNING)
    with scratch_folder() as scratch:
        folder = _folder(source, store, scratch)
        tokens = ChatTokenizer(folder).prompt_ids(question.prompt)
        print("starting the engine", file=sys.stderr)
        groups: list[GroupSamples] = []
        with Engine(hardware, scratch / "engine") as engine:
            engine.ensure(folder, source.digest if isinstance(source, Ref) else checkpoint)
            engine.sample_groups([Prompt("question", tokens)], sampling, groups.append)
    print_answers(question, checkpoint, groups[0].completions, options)


def read_question(file: str, index: int, store: str) -> Question:
    """Reads a puzzle or a prompt.

    Args:
        file: A .json file, a text file, `-` for stdin, or RUN:SPLIT where no file has that name.
        index: Which puzzle, from 0; of no meaning for a prompt.
        store: Address of the store that a split is in.

    Raises:
        BadInputError: The file is missing, not UTF-8, empty, not in the published format, or has no number `index`;
            there is no such split.
    """
    puzzles = _puzzles(file, store)
    if puzzles is not None:
        if not 0 <= index < len(puzzles):
            raise BadInputError(f"--index {index}", f"{len(puzzles)} puzzles in {file}", f"0 to {len(puzzles) - 1}")
        return Question(puzzles[index].prompt, puzzles[index])
    text = given_text(file, _FORMS)
    if not text.strip():
        raise BadInputError(file, "no text", "a prompt")
    return Question(text, None)


def _puzzles(file: str, store: str) -> list[Puzzle] | None:
    """The puzzles that one is chosen from; None where the file is a prompt."""
    if file.endswith(".json"):
        return read_puzzles(Path(file))
    if ":" not in file or is_file(Path(file)):
        return None
    opened = Store.open(store)
    puzzles, split = named_split(file, opened, file)
    return from_table(Artifact.open(opened, puzzles).read_table(f"{split}.parquet", PUZZLES))


def _folder(source: Ref[Any] | ModelConfig, store: Store, scratch: Path) -> Path:
    if isinstance(source, Ref):
        return Artifact.open(store, source).local_folder(scratch / "downloads")
    if isinstance(source, FolderModel):
        check_folder(Path(source.path))
        return Path(source.path)
    materialise(source, scratch / "model")
    return scratch / "model"


def print_answers(question: Question, checkpoint: str, completions: list[SampledCompletion], options: Stored) -> None:
    graded = [grade(item.text, question.puzzle) if question.puzzle else None for item in completions]
    if options.json:
        print_json(
            {
                "checkpoint": checkpoint,
                "puzzle": question.puzzle.puzzle_id if question.puzzle else None,
                "completions": [
                    {
                        "text": item.text,
                        "tokens": len(item.token_ids),
                        "finish_reason": item.finish_reason,
                        "grade": asdict(found) if found else None,
                    }
                    for item, found in zip(completions, graded, strict=True)
                ],
            }
        )
        return
    console = terminal()
    for item, found in zip(completions, graded, strict=True):
        console.print(Text(visible(item.text)), soft_wrap=True)
        if item.finish_reason != "stop":
            console.print(f"(ended by {item.finish_reason} after {len(item.token_ids)} tokens)")
        if question.puzzle and found:
            console.print(_grade_table(question.puzzle, found))


def _grade_table(puzzle: Puzzle, found: Graded) -> Table:
    right = sum(answer.correct for answer in found.answers.values())
    table = Table(title=f"{right} of {len(found.answers)} right: {found.accuracy:.1%}", title_justify="left")
    for name in ("", "read", "right answer", ""):
        table.add_column(name)
    for letter, answer in found.answers.items():
        said = answer.value or answer.text or answer.note
        table.add_row(letter, said or "", puzzle.solution[letter], "right" if answer.correct else "wrong")
    return table
