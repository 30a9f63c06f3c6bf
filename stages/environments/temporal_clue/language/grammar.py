"""The grammar of statements and questions, as patterns over a scenario's names.

It reads single sentences and finds statements in texts.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import cast

from stages.environments.temporal_clue.formal import (
    At,
    Beside,
    Carried,
    Direction,
    Either,
    HasMotive,
    Iff,
    KilledWith,
    Moved,
    MurderedAt,
    MurderedBy,
    MurderedIn,
    Not,
    Question,
    Ref,
    RefKind,
    SameRoom,
    Scenario,
    Statement,
    Together,
)
from stages.environments.temporal_clue.language.text import FIXED_QUESTIONS

_DENIAL = "t is not true that "
_JOINTS = ((" if and only if ", Iff), (" or ", Either))

# Names are replaced by two characters each, a kind and an index, so that one set of patterns serves all scenarios.
_KINDS = "\ue000\ue001\ue002\ue003\ue004"
_S, _W, _R, _T, _M = (f"{kind}[\ue100-\ue1ff]" for kind in _KINDS)
_PRIVATE = str.maketrans(dict.fromkeys([*range(0xE000, 0xE005), *range(0xE100, 0xE200)], "?"))

_PERSON = rf"(?:{_S}|[Tt]he murderer|(?:[Aa]|[Tt]he) suspect motivated by {_M})"
_THING = rf"[Tt]he (?:{_W}|murder weapon)"
_PIECE = rf"(?:Mr\. Boddy|{_PERSON}|{_THING})"
_WHEN = rf"(?: at (?P<time>{_T}))?"
_PLACE = rf"(?:in|at) the (?P<room>{_R})"
_WAY = rf"from the (?P<origin>{_R}) to the (?P<room>{_R})"
_PAIR = rf"(?P<ref>{_PIECE}) and (?P<second>{_PIECE}) were"
_PATTERNS = {
    "at": rf"(?P<ref>{_PIECE}) was (?P<no>not )?{_PLACE}{_WHEN}",
    "same": rf"(?P<ref>{_PIECE}) was (?P<no>not )?in the same room as (?P<second>{_PIECE}){_WHEN}",
    "beside": rf"(?P<ref>{_PIECE}) was (?P<no>not )?in the room just (?P<direction>north|south|east|west) of "
    rf"(?P<second>{_PIECE}){_WHEN}",
    "together": rf"{_PAIR} {_PLACE} together(?P<once> at least once)?",
    "never": rf"{_PAIR} (?P<no>never) {_PLACE} together",
    "motive": rf"(?P<ref>{_S}) is (?P<no>not )?motivated by (?P<motive>{_M})",
    "by": rf"Mr\. Boddy was (?P<no>not )?murdered by (?P<ref>{_PERSON})",
    "with": rf"Mr\. Boddy was (?P<no>not )?killed with the (?P<weapon>{_W})",
    "in": rf"Mr\. Boddy was (?P<no>not )?murdered {_PLACE}",
    "when": rf"Mr\. Boddy was (?P<no>not )?murdered{_WHEN}",
    "moved": rf"(?P<ref>{_PIECE}) (?:moved|(?P<no>did not move)) {_WAY}{_WHEN}",
    "carried": rf"(?P<ref>{_PERSON}) (?:moved|(?P<no>did not move)) (?P<second>{_THING}) {_WAY}{_WHEN}",
}
_COMPILED = {kind: re.compile(pattern) for kind, pattern in _PATTERNS.items()}
_MOVES = frozenset({"moved", "carried"})
_TIMED = frozenset({"at", "same", "beside", "when", *_MOVES})
_BARE = (re.sub(r"\(\?P<\w+>", "(?:", pattern) for pattern in _PATTERNS.values())
_ATOM = re.compile(rf"(?<!\w)(?:{'|'.join(sorted(_BARE, key=len, reverse=True))})(?!\w)")
_WHERE = re.compile(rf"Where was (?P<ref>{_PIECE}){_WHEN}\?")
_MOTIVE_OF = re.compile(rf"What motivates (?P<suspect>{_S})\?")
_SUSPECT_OF = re.compile(rf"Who is motivated by (?P<motive>{_M})\?")
_FIXED_QUESTIONS = {sentence: Question(kind) for kind, sentence in FIXED_QUESTIONS.items()}


@dataclass(frozen=True)
class FoundStatement:
    """A statement found in a text.

    Attributes:
        statement: The formal statement.
        start: Offset of its first character.
        end: Offset after its last character.
    """

    statement: Statement
    start: int
    end: int


def _index(token: str | None) -> int:
    """Returns the index of the name that a two-character token stands for; 0 for None or an empty token."""
    return ord(token[-1]) - 0xE100 if token else 0


def _ref(words: str) -> Ref:
    kinds: dict[str, RefKind] = {_KINDS[0]: "suspect", _KINDS[1]: "weapon", _KINDS[4]: "motive"}
    for kind, named in kinds.items():
        if kind in words:
            return Ref(named, _index(words))
    if words == "Mr. Boddy":
        return Ref("boddy")
    return Ref("murderer") if words.lower() == "the murderer" else Ref("murder_weapon")


class Grammar:
    """The statements and questions that can be written about one scenario."""

    def __init__(self, scenario: Scenario) -> None:
        """Builds the pattern of the scenario's names."""
        self._timed = bool(scenario.times)
        lists = (scenario.suspects, scenario.weapons, scenario.rooms, scenario.times, scenario.motives)
        self._tokens = {
            name: kind + chr(0xE100 + i)
            for kind, names in zip(_KINDS, lists, strict=True)
            for i, name in enumerate(names)
        }
        names = "|".join(re.escape(name) for name in sorted(self._tokens, key=len, reverse=True))
        self._names = re.compile(rf"(?<!\w)(?:{names})(?!\w)")

    def _template(self, text: str) -> str:
        return self._names.sub(lambda match: self._tokens[match.group()], text.translate(_PRIVATE))

    def statement(self, sentence: str) -> Statement | None:
        """Returns the statement of a sentence without its full stop; None if it is not in the grammar."""
        return self._statement(self._template(sentence.strip()))

    def _statement(self, template: str) -> Statement | None:
        if template[:1] in ("I", "i") and template.startswith(_DENIAL, 1):
            inner = self._joined(template[1 + len(_DENIAL) :])
            return None if inner is None else Not(inner)
        return self._joined(template)

    def _joined(self, template: str) -> Statement | None:
        simple = self._simple(template)
        if simple is not None:
            return simple
        for joint, kind in _JOINTS:
            start = template.find(joint)
            if start >= 0:
                first, second = self._simple(template[:start]), self._simple(template[start + len(joint) :])
                if first is not None and second is not None:
                    return kind(first, second)
        return None

    def _simple(self, template: str) -> Statement | None:
        for kind, pattern in _COMPILED.items():
            match = pattern.fullmatch(template)
            if match is None:
                continue
            groups = match.groupdict()
            timed = bool(groups.get("time")) if kind in _TIMED else bool(groups.get("once"))
            if timed != self._timed and (kind in _TIMED or kind == "together"):
                continue
            if not self._timed and kind == "when":
                continue
            if kind in _MOVES and _index(groups.get("time")) == 0:  # there are no moves before the first time
                continue
            statement = _built(kind, groups)
            return Not(statement) if groups.get("no") else statement
        return None

    def question(self, sentence: str) -> Question | None:
        """Returns the question of a sentence; None if it is not in the grammar."""
        if sentence in _FIXED_QUESTIONS:
            return _FIXED_QUESTIONS[sentence]
        template = self._template(sentence.strip())
        if match := _WHERE.fullmatch(template):
            valid = bool(match["time"]) == self._timed
            return Question("where", _ref(match["ref"]), _index(match["time"])) if valid else None
        if match := _MOTIVE_OF.fullmatch(template):
            return Question("motive_of", Ref("suspect", _index(match["suspect"])))
        if match := _SUSPECT_OF.fullmatch(template):
            return Question("suspect_of", Ref("motive", _index(match["motive"])))
        return None

    def find(self, text: str) -> Iterator[FoundStatement]:
        """Yields the statements in a text, in order.

        A statement is left out if `or` or `if and only if` joins it to words that are not in the grammar.
        """
        pieces: list[str] = []
        offsets: list[int] = []
        done = 0
        for match in self._names.finditer(text):
            pieces += (text[done : match.start()].translate(_PRIVATE), self._tokens[match.group()])
            offsets += (*range(done, match.start()), match.start(), match.end() - 1)
            done = match.end()
        template = "".join((*pieces, text[done:].translate(_PRIVATE)))
        offsets += range(done, len(text))
        atoms = list(_ATOM.finditer(template))
        i = 0
        while i < len(atoms):
            atom = atoms[i]
            i += 1
            joint = next((j for j in _JOINTS if template.startswith(j[0], atom.end())), None)
            end, statement = atom.end(), self._simple(atom.group())
            if joint is not None:
                both = i < len(atoms) and atoms[i].start() == atom.end() + len(joint[0])
                second = self._simple(atoms[i].group()) if both else None
                statement = None if statement is None or second is None else joint[1](statement, second)
                end = atoms[i].end() if both else end
                i += both
            if statement is not None:
                yield FoundStatement(statement, offsets[atom.start()], offsets[end - 1] + 1)


def _built(kind: str, groups: dict[str, str | None]) -> Statement:
    ref, second = _ref(groups.get("ref") or "Mr. Boddy"), _ref(groups.get("second") or "Mr. Boddy")
    room, origin, time = (_index(groups.get(name)) for name in ("room", "origin", "time"))
    match kind:
        case "at":
            return At(ref, room, time)
        case "same":
            return SameRoom(ref, second, time)
        case "beside":
            return Beside(ref, cast(Direction, groups["direction"]), second, time)
        case "together" | "never":
            return Together(ref, second, room)
        case "motive":
            return HasMotive(ref.index, _index(groups["motive"]))
        case "by":
            return MurderedBy(ref)
        case "with":
            return KilledWith(_index(groups["weapon"]))
        case "in":
            return MurderedIn(room)
        case "moved":
            return Moved(ref, origin, room, time)
        case "carried":
            return Carried(ref, second, origin, room, time)
        case _:
            return MurderedAt(time)


@lru_cache(maxsize=1024)
def grammar_of(scenario: Scenario) -> Grammar:
    """Returns the grammar of a scenario, which is built once."""
    return Grammar(scenario)
