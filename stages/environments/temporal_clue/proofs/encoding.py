"""Adds literals for statements to the rules, for generator, solver and proofs."""

from collections.abc import Sequence

from stages.environments.temporal_clue.formal import (
    At,
    Beside,
    Carried,
    Either,
    HasMotive,
    Iff,
    KilledWith,
    Moved,
    MurderedAt,
    MurderedBy,
    MurderedIn,
    Not,
    Ref,
    SameRoom,
    Statement,
    Together,
)
from stages.environments.temporal_clue.proofs.rules import Literal, Rules


class Encoding(Rules):
    """The rules with a literal for every statement. Equal statements have the same literal."""

    def _bearers(self, ref: Ref) -> list[tuple[int, Literal]]:
        """Returns the pieces that `ref` may refer to, each with a literal that is true if it does."""
        shape = self.shape
        match ref.kind:
            case "suspect":
                return [(ref.index, self.true)]
            case "weapon":
                return [(shape.suspects + ref.index, self.true)]
            case "boddy":
                return [(shape.boddy, self.true)]
            case "murderer":
                return list(enumerate(self.murderer))
            case "murder_weapon":
                return [(shape.suspects + w, literal) for w, literal in enumerate(self.weapon)]
            case "motive":
                return [(s, self.motive[s][ref.index]) for s in range(shape.suspects)]

    def _single(self, ref: Ref) -> bool:
        return ref.kind != "motive" or self.shape.motive_counts[ref.index] == 1

    def located(self, ref: Ref, time: int) -> list[Literal]:
        """Returns a literal for each room, true if `ref`, or one suspect with its motive, is there at `time`."""
        bearers = self._bearers(ref)
        if len(bearers) == 1:
            return self.at[bearers[0][0]][time]
        rooms = range(self.shape.rooms)
        if not self._single(ref):
            return [self._any([self._all((c, self.at[p][time][room])) for p, c in bearers]) for room in rooms]
        key = ("located", ref, time)
        if key not in self._defined:
            self._defined[key] = len(self._proto.variables)
            for room, literal in enumerate(self._one_of(self.shape.rooms)):
                for piece, bears in bearers:
                    self._clause([~bears, ~self.at[piece][time][room], literal])
                    self._clause([~bears, self.at[piece][time][room], ~literal])
        start = self._defined[key]
        return [start + room for room in rooms]

    def literal(self, statement: Statement) -> Literal:
        """Returns a literal that is true if and only if `statement` is."""
        if statement not in self._defined:
            self._defined[statement] = self._literal(statement)
        return self._defined[statement]

    def _literal(self, statement: Statement) -> Literal:
        match statement:
            case At(ref, room, time):
                return self.located(ref, time)[room]
            case SameRoom(first, second, time):
                return self._paired(first, second, time, list(range(self.shape.rooms)))
            case Beside(first, direction, second, time):
                return self._paired(
                    first, second, time, [self.shape.beside(r, direction) for r in range(self.shape.rooms)]
                )
            case Together(first, second, room):
                times = range(self.shape.times)
                return self._any(
                    [self._all((self.located(first, t)[room], self.located(second, t)[room])) for t in times]
                )
            case Moved(ref, origin, target, time):
                return self._moved(ref, origin, target, time)
            case Carried(ref, weapon, origin, target, time):
                return self._all((self._moved(ref, origin, target, time), self._moved(weapon, origin, target, time)))
            case HasMotive(suspect, motive):
                return self.motive[suspect][motive]
            case MurderedBy(ref):
                return self._any([self._all((bears, self.murderer[s])) for s, bears in self._bearers(ref)])
            case KilledWith(weapon):
                return self.weapon[weapon]
            case MurderedIn(room):
                return self.at[self.shape.boddy][-1][room]
            case MurderedAt(time):
                return self.time[time]
            case Not(inner):
                return ~self.literal(inner)
            case Iff(first, second):
                return self._equal(self.literal(first), self.literal(second))
            case Either(first, second):
                return ~self._equal(self.literal(first), self.literal(second))

    def _equal(self, first: Literal, second: Literal) -> Literal:
        literal = self._variable()
        for a, b in ((first, second), (second, first)):
            self._clause([~literal, ~a, b])
        self._clause([literal, first, second])
        self._clause([literal, ~first, ~second])
        return literal

    def _moved(self, ref: Ref, origin: int, target: int, time: int) -> Literal:
        if self._single(ref):
            return self._all((self.located(ref, time - 1)[origin], self.located(ref, time)[target]))
        return self._any(
            [
                self._all((bears, self.at[p][time - 1][origin], self.at[p][time][target]))
                for p, bears in self._bearers(ref)
            ]
        )

    def _paired(self, first: Ref, second: Ref, time: int, partner: Sequence[int | None]) -> Literal:
        """Returns the literal for `first` being in room `partner[r]`, where r is the room of `second`."""
        here, there = self.located(first, time), self.located(second, time)
        matches = [~self.true if p is None else here[p] for p in partner]
        if not (self._single(first) or self._single(second)):
            return self._any([self._all((match, place)) for match, place in zip(matches, there, strict=True)])
        if not self._single(second):
            back = [partner.index(room) if room in partner else None for room in range(len(partner))]
            matches, there = [~self.true if b is None else there[b] for b in back], here
        literal = self._variable()
        for match, place in zip(matches, there, strict=True):
            self._clause([~literal, ~place, match])
            self._clause([literal, ~place, ~match])
        return literal
