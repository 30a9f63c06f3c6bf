"""Reads completions with their grades."""

import polars as pl

from artifacts.errors import IntegrityError
from artifacts.reading import Artifact
from artifacts.refs import Grades, Ref, Rollouts
from artifacts.schemas import GRADES, GRADES_FILE, ROLLOUTS
from artifacts.store.store import Store


def graded_rollouts(store: Store, rollouts: Ref[Rollouts], grades: Ref[Grades]) -> pl.DataFrame:
    """Returns completions with their grades, sorted by group and sample.

    Raises:
        IntegrityError: The grades are not those of the rollouts.
    """
    completions = Artifact.open(store, rollouts).read_tables(ROLLOUTS)
    rows = Artifact.open(store, grades).read_table(GRADES_FILE, GRADES)
    graded = completions.join(rows, on=["prompt_id", "group", "sample"], validate="1:1").sort("group", "sample")
    if not len(graded) == len(completions) == len(rows):
        problem = f"{len(graded)} of its {len(rows)} rows belong to one of the {len(completions)} completions"
        raise IntegrityError(grades.key, problem, f"a grade for each completion of {rollouts.key}")
    return graded
