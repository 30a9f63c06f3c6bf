"""The puzzles of an evaluation outside a run: those that the user names, or those of a suite."""

from artifacts.reading import Artifact
from artifacts.refs import Puzzles, Ref
from artifacts.schemas import PUZZLES
from flows.config.suites import load_suite, required_suite
from flows.inputs.puzzle_sets import named_puzzles, publish_set
from flows.session.calls import Stages
from stages.evaluate import EvaluateConfig
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
        BadInputError: There is no such suite, set, split or file, or a strategy cannot be measured on the puzzles.
    """
    if puzzles is not None:
        chosen, split = named_puzzles(puzzles, stages)
    else:
        requested = load_suite(required_suite(suite)).puzzles
        count = config.puzzles if "puzzles" in config.model_fields_set else requested.test
        chosen, split, config = publish_set(stages, requested), "test", config.model_copy(update={"puzzles": count})
    if config.strategies:
        table = Artifact.open(stages.ctx.store, chosen).read_table(f"{split}.parquet", PUZZLES)
        check_provable(config.strategies, sorted(table["environment"].unique()))
    return chosen, split, config
