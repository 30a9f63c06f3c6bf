"""The grammar of statements as patterns over one scenario's names: reads a sentence, or finds statements in a text."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import cast

from stages.puzzles.temporal_clue.formal import (
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
    SameRoom,
    Scenario,
    Statement,
    Together,
)

_JOINTS = ((" if and only if ", Iff), (" or ", Either))


@dataclass(frozen=True)
class Found:
    """A statement found in a text.

    Attributes:
        statement: What it says.
        start: Offset of its first character.
        end: Offset after its last character.
    """

    statement: Statement
    start: int
    end: int


def _one_of(names: Sequence[str]) -> str:
    """A pattern for any of `names`, the longest first; one that matches nothing if there are none."""
    if not names:
        return r"(?!)"
    return "(?:" + "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True)) + ")"


class Grammar:
    """The statements and questions that can be written about one scenario."""

    def __init__(self, scenario: Scenario) -> None:
        """Compiles the patterns of `scenario`."""
        self.scenario = scenario
        suspect, weapon, room = _one_of(scenario.suspects), _one_of(scenario.weapons), _one_of(scenario.rooms)
        motive = _one_of(scenario.motives)
        self._refs: dict[str, Ref] = {"mr. boddy": Ref("boddy"), "the murderer": Ref("murderer")}
        self._refs["the murder weapon"] = Ref("murder_weapon")
        self._refs |= {name.lower(): Ref("suspect", i) for i, name in enumerate(scenario.suspects)}
        self._refs |= {f"the {name.lower()}": Ref("weapon", i) for i, name in enumerate(scenario.weapons)}
        for i, name in enumerate(scenario.motives):
            for article in ("a", "the"):
                self._refs[f"{article} suspect motivated by {name.lower()}"] = Ref("motive", i)
        person = rf"(?:{suspect}|[Tt]he murderer|(?:[Aa]|[Tt]he) suspect motivated by {motive})"
        thing = rf"(?:[Tt]he {weapon}|[Tt]he murder weapon)"
        piece = rf"(?:Mr\. Boddy|{person}|{thing})"
        when = rf" at (?P<time>{_one_of(scenario.times)})" if scenario.times else ""
        once = " at least once" if scenario.times else ""
        place = rf"(?:in|at) the (?P<room>{room})"
        way = rf"from the (?P<origin>{room}) to the (?P<room>{room})"
        pair = rf"(?P<ref>{piece}) and (?P<second>{piece}) were"
        patterns = [
            ("at", rf"(?P<ref>{piece}) was (?P<no>not )?{place}{when}"),
            ("same", rf"(?P<ref>{piece}) was (?P<no>not )?in the same room as (?P<second>{piece}){when}"),
            (
                "beside",
                rf"(?P<ref>{piece}) was (?P<no>not )?in the room just (?P<direction>north|south|east|west) of "
                rf"(?P<second>{piece}){when}",
            ),
            ("together", rf"{pair} {place} together{once}"),
            ("together", rf"{pair} (?P<no>never ){place} together"),
            ("motive", rf"(?P<ref>{suspect}) is (?P<no>not )?motivated by (?P<motive>{motive})"),
            ("by", rf"Mr\. Boddy was (?P<no>not )?murdered by (?P<ref>{person})"),
            ("with", rf"Mr\. Boddy was (?P<no>not )?killed with (?P<ref>{thing})"),
            ("in", rf"Mr\. Boddy was (?P<no>not )?murdered {place}"),
        ]
        if scenario.times:
            mover = rf"(?:Mr\. Boddy|{person}|{thing})"
            patterns += [
                ("moved", rf"(?P<ref>{mover}) (?:moved|(?P<no>did not move)) {way}{when}"),
                ("carried", rf"(?P<ref>{person}) (?:moved|(?P<no>did not move)) (?P<second>{thing}) {way}{when}"),
                ("when", rf"Mr\. Boddy was (?P<no>not )?murdered{when}"),
            ]
        self._patterns = [(kind, re.compile(pattern)) for kind, pattern in patterns]
        bare = "|".join(re.sub(r"\(\?P<\w+>", "(?:", pattern) for _, pattern in patterns)
        self._atom = re.compile(rf"(?<!\w)(?:{bare})(?!\w)")
        self._where = re.compile(rf"Where was (?P<ref>{piece}){when}\?")
        self._motive_of = re.compile(rf"What motivates (?P<ref>{suspect})\?")
        self._suspect_of = re.compile(rf"Who is motivated by (?P<motive>{motive})\?")

    def _ref(self, words: str) -> Ref:
        return self._refs[words.lower()]

    def statement(self, sentence: str) -> Statement | None:
        """What `sentence` (without its final dot) says, or None where the grammar does not know it."""
        sentence = sentence.strip()
        denial = "it is not true that "
        if sentence[:1].lower() + sentence[1 : len(denial)] == denial:
            inner = self.statement(sentence[len(denial) :])
            return None if inner is None else Not(inner)
        simple = self._simple(sentence)
        if simple is not None:
            return simple
        for joint, kind in _JOINTS:
            start = sentence.find(joint)
            while start >= 0:
                first, second = self._simple(sentence[:start]), self._simple(sentence[start + len(joint) :])
                if first is not None and second is not None:
                    return kind(first, second)
                start = sentence.find(joint, start + 1)
        return None

    def _simple(self, sentence: str) -> Statement | None:
        for kind, pattern in self._patterns:
            match = pattern.fullmatch(sentence)
            if match:
                statement = self._built(kind, match)
                return Not(statement) if match.groupdict().get("no") else statement
        return None

    def _built(self, kind: str, match: re.Match[str]) -> Statement:
        scenario, groups = self.scenario, {k: v for k, v in match.groupdict().items() if v is not None}
        ref = self._ref(groups["ref"]) if "ref" in groups else Ref("boddy")
        second = self._ref(groups["second"]) if "second" in groups else Ref("boddy")
        room = scenario.rooms.index(groups["room"]) if "room" in groups else 0
        origin = scenario.rooms.index(groups["origin"]) if "origin" in groups else 0
        time = scenario.times.index(groups["time"]) if "time" in groups else 0
        match kind:
            case "at":
                return At(ref, room, time)
            case "same":
                return SameRoom(ref, second, time)
            case "beside":
                return Beside(ref, cast(Direction, groups["direction"]), second, time)
            case "together":
                return Together(ref, second, room)
            case "motive":
                return HasMotive(ref.index, scenario.motives.index(groups["motive"]))
            case "by":
                return MurderedBy(ref)
            case "with":
                return KilledWith(ref.index)
            case "in":
                return MurderedIn(room)
            case "moved":
                return Moved(ref, origin, room, time)
            case "carried":
                return Carried(ref, second, origin, room, time)
            case _:
                return MurderedAt(time)

    def question(self, sentence: str) -> Question | None:
        """What `sentence` asks, or None where the grammar does not know it."""
        fixed: dict[str, Question] = {
            "Who murdered Mr. Boddy?": Question("murderer"),
            "What weapon did the murderer use?": Question("weapon"),
            "Where was the murder committed?": Question("room"),
            "When did the murder occur?": Question("time"),
            "Why did the murderer do it?": Question("motive"),
        }
        if sentence in fixed:
            return fixed[sentence]
        if match := self._where.fullmatch(sentence):
            time = self.scenario.times.index(match["time"]) if self.scenario.times else 0
            return Question("where", self._ref(match["ref"]), time)
        if match := self._motive_of.fullmatch(sentence):
            return Question("motive_of", self._ref(match["ref"]))
        if match := self._suspect_of.fullmatch(sentence):
            return Question("suspect_of", Ref("motive", self.scenario.motives.index(match["motive"])))
        return None

    def find(self, text: str) -> Iterator[Found]:
        """The statements in `text`, in order; one that a joint continues into something unknown is left out."""
        atoms = list(self._atom.finditer(text))
        i = 0
        while i < len(atoms):
            atom = atoms[i]
            i += 1
            joint = next((j for j in _JOINTS if text.startswith(j[0], atom.end())), None)
            if joint is None:
                statement = self._simple(atom.group())
                if statement is not None:
                    yield Found(statement, atom.start(), atom.end())
                continue
            if i < len(atoms) and atoms[i].start() == atom.end() + len(joint[0]):
                first, second = self._simple(atom.group()), self._simple(atoms[i].group())
                if first is not None and second is not None:
                    yield Found(joint[1](first, second), atom.start(), atoms[i].end())
                i += 1


@lru_cache(maxsize=256)
def grammar_of(scenario: Scenario) -> Grammar:
    """The grammar of `scenario`, compiled once."""
    return Grammar(scenario)
