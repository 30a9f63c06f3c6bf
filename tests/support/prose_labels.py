"""Ten answers in prose, written for these tests, with every statement labelled by hand, and scores of the reader.

The answers are about puzzles of the published validation file, which is not part of this repository. They imitate how
models behind an API write: numbered proofs, thinking aloud, Markdown, timelines, the present tense, notes with arrows,
cases, long sentences. A label reads `{{words||meaning||verdict}}`; the meaning names the cells that the words speak of
(`at: Rope, Lounge`, `not by: Mr. Green`), or is `none` where the words assert nothing: doubts, questions, hypotheses.
The meaning of a statement without a subject, place or time of its own comes from the words around it. No statement is
open, because the clues of the published puzzles of this size leave one world.
"""

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.environments.published import read_puzzles
from stages.environments.temporal_clue.formal import (
    At,
    Beside,
    FormalPuzzle,
    HasMotive,
    KilledWith,
    Moved,
    MurderedAt,
    MurderedBy,
    MurderedIn,
    Not,
    Ref,
    SameRoom,
    Scenario,
    Statement,
    Together,
)
from stages.environments.temporal_clue.language.grammar import grammar_of
from stages.environments.temporal_clue.language.reader import read_formal
from stages.environments.temporal_clue.language.text import canonical
from stages.environments.temporal_clue.proofs.deductions import Judge

FOLDER = Path(__file__).parent / "prose"
VAL = Path(__file__).parents[3] / "shared" / "data" / "temporal-clue" / "val.json"
_LABEL = re.compile(r"\{\{(.*?)\|\|(.*?)(?:\|\|(\w+))?\}\}", re.DOTALL)


@dataclass(frozen=True)
class Label:
    """Words of an answer.

    Attributes:
        start: Offset of the first character.
        end: Offset after the last.
        meaning: The cells that they speak of; empty if they assert nothing.
        verdict: The verdict by hand; empty if they assert nothing.
    """

    start: int
    end: int
    meaning: str
    verdict: str


@dataclass(frozen=True)
class LabelledAnswer:
    """An answer.

    Attributes:
        name: Name of its file.
        puzzle: Index of its puzzle in the published validation file.
        digest: Digest of the puzzle, so that another file is noticed.
        style: How it is written.
        text: The answer without the labels.
    """

    name: str
    puzzle: int
    digest: str
    style: str
    text: str
    labels: tuple[Label, ...]

    @property
    def statements(self) -> list[Label]:
        """The labels that assert something."""
        return [label for label in self.labels if label.meaning]


def labelled_answers() -> list[LabelledAnswer]:
    """All answers, in the order of their names."""
    return [_read(path) for path in sorted(FOLDER.glob("*.txt"))]


def puzzles_of(answers: list[LabelledAnswer], val: Path = VAL) -> list[FormalPuzzle]:
    """The puzzle of each answer, from the published file."""
    published = read_puzzles(val)
    for answer in answers:
        assert published[answer.puzzle].digest == answer.digest, f"{val} has another puzzle {answer.puzzle}"
    return [read_formal(published[answer.puzzle].prompt).puzzle for answer in answers]


def meaning_of(scenario: Scenario, words: str) -> Statement:
    """The statement that a label's meaning names."""
    kind, _, rest = words.partition(": ")
    inner = _MAKERS[kind.removeprefix("not ")](scenario, rest.split(", "))
    return Not(inner) if kind.startswith("not ") else inner


def measure_reader(val: Path = VAL) -> dict[str, Any]:
    """Returns precision and recall of the reader, the same by answer, and the statements that it missed or misread.

    A statement that the reader finds is right if it lies on a label and has its meaning. `verdicts_agree` is the share
    of labels whose verdict the solver confirms; it measures the labels, not the reader.
    """
    answers = labelled_answers()
    rows: list[dict[str, Any]] = []
    for answer, puzzle in zip(answers, puzzles_of(answers, val), strict=True):
        rows.append(_measured(answer, puzzle))
    total = Counter[str]()
    for row in rows:
        total.update({key: row[key] for key in ("labelled", "found", "right", "agree")})
    return {
        "answers": len(answers),
        "labels": sum(len(answer.labels) for answer in answers),
        "statements": total["labelled"],
        "precision": total["right"] / total["found"],
        "recall": total["right"] / total["labelled"],
        "verdicts_agree": total["agree"] / total["labelled"],
        "by_answer": rows,
    }


