"""The puzzles of an evaluation outside a run: those that the user names, or those of a suite."""

from artifacts.refs import Puzzles, Ref
from flows.config.suites import load_suite, required_suite
from flows.inputs.puzzle_sets import named_puzzles, publish_set
from flows.session import Stages
from stages.evaluate import EvaluateConfig


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
        BadInputError: There is no such suite, set, split or file.
    """
    if puzzles is not None:
        return *named_puzzles(puzzles, stages), config
    requested = load_suite(required_suite(suite)).puzzles
    count = config.puzzles if "puzzles" in config.model_fields_set else requested.test
    return publish_set(stages, requested), "test", config.model_copy(update={"puzzles": count})
