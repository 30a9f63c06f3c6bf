"""What a puzzle set is made of, for people: clues, sizes, prompt lengths and questions, as a page and as JSON."""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from artifacts.errors import BadInputError
from artifacts.reading import Artifact
from artifacts.refs import Checkpoint, Puzzles, Ref
from artifacts.schemas import PUZZLES
from artifacts.sums import write_files
from flows.page import card, document, escape, picture, table
from flows.plots import bars_plot, histogram_plot
from flows.session import Stages
from stages.models.chat import ChatTokenizer
from stages.models.gguf_tokenizer import write_tokenizer
from stages.models.source import GgufPackageModel, find_packaged_file
from stages.prepare import SPLITS
from stages.puzzles import environment
from stages.puzzles.puzzle import Puzzle
from stages.puzzles.tables import from_table

PAGE = "report.html"


@dataclass(frozen=True)
class Measure:
    """How prompts are measured.

    Attributes:
        unit: What `length` counts.
        by: Whose tokens they are; empty for characters.
        length: Of a prompt.
    """

    unit: str
    by: str
    length: Callable[[str], int]


def measure_of(stages: Stages, tokenizer: Ref[Checkpoint] | None, name: str | None) -> Measure:
    """A measure in the tokens of a checkpoint called `name`, without one in those of the model that is installed.

    Characters where no model is installed either.
    """
    if tokenizer is not None:
        folder = stages.ctx.local_folder(tokenizer)
    else:
        installed, folder = GgufPackageModel(), stages.ctx.scratch / "tokenizer"
        try:
            write_tokenizer(find_packaged_file(installed.package, installed.file), folder)
        except BadInputError:
            return Measure("characters", "", len)
        name = installed.file.partition(".")[0]
    chat = ChatTokenizer(folder)
    return Measure("tokens", name or "", lambda prompt: len(chat.prompt_ids(prompt)))


def write_report(stages: Stages, made: Ref[Puzzles], measure: Measure) -> str:
    """Writes the report beside the set's manifest, and returns the key of its page."""
    artifact = Artifact.open(stages.ctx.store, made)
    splits = {
        name: from_table(artifact.read_table(f"{name}.parquet", PUZZLES))
        for name in SPLITS
        if f"{name}.parquet" in artifact.manifest.files
    }
    facts = describe(splits, measure)
    write_files(stages.ctx.store, f"{made.key}/report", report_files(facts))
    return f"{made.key}/report/{PAGE}"


def describe(splits: dict[str, list[Puzzle]], measure: Measure) -> dict[str, Any]:
    """The figures of a set, from its puzzles by split."""
    puzzles = [puzzle for rows in splits.values() for puzzle in rows]
    clue_kinds, question_kinds = Counter[str](), Counter[str]()
    for puzzle in puzzles:
        kinds = environment.get(puzzle.environment).kinds(puzzle)
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
    """The report's files by name: pictures, the figures as JSON, and the page."""
    unit = facts["prompt"]["unit"]
    pictures = {
        "clues.png": histogram_plot(facts["clues"], "clues a puzzle", "clues"),
        "prompt.png": histogram_plot(facts["prompt"]["lengths"], f"prompt length, {unit}", unit),
        "sizes.png": bars_plot(
            {name: float(np.mean(values)) for name, values in facts["sizes"].items()}, "mean size, least to most",
            {name: (min(values), max(values)) for name, values in facts["sizes"].items()},
        ),
        "clue_kinds.png": bars_plot(facts["clue_kinds"], "clues by kind"),
        "question_kinds.png": bars_plot(facts["question_kinds"], "questions by kind"),
    }  # fmt: skip
    page = document("Deerstalker puzzle set", _body(facts, pictures))
    return {**pictures, "report.json": (json.dumps(facts, indent=2) + "\n").encode(), PAGE: page.encode()}


def _body(facts: dict[str, Any], pictures: dict[str, bytes]) -> list[str]:
    total = sum(facts["splits"].values())
    shown = ", ".join(f"{name} {count}" for name, count in facts["splits"].items() if count)
    repeated = total - facts["different"]
    cards = [
        card("puzzles", f"{total:,}", shown),
        card("different", f"{facts['different']:,}", "by the digest of the formal puzzle, over all splits"),
        card("clues a puzzle", f"{np.median(facts['clues']):.0f}", _range(facts["clues"])),
        card(
            f"prompt {facts['prompt']['unit']}",
            f"{np.median(facts['prompt']['lengths']):,.0f}",
            _range(facts["prompt"]["lengths"]) + (f"; by {by}" if (by := facts["prompt"]["tokenizer"]) else ""),
        ),
    ]
    warning = [f'<p class="note">{repeated} puzzles stand more than once.</p>'] if repeated else []
    return [
        '<header><span class="kicker">Deerstalker &middot; puzzles</span>'
        f"<h1>{total:,} puzzles</h1><p>{escape(shown)}</p></header>",
        f'<div class="cards">{"".join(cards)}</div>',
        *warning,
        "<h2>Lengths and sizes</h2>",
        _plots(pictures, "clues", "prompt", "sizes"),
        "<h2>Kinds</h2>",
        _plots(pictures, "clue_kinds", "question_kinds"),
        f'<div class="panel">{_shares(facts["clue_kinds"], "clue")}</div>',
        f'<div class="panel">{_shares(facts["question_kinds"], "question")}</div>',
    ]


def _plots(pictures: dict[str, bytes], *names: str) -> str:
    shown = "".join(picture(pictures[f"{name}.png"], name.replace("_", " ")) for name in names)
    return f'<div class="plots">{shown}</div>'


def _shares(kinds: dict[str, int], what: str) -> str:
    total = sum(kinds.values())
    return table([what, "count", "share"], [[name, f"{n:,}", f"{n / total:.1%}"] for name, n in kinds.items()])


def _range(values: Sequence[int]) -> str:
    return f"median; {min(values):,} to {max(values):,}"
