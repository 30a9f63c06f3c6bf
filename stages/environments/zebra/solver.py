"""Zebra grids as CP-SAT models."""

from collections.abc import Sequence

import numpy as np
from ortools.sat.python import cp_model

from stages.environments.zebra.formal import Clue, Grid, Houses, InHouse, Related


class Model:
    """The rules of a grid, with clues that can be switched on.

    The rules say that every value is in one house, and that every house has one value of each attribute.

    Attributes:
        limit: CP-SAT's deterministic time that is left to all further solves together; None for no limit.
    """

    limit: float | None = None

    def __init__(self, grid: Grid, clues: Sequence[Clue]) -> None:
        """Builds the model; all clues are switched off."""
        self._grid, houses = grid, range(grid.houses)
        self._model = cp_model.CpModel()
        self._at = [[[self._model.new_bool_var("") for _ in houses] for _ in values] for values in grid.values]
        for table in self._at:
            for i in houses:
                self._model.add_exactly_one(table[i])
                self._model.add_exactly_one(row[i] for row in table)
        self._switches = [self._switch(clue) for clue in clues]
        self._added: dict[Clue, int] = {}

    def _switch(self, clue: Clue) -> cp_model.IntVar:
        on = self._model.new_bool_var("")
        if isinstance(clue, InHouse):
            place = self._at[clue.thing[0]][clue.thing[1]][clue.house]
            self._model.add_bool_or(~on, ~place if clue.no else place)
            return on
        for here, first in enumerate(self._at[clue.first[0]][clue.first[1]]):
            for there, second in enumerate(self._at[clue.second[0]][clue.second[1]]):
                if not self._allowed(clue, here, there):
                    self._model.add_bool_or(~on, ~first, ~second)
        return on

    def _allowed(self, clue: Related, here: int, there: int) -> bool:
        step = there - here
        truth = {"same": step == 0, "left": step == 1, "before": step > 0, "next": abs(step) == 1}[clue.relation]
        return truth != clue.no

    def add(self, clue: Clue) -> int:
        """Adds a clue that is switched off, unless it was added before, and returns its position."""
        if clue not in self._added:
            self._added[clue] = len(self._switches)
            self._switches.append(self._switch(clue))
        return self._added[clue]

    def exclude(self, world: Houses) -> None:
        """Excludes a world, int8 [1, attributes, values], from the solutions."""
        self._model.add_bool_or(
            ~self._at[a][v][int(house)] for a, row in enumerate(world[0]) for v, house in enumerate(row)
        )

    def solve(self, clues: Sequence[int]) -> Houses | None:
        """Returns a world in which the clues at some positions are true.

        Args:
            clues: Positions of the clues.

        Returns:
            The world, int8 [1, attributes, values]; None if there is none.

        Raises:
            TimeoutError: The `limit` was reached.
            RuntimeError: CP-SAT stopped without a result.
        """
        proto = self._model.proto
        before = len(proto.constraints)
        for i in clues:
            proto.constraints.add().bool_or.literals.append(self._switches[i].index)
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.random_seed = 0
        solver.parameters.cp_model_presolve = False
        solver.parameters.linearization_level = 0
        solver.parameters.symmetry_level = 0
        if self.limit is not None:
            solver.parameters.max_deterministic_time = self.limit
        status = solver.solve(self._model)
        del proto.constraints[before:]
        if self.limit is not None:
            self.limit = max(0.0, self.limit - solver.response_proto.deterministic_time)
            if solver.status_name(status) == "UNKNOWN":
                raise TimeoutError
        if solver.status_name(status) == "INFEASIBLE":
            return None
        if solver.status_name(status) not in ("OPTIMAL", "FEASIBLE"):
            raise RuntimeError(f"CP-SAT stopped with {solver.status_name(status)}")
        world = [[next(h for h, at in enumerate(row) if solver.value(at)) for row in table] for table in self._at]
        return np.array([world], dtype=np.int8)
