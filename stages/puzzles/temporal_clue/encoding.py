"""The game as a CP-SAT model: one encoding for generator, solver and deduction checker.

Literals are integers: `i >= 0` is Boolean variable i, `~i` its negation, as CP-SAT's own protocol buffer has it.
"""

from collections.abc import Iterable, Sequence

from ortools.sat import cp_model_pb2
from ortools.sat.python import cp_model

from stages.puzzles.temporal_clue.formal import (
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
    Shape,
    Statement,
    Together,
)
from stages.puzzles.temporal_clue.worlds import World

Literal = int


class Encoding:
    """The rules of the game over Boolean variables, and literals for statements on top of them.

    Attributes:
        at: Literal that piece p is in room r at time t, [P][T][R].
        murderer: Literal a suspect, [S].
        weapon: Literal a weapon, [W].
        time: Literal a time of the murder, [T].
        motive: Literal that suspect s has motive m, [S][M].
    """

    def __init__(self, shape: Shape) -> None:
        """Writes the rules for `shape`; no clue yet."""
        self.shape = shape
        self.model = cp_model.CpModel()
        self._proto: cp_model_pb2.CpModelProto = self.model.proto
        self._defined: dict[object, Literal] = {}
        self.true = self._variable()
        self._clause([self.true])
        self.at = [[self._one_of(shape.rooms) for _ in range(shape.times)] for _ in range(shape.pieces)]
        self.murderer = self._one_of(shape.suspects)
        self.weapon = self._one_of(shape.weapons)
        self.time = self._one_of(shape.times)
        self.motive = [
            self._one_of(len(shape.motive_counts)) for _ in range(shape.suspects if shape.motive_counts else 0)
        ]
        self.primary_count = len(self._proto.variables)
        self._rules()

    def copy(self) -> "Encoding":
        """An independent copy: what is added to it leaves this one as it is."""
        other = object.__new__(Encoding)
        other.__dict__.update(self.__dict__)
        other.model = cp_model.CpModel()
        other.model.proto.CopyFrom(self._proto)
        other._proto = other.model.proto
        other._defined = dict(self._defined)
        return other

    def _variable(self) -> Literal:
        self._proto.variables.add().domain.extend((0, 1))
        return len(self._proto.variables) - 1

    def _one_of(self, count: int) -> list[Literal]:
        if count == 1:
            return [self.true]
        found = [self._variable() for _ in range(count)]
        self._proto.constraints.add().exactly_one.literals.extend(found)
        return found

    def _clause(self, literals: Iterable[Literal]) -> None:
        self._proto.constraints.add().bool_or.literals.extend(literals)

    def _rules(self) -> None:
        shape = self.shape
        suspects, boddy, last = range(shape.suspects), shape.boddy, shape.times - 1
        for room in range(shape.rooms):
            final = self.at[boddy][last][room]
            for time in range(shape.times):
                given = [~self.time[time], ~final]
                for earlier in range(time + 1):
                    if time != last:
                        self._clause([~self.time[earlier], ~final, self.at[boddy][time][room]])
                for s in suspects:
                    self._clause([*given, ~self.murderer[s], self.at[s][time][room]])
                    self._clause([*given, self.murderer[s], ~self.at[s][time][room]])
                for w in range(shape.weapons):
                    self._clause([*given, ~self.weapon[w], self.at[shape.suspects + w][time][room]])
        for motive, count in enumerate(shape.motive_counts):
            holders = [self.motive[s][motive] for s in suspects]
            if count == 1:
                self._proto.constraints.add().exactly_one.literals.extend(holders)
            else:
                linear = self._proto.constraints.add().linear
                linear.vars.extend(holders)
                linear.coeffs.extend([1] * len(holders))
                linear.domain.extend((count, count))
        for time in range(1, shape.times):
            self._steps(time)

    def _steps(self, time: int) -> None:
        """Who may go where between `time - 1` and `time`."""
        shape = self.shape
        for origin in range(shape.rooms):
            reach = (origin, *shape.neighbours(origin))
            for piece in range(shape.pieces):
                before, after = self.at[piece][time - 1], self.at[piece][time]
                self._clause([~before[origin], *(after[room] for room in reach)])
                self._clause([~after[origin], *(before[room] for room in reach)])
            for target in reach[1:]:
                movers = [
                    self._all((self.at[s][time - 1][origin], self.at[s][time][target])) for s in range(shape.suspects)
                ]
                for w in range(shape.suspects, shape.boddy):
                    self._clause([~self.at[w][time - 1][origin], ~self.at[w][time][target], *movers])

    def _all(self, parts: Sequence[Literal]) -> Literal:
        """A literal true exactly where all of `parts` are."""
        wanted = tuple(sorted({part for part in parts if part != self.true}))
        if ~self.true in wanted or any(~part in wanted for part in wanted):
            return ~self.true
        if not wanted:
            return self.true
        if len(wanted) == 1:
            return wanted[0]
        key = ("all", wanted)
        if key not in self._defined:
            literal = self._defined[key] = self._variable()
            for part in wanted:
                self._clause([~literal, part])
            self._clause([literal, *(~part for part in wanted)])
        return self._defined[key]

    def _any(self, parts: Sequence[Literal]) -> Literal:
        return ~self._all([~part for part in parts])

    def _bearers(self, ref: Ref) -> list[tuple[int, Literal]]:
        """The pieces `ref` may stand for, each with the literal that it does."""
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
        """Literals that `ref` (some bearer of it) is in each room at `time`, [R]."""
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
        """A literal that is true exactly where `statement` is."""
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
        """True where `first` is in `partner[r]` when `second` is in room r."""
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

    def require(self, literals: Sequence[Literal]) -> None:
        """At least one of `literals` must be true."""
        self._clause(literals)

    def truths(self, world: World) -> list[Literal]:
        """The literals that together say that the world is `world`."""
        shape = self.shape
        found = [self.at[p][t][world.rooms[p][t]] for p in range(shape.pieces) for t in range(shape.times)]
        found += [self.murderer[world.murderer], self.weapon[world.weapon], self.time[world.time]]
        return found + [self.motive[s][m] for s, m in enumerate(world.motives)]

    def world(self, values: Sequence[int]) -> World:
        """The world that an assignment of all variables describes."""

        def chosen(literals: Sequence[Literal]) -> int:
            return next(i for i, literal in enumerate(literals) if values[literal])

        return World(
            tuple(tuple(chosen(rooms) for rooms in piece) for piece in self.at),
            tuple(chosen(motives) for motives in self.motive),
            chosen(self.murderer),
            chosen(self.weapon),
            chosen(self.time),
        )

    def solve(self, assumptions: Sequence[Literal] = ()) -> Sequence[int] | None:
        """Solves with one worker and a fixed seed; the values of all variables, or None where there is no solution."""
        self._proto.ClearField("assumptions")
        self._proto.assumptions.extend(assumptions)
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.random_seed = 0
        # Most of a solve here is preparation: these models are small, and propagation does nearly all of the work.
        solver.parameters.cp_model_presolve = False
        solver.parameters.linearization_level = 0
        solver.parameters.symmetry_level = 0
        self.status = solver.solve(self.model)
        if self.status == cp_model.INFEASIBLE:
            self.core = tuple(solver.sufficient_assumptions_for_infeasibility())
            return None
        if self.status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            raise RuntimeError(f"CP-SAT stopped with {solver.status_name(self.status)}")
        return solver.response_proto.solution
