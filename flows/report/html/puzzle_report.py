"""The report of a puzzle set: clues, sizes, prompt lengths and questions, as an HTML page and as JSON."""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from artifacts.documents.checksums import write_files
from artifacts.errors import BadInputError
from artifacts.reading import Artifact
from artifacts.refs import Checkpoint, Puzzles, Ref
from artifacts.schemas import PUZZLES
from flows.report.html.page import page
from flows.report.pictures.plots import bars_plot, histogram_plot
from flows.session.calls import Stages
from stages.environments import environment
from stages.environments.capabilities import HasKinds
from stages.environments.puzzle import Puzzle
from stages.environments.tables import from_table
from stages.models.source import GgufPackageModel, find_packaged_file
from stages.models.tokenizers.chat import ChatTokenizer
from stages.models.tokenizers.gguf_tokenizer import write_tokenizer
from stages.prepare import SPLITS

PAGE = "report.html"


@dataclass(frozen=True)
class LengthMeasure:
    """A way to measure the length of a prompt.

    Attributes:
        unit: `tokens` or `characters`.
        by: Name of the tokenizer; empty if the unit is characters.
        length: Returns the length of a prompt.
    """

    unit: str
    by: str
    length: Callable[[str], int]


def length_measure(stages: Stages, tokenizer: Ref[Checkpoint] | None, name: str | None) -> LengthMeasure:
    """Returns the measure of prompt lengths: tokens of a checkpoint, else of the installed model, else characters.

    Args:
        stages: Stages whose context has the scratch folder and the store.
        tokenizer: A checkpoint whose tokenizer is used; None for the installed model.
        name: Name of that checkpoint.
    """
    if tokenizer is not None:
        folder = stages.ctx.local_folder(tokenizer)
    else:
        installed, folder = GgufPackageModel(), stages.ctx.scratch / "tokenizer"
        try:
            write_tokenizer(find_packaged_file(installed.package, installed.file), folder)
        except BadInputError:
            return LengthMeasure("characters", "", len)
        name = installed.file.partition(".")[0]
    chat = ChatTokenizer(folder)
    return LengthMeasure("tokens", name or "", lambda prompt: len(chat.prompt_token_ids(prompt)))


def write_report(stages: Stages, made: Ref[Puzzles], measure: LengthMeasure) -> str:
    """Writes the report of a puzzle set into its folder in the store, and returns the key of the page."""
    artifact = Artifact.open(stages.ctx.store, made)
    splits = {
        name: from_table(artifact.read_table(f"{name}.parquet", PUZZLES))
        for name in SPLITS
        if f"{name}.parquet" in artifact.manifest.files
    }
    facts = describe(splits, measure)
    write_files(stages.ctx.store, f"{made.key}/report", report_files(facts))
    return f"{made.key}/report/{PAGE}"


def describe(splits: dict[str, list[Puzzle]], measure: LengthMeasure) -> dict[str, Any]:
    """Returns the figures of a puzzle set, as `report.json` contains them.

    Args:
        splits: The puzzles by split.
        measure: How prompt lengths are measured.
    """
    puzzles = [puzzle for rows in splits.values() for puzzle in rows]
    clue_kinds, question_kinds = Counter[str](), Counter[str]()
    for puzzle in puzzles:
        if isinstance(sorter := environment.get(puzzle.environment), HasKinds):
            kinds = sorter.kinds(puzzle)
            clue_kinds += Counter(kinds.clues)
            question_kinds += Counter(kinds.questions)
    sizes = sorted({name for puzzle in puzzles for name in puzzle.difficulty})
    return {
        "splits": {name: len(rows) for name, rows in splits.items()},
        "different": len({puzzle.digest for puzzle in puzzles}),
        "clues": [puzzle.num_clues for puzzle in puzzles],
        "sizes": {name: [puzzle.difficulty.get(name, 0) for puzzle in puzzles] for name in sizes},
        "prompt": {
            "unit": measure.unit,
            "tokenizer": measure.by,
            "lengths": [measure.length(p.prompt) for p in puzzles],
        },
        "clue_kinds": dict(clue_kinds.most_common()),
        "question_kinds": dict(question_kinds.most_common()),
    }


def report_files(facts: dict[str, Any]) -> dict[str, bytes]:
    """Returns the report's files by name: the pictures, `report.json` and the page.

    Items without clues, such as questions from a file, have no pictures of clues, sizes and kinds.
    """
    unit = facts["prompt"]["unit"]
    pictures = {"prompt.png": histogram_plot(facts["prompt"]["lengths"], f"prompt length, {unit}", unit)}
    if any(facts["clues"]):
        pictures |= {
            "clues.png": histogram_plot(facts["clues"], "clues a puzzle", "clues"),
            "sizes.png": bars_plot(
                {name: float(np.mean(values)) for name, values in facts["sizes"].items()}, "mean size, least to most",
                {name: (min(values), max(values)) for name, values in facts["sizes"].items()},
            ),
            "clue_kinds.png": bars_plot(facts["clue_kinds"], "clues by kind"),
            "question_kinds.png": bars_plot(facts["question_kinds"], "questions by kind"),
        }  # fmt: skip
    document = page("puzzle_set.html", **_values(facts), pictures=pictures)
    return {**pictures, "report.json": (json.dumps(facts, indent=2) + "\n").encode(), PAGE: document.encode()}


def _values(facts: dict[str, Any]) -> dict[str, Any]:
    """Returns the values of the page's template, except the pictures."""
    total, prompt, has_clues = sum(facts["splits"].values()), facts["prompt"], any(facts["clues"])
    splits = ", ".join(f"{name} {count}" for name, count in facts["splits"].items() if count)
    tokenizer = f"; by {prompt['tokenizer']}" if prompt["tokenizer"] else ""
    return {
        "title": "Deerstalker puzzle set",
        "total": f"{total:,}",
        "splits": splits,
        "cards": [
            ("puzzles", f"{total:,}", splits),
            (
                "different",
                f"{facts['different']:,}",
                f"by the digest of the {'formal puzzle' if has_clues else 'prompt'}, over all splits",
            ),
            *([("clues a puzzle", f"{np.median(facts['clues']):.0f}", _range(facts["clues"]))] if has_clues else []),
            (
                f"prompt {prompt['unit']}",
                f"{np.median(prompt['lengths']):,.0f}",
                _range(prompt["lengths"]) + tokenizer,
            ),
        ],
        "has_clues": has_clues,
        "repeated": total - facts["different"],
        "clue_kinds": _shares(facts["clue_kinds"]),
        "question_kinds": _shares(facts["question_kinds"]),
    }


def _shares(kinds: dict[str, int]) -> list[tuple[str, str, str]]:
    """Returns a row for each kind: its name, its count and its share of all."""
    total = sum(kinds.values())
    return [(name, f"{count:,}", f"{count / total:.1%}") for name, count in kinds.items()]


def _range(values: Sequence[int]) -> str:
    return f"median; {min(values):,} to {max(values):,}"
