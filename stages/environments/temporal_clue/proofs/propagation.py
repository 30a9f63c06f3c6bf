"""Unit propagation over the clauses of an encoding: finds the literals that follow without a case split."""

from collections.abc import Iterable, Sequence

from ortools.sat import cp_model_pb2

from stages.environments.logic_puzzles.cp_sat import Literal


class Propagation:
    """The constraints of a model over Booleans, as clauses and as groups of which a fixed number is true.

    Args:
        proto: A model with the constraints of `Rules` and `Encoding` only.
    """

    def __init__(self, proto: cp_model_pb2.CpModelProto) -> None:
        self._clauses: list[Sequence[Literal]] = []
        self._groups: list[tuple[Sequence[Literal], int]] = []
        for constraint in proto.constraints:
            match constraint.WhichOneof("constraint"):
                case "bool_or":
                    self._clauses.append(list(constraint.bool_or.literals))
                case "exactly_one":
                    self._groups.append((list(constraint.exactly_one.literals), 1))
                case _:
                    self._groups.append((list(constraint.linear.vars), constraint.linear.domain[0]))
        self._clauses_of: dict[Literal, list[int]] = {}
        self._groups_of: dict[int, list[int]] = {}
        for number, clause in enumerate(self._clauses):
            for literal in clause:
                self._clauses_of.setdefault(~literal, []).append(number)
        for number, (group, _) in enumerate(self._groups):
            for literal in group:
                self._groups_of.setdefault(max(literal, ~literal), []).append(number)
        self._facts = [clause[0] for clause in self._clauses if len(clause) == 1]

    def closure(self, given: Iterable[Literal]) -> set[Literal]:
        """Returns the literals that follow from `given` by propagation; `given` must not contradict the model."""
        true: set[Literal] = set()
        waiting = [*self._facts, *given]
        while waiting:
            literal = waiting.pop()
            if literal in true:
                continue
            true.add(literal)
            for number in self._clauses_of.get(literal, ()):
                clause = self._clauses[number]
                if not any(other in true for other in clause):
                    left = [other for other in clause if ~other not in true]
                    if len(left) == 1:
                        waiting.append(left[0])
            for number in self._groups_of.get(max(literal, ~literal), ()):
                group, count = self._groups[number]
                held = sum(other in true for other in group)
                left = [other for other in group if other not in true and ~other not in true]
                if held == count:
                    waiting += [~other for other in left]
                elif held + len(left) == count:
                    waiting += left
        return true
