"""The puzzles of an evaluation outside a run: those that the user names, or those of a suite."""

from artifacts.errors import BadInputError
from artifacts.refs import Puzzles, Ref
from flows.config.suites import load_suite
from flows.inputs.puzzle_sets import named_puzzles, publish_set
from flows.session.calls import Stages
from stages.environments.tables import read_split
from stages.evaluate import EvaluateConfig
from stages.strategies.config import check_temperatures
from stages.strategies.figures import check_provable


def measured_puzzles(
    puzzles: str | None, suite: str | None, config: EvaluateConfig, stages: Stages
) -> tuple[Ref[Puzzles], str, EvaluateConfig]:
    """Returns the puzzle set, its split, and the config of the evaluation.

    If the config does not set the number of puzzles, all puzzles of a suite are taken.

    Args:
        puzzles: Puzzles as `named_puzzles` takes them; None for those of the suite.
        suite: Name of a suite in the package, or path of a TOML file; not read if `puzzles` is given.
        config: Settings of the evaluation.
        stages: The stages that make a missing set.

    Raises:
        BadInputError: There is no such suite, set, split or file, the split is empty, vLLM does not sample at a
            temperature, or a strategy cannot be measured on the puzzles.
    """
    check_temperatures(config, "evaluation")
    if puzzles is not None:
        chosen, split = named_puzzles(puzzles, stages)
    else:
        requested = load_suite(suite).puzzles
        count = config.puzzles if "puzzles" in config.model_fields_set else requested.test
        chosen, split, config = publish_set(stages, requested), "test", config.model_copy(update={"puzzles": count})
    table = read_split(stages.ctx.store, chosen, split).head(config.puzzles)
    if table.is_empty():
        raise BadInputError(f"split {split!r}", "no puzzles", "at least one", "name another split")
    if config.strategies:
        check_provable(config.strategies, sorted(table["environment"].unique()))
    return chosen, split, config
