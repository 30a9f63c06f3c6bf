"""Zebra grids as CP-SAT models."""

from collections.abc import Sequence

import numpy as np
from ortools.sat.python import cp_model

from stages.environments.logic_puzzles.cp_sat import SolvedModel
from stages.environments.zebra.formal import Clue, Grid, Houses, InHouse, related


class GridModel(SolvedModel):
    """The rules of a grid, with clues that can be switched on.

    The rules say that every value is in one house, and that every house has one value of each attribute.
    """

    def __init__(self, grid: Grid, clues: Sequence[Clue]) -> None:
        """Builds the model; all clues are switched off."""
        super().__init__()
        self._grid, houses = grid, range(grid.houses)
        self._at = [[[self.model.new_bool_var("") for _ in houses] for _ in values] for values in grid.values]
        for table in self._at:
            for i in houses:
                self.model.add_exactly_one(table[i])
                self.model.add_exactly_one(row[i] for row in table)
        self._switches = [self._switch(clue) for clue in clues]
        self._added: dict[Clue, int] = {}

    def _switch(self, clue: Clue) -> cp_model.IntVar:
        on = self.model.new_bool_var("")
        if isinstance(clue, InHouse):
            place = self._at[clue.thing[0]][clue.thing[1]][clue.house]
            self.model.add_bool_or(~on, ~place if clue.no else place)
            return on
        houses = np.arange(self._grid.houses)
        allowed = related(clue, houses[None, :] - houses[:, None])
        for here, first in enumerate(self._at[clue.first[0]][clue.first[1]]):
            for there, second in enumerate(self._at[clue.second[0]][clue.second[1]]):
                if not allowed[here, there]:
                    self.model.add_bool_or(~on, ~first, ~second)
        return on

    def add(self, clue: Clue) -> int:
        """Adds a clue that is switched off, unless it was added before, and returns its position."""
        if clue not in self._added:
            self._added[clue] = len(self._switches)
            self._switches.append(self._switch(clue))
        return self._added[clue]

    def exclude(self, world: Houses) -> None:
        """Excludes a world, int8 [1, attributes, values], from the solutions."""
        self.model.add_bool_or(
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
        values = self.solve_with([self._switches[i].index] for i in clues)
        if values is None:
            return None
        world = [[next(h for h, at in enumerate(row) if values[at.index]) for row in table] for table in self._at]
        return np.array([world], dtype=np.int8)