def _measured(answer: LabelledAnswer, puzzle: FormalPuzzle) -> dict[str, Any]:
    scenario, judge = puzzle.scenario, Judge(puzzle)
    meanings = {label: canonical(scenario, meaning_of(scenario, label.meaning)) for label in answer.statements}
    found = {item.start: canonical(scenario, item.statement) for item in grammar_of(scenario).find(answer.text)}
    asserted = judge.read(answer.text)
    matched = [
        label
        for item in asserted
        for label, meaning in meanings.items()
        if item.start < label.end and label.start < item.end and found[item.start] == meaning
    ]
    spans = [(label.start, label.end) for label in matched]
    misread = [item.text for item in asserted if not any(item.start < end and start < item.end for start, end in spans)]
    return {
        "answer": answer.name,
        "style": answer.style,
        "labelled": len(meanings),
        "found": len(asserted),
        "right": len(set(matched)),
        "agree": sum(judge.verdict(meanings[label]) == label.verdict for label in meanings),
        "missed": [answer.text[label.start : label.end] for label in meanings if label not in matched],
        "misread": misread,
        "disagreeing": [
            f"{label.meaning}: {label.verdict}, {judge.verdict(meanings[label])} by the solver"
            for label in meanings
            if judge.verdict(meanings[label]) != label.verdict
        ],
    }


def _read(path: Path) -> LabelledAnswer:
    first, second, body = path.read_text(encoding="utf-8").split("\n", 2)
    index, digest = first.removeprefix("puzzle: ").split()
    labels: list[Label] = []
    pieces: list[str] = []
    done = length = 0
    for match in _LABEL.finditer(body):
        before, words = body[done : match.start()], match[1]
        start = length + len(before)
        meaning = "" if match[2] == "none" else match[2]
        labels.append(Label(start, start + len(words), meaning, match[3] or ""))
        pieces += [before, words]
        length, done = start + len(words), match.end()
    text = "".join([*pieces, body[done:]])
    return LabelledAnswer(path.stem, int(index), digest, second.removeprefix("style: "), text, tuple(labels))


def _ref(scenario: Scenario, words: str) -> Ref:
    roles = {"Boddy": Ref("boddy"), "murderer": Ref("murderer"), "murder weapon": Ref("murder_weapon")}
    if words in roles:
        return roles[words]
    if words.startswith("motive "):
        return Ref("motive", scenario.motives.index(words.removeprefix("motive ")))
    if words in scenario.suspects:
        return Ref("suspect", scenario.suspects.index(words))
    return Ref("weapon", scenario.weapons.index(words))


def _time(scenario: Scenario, rest: list[str]) -> int:
    assert len(rest) == (1 if scenario.times else 0), rest
    return scenario.times.index(rest[0]) if rest else 0


_MAKERS: dict[str, Callable[[Scenario, list[str]], Statement]] = {
    "at": lambda s, p: At(_ref(s, p[0]), s.rooms.index(p[1]), _time(s, p[2:])),
    "same": lambda s, p: SameRoom(_ref(s, p[0]), _ref(s, p[1]), _time(s, p[2:])),
    "north": lambda s, p: Beside(_ref(s, p[0]), "north", _ref(s, p[1]), _time(s, p[2:])),
    "south": lambda s, p: Beside(_ref(s, p[0]), "south", _ref(s, p[1]), _time(s, p[2:])),
    "east": lambda s, p: Beside(_ref(s, p[0]), "east", _ref(s, p[1]), _time(s, p[2:])),
    "west": lambda s, p: Beside(_ref(s, p[0]), "west", _ref(s, p[1]), _time(s, p[2:])),
    "together": lambda s, p: Together(_ref(s, p[0]), _ref(s, p[1]), s.rooms.index(p[2])),
    "moved": lambda s, p: Moved(_ref(s, p[0]), s.rooms.index(p[1]), s.rooms.index(p[2]), _time(s, p[3:])),
    "motive": lambda s, p: HasMotive(s.suspects.index(p[0]), s.motives.index(p[1])),
    "by": lambda s, p: MurderedBy(_ref(s, p[0])),
    "with": lambda s, p: KilledWith(s.weapons.index(p[0])),
    "in": lambda s, p: MurderedIn(s.rooms.index(p[0])),
    "when": lambda s, p: MurderedAt(_time(s, p)),
}
"""The statement of each kind of meaning, from the names after it."""
