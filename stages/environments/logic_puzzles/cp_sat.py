"""A CP-SAT model that is solved many times: the parameters of the search, and one limit for all solves together.

Literals are integers, as in CP-SAT's protocol buffer: `i >= 0` is Boolean variable i, and `~i` is its negation.
"""

from collections.abc import Iterable, Sequence

from ortools.sat import cp_model_pb2
from ortools.sat.python import cp_model

Literal = int


class SolvedModel:
    """A model, and its solutions under further clauses.

    Attributes:
        model: The rules that all solves share.
        limit: CP-SAT's deterministic time that is left to all further solves together; None for no limit.
    """

    limit: float | None = None

    def __init__(self) -> None:
        """Makes an empty model."""
        self.model = cp_model.CpModel()

    def solve_with(self, clauses: Iterable[Sequence[Literal]], near: Sequence[Literal] = ()) -> Sequence[int] | None:
        """Solves the model with one worker and a fixed seed.

        Args:
            clauses: Clauses for this solve only: at least one literal of each must be true.
            near: Literals that the search sets to true, in this order, so that few of them are false in the solution.

        Returns:
            The values of all variables; None if there is no solution.

        Raises:
            TimeoutError: The `limit` was reached.
            RuntimeError: CP-SAT stopped without a result.
        """
        proto: cp_model_pb2.CpModelProto = self.model.proto
        before = len(proto.constraints)
        for clause in clauses:
            proto.constraints.add().bool_or.literals.extend(clause)
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        # Otherwise each solve restores SIGINT's default action, and Ctrl-C would kill this process at once.
        solver.parameters.catch_sigint_signal = False
        solver.parameters.random_seed = 0
        # Presolve would take most of the time, because propagation nearly solves these small models.
        solver.parameters.cp_model_presolve = False
        solver.parameters.linearization_level = 0
        solver.parameters.symmetry_level = 0
        if self.limit is not None:
            solver.parameters.max_deterministic_time = self.limit
        if near:
            strategy = proto.search_strategy.add()
            strategy.variables.extend(near)
            strategy.variable_selection_strategy = cp_model_pb2.DecisionStrategyProto.CHOOSE_FIRST
            strategy.domain_reduction_strategy = cp_model_pb2.DecisionStrategyProto.SELECT_MAX_VALUE
            solver.parameters.search_branching = cp_model.FIXED_SEARCH
        solver.solve(self.model)
        response = solver.response_proto
        del proto.constraints[before:]
        del proto.search_strategy[:]
        if self.limit is not None:
            self.limit = max(0.0, self.limit - response.deterministic_time)
            if response.status == cp_model_pb2.UNKNOWN:
                raise TimeoutError
        if response.status == cp_model_pb2.INFEASIBLE:
            return None
        if response.status not in (cp_model_pb2.OPTIMAL, cp_model_pb2.FEASIBLE):
            raise RuntimeError(f"CP-SAT stopped with {solver.status_name()}")
        return response.solution
