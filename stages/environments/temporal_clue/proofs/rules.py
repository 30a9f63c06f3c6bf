"""The rules of the game as a CP-SAT model over Boolean variables."""

from collections.abc import Iterable, Sequence
from typing import Literal as Literal_
from typing import Self

from ortools.sat import cp_model_pb2
from ortools.sat.python import cp_model

from stages.environments.logic_puzzles.cp_sat import Literal, SolvedModel
from stages.environments.temporal_clue.formal import Shape
from stages.environments.temporal_clue.worlds import World

Rule = Literal_["elimination", "scene", "alone", "stays", "moves", "carrying", "motives"]
"""A rule of the game that a deduction may use.

`elimination`: a piece has a room, the murder a murderer, and so on, so the last remaining possibility is true. `scene`:
murderer and weapon are with the victim at the murder. `alone`: no other suspect is. `stays`: the victim stays where he
died. `moves`: pieces move to adjacent rooms only. `carrying`: weapons move only with a suspect. `motives`: the number
of suspects with each motive is as given.
"""


class Rules(SolvedModel):
    """The rules for one shape, and their solutions.

    Attributes:
        at: Literals [P][T][R]: piece p is in room r at time t.
        murderer: Literals [S]: suspect s is the murderer.
        weapon: Literals [W]: weapon w is the murder weapon.
        time: Literals [T]: the murder happened at time t.
        motive: Literals [S][M]: suspect s has motive m.
    """

    def __init__(self, shape: Shape, without: Rule | None = None) -> None:
        """Builds the model with the rules for `shape`, or all of them but one, and without clues."""
        super().__init__()
        self.shape, self._without = shape, without
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
        self._add_rules()

    def copy(self) -> Self:
        """Returns an independent copy; additions to it do not change this model."""
        other = object.__new__(type(self))
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
        literals = [self._variable() for _ in range(count)]
        constraint = self._proto.constraints.add()
        (constraint.at_most_one if self._without == "elimination" else constraint.exactly_one).literals.extend(literals)
        return literals

    def _clause(self, literals: Iterable[Literal]) -> None:
        self._proto.constraints.add().bool_or.literals.extend(literals)

    def _add_rules(self) -> None:
        shape = self.shape
        suspects, boddy, last = range(shape.suspects), shape.boddy, shape.times - 1
        for room in range(shape.rooms):
            final = self.at[boddy][last][room]
            for time in range(shape.times):
                unless = [~self.time[time], ~final]
                for earlier in range(time + 1):
                    if time != last and self._without != "stays":
                        self._clause([~self.time[earlier], ~final, self.at[boddy][time][room]])
                for s in suspects:
                    if self._without != "scene":
                        self._clause([*unless, ~self.murderer[s], self.at[s][time][room]])
                    if self._without != "alone":
                        self._clause([*unless, self.murderer[s], ~self.at[s][time][room]])
                for w in range(shape.weapons):
                    if self._without != "scene":
                        self._clause([*unless, ~self.weapon[w], self.at[shape.suspects + w][time][room]])
        for motive, count in enumerate(() if self._without == "motives" else shape.motive_counts):
            holders = [self.motive[s][motive] for s in suspects]
            if count == 1:
                self._proto.constraints.add().exactly_one.literals.extend(holders)
            else:
                linear = self._proto.constraints.add().linear
                linear.vars.extend(holders)
                linear.coeffs.extend([1] * len(holders))
                linear.domain.extend((count, count))
        for time in range(1, shape.times):
            self._add_moves(time)

    def _add_moves(self, time: int) -> None:
        """Adds the rules for moves between `time - 1` and `time`."""
        shape = self.shape
        for origin in range(shape.rooms):
            reach = (origin, *shape.neighbours(origin))
            for piece in range(shape.pieces):
                before, after = self.at[piece][time - 1], self.at[piece][time]
                if self._without == "moves":
                    continue
                self._clause([~before[origin], *(after[room] for room in reach)])
                self._clause([~after[origin], *(before[room] for room in reach)])
            for target in reach[1:]:
                movers = [
                    self._all((self.at[s][time - 1][origin], self.at[s][time][target])) for s in range(shape.suspects)
                ]
                for w in range(shape.suspects, shape.boddy if self._without != "carrying" else 0):
                    self._clause([~self.at[w][time - 1][origin], ~self.at[w][time][target], *movers])

    def _all(self, parts: Sequence[Literal]) -> Literal:
        """Returns a literal that is true if and only if all of `parts` are true."""
        literals = tuple(sorted({part for part in parts if part != self.true}))
        if ~self.true in literals or any(~part in literals for part in literals):
            return ~self.true
        if not literals:
            return self.true
        if len(literals) == 1:
            return literals[0]
        key = ("all", literals)
        if key not in self._defined:
            literal = self._defined[key] = self._variable()
            for part in literals:
                self._clause([~literal, part])
            self._clause([literal, *(~part for part in literals)])
        return self._defined[key]

    def _any(self, parts: Sequence[Literal]) -> Literal:
        return ~self._all([~part for part in parts])

    def require(self, literals: Sequence[Literal]) -> None:
        """Adds the constraint that at least one of `literals` is true."""
        self._clause(literals)

    def truths(self, world: World) -> list[Literal]:
        """Returns the literals that are all true in `world` and in no other world."""
        shape = self.shape
        literals = [self.at[p][t][world.rooms[p][t]] for p in range(shape.pieces) for t in range(shape.times)]
        literals += [self.murderer[world.murderer], self.weapon[world.weapon], self.time[world.time]]
        return literals + [self.motive[s][m] for s, m in enumerate(world.motives)]

    def allows_other(self, world: World) -> bool:
        """Returns whether the model allows a world besides `world` (one solve)."""
        others = self.copy()
        others.require([~literal for literal in others.truths(world)])
        return others.solve() is not None

    def world(self, values: Sequence[int]) -> World:
        """Returns the world that the values of all variables describe."""

        def chosen(literals: Sequence[Literal]) -> int:
            return next(i for i, literal in enumerate(literals) if values[literal])

        return World(
            tuple(tuple(chosen(rooms) for rooms in piece) for piece in self.at),
            tuple(chosen(motives) for motives in self.motive),
            chosen(self.murderer),
            chosen(self.weapon),
            chosen(self.time),
        )

    def solve(
        self, given: Sequence[Literal] = (), near: Sequence[Literal] = (), some: Sequence[Literal] = ()
    ) -> Sequence[int] | None:
        """Solves the model.

        Args:
            given: Literals that must be true in this solve.
            near: Literals that the search sets to true, in this order, so that few of them are false in the solution.
            some: Literals of which at least one must be true in this solve, unless the list is empty.

        Returns:
            The values of all variables; None if there is no solution.

        Raises:
            TimeoutError: The `limit` was reached.
            RuntimeError: CP-SAT stopped without a result.
        """
        clauses = [[literal] for literal in given]
        return self.solve_with([*clauses, some] if some else clauses, near)
