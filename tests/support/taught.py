"""The texts that a warm start teaches, whole."""

import polars as pl

from stages.environments.puzzle import Taught
from stages.environments.tables import taught_passages


def taught_texts(table: pl.DataFrame, taught: Taught | None) -> list[str]:
    """Returns the text that a model is taught for every puzzle of a table; see `taught_passages`."""
    return ["".join(passage.text for passage in passages) for passages in taught_passages(table, taught)]
