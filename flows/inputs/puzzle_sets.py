"""Returns puzzle sets from a config, a file or RUN:SPLIT, and runs the stages that make them."""

from artifacts.layout import shared_key
from artifacts.refs import Puzzles, Ref
from flows.config.recipes import validate
from flows.lookup.splits import named_split
from flows.session import Stages
from stages.draw import address_of, draw
from stages.prepare import PrepareConfig, identity_of, prepare


def named_puzzles(name: str, stages: Stages) -> tuple[Ref[Puzzles], str]:
    """Returns the puzzle set and split that a name means: RUN:SPLIT, KEY:SPLIT of a set in the store, or a JSON file.

    Raises:
        BadInputError: There is no such run, set, split or file.
    """
    if ":" not in name or name.endswith(".json"):
        config = validate(PrepareConfig, {"file": name}, f"--puzzles {name}")
        return publish_set(stages, config, "file"), "test"
    return named_split(name, stages.ctx.store, f"--puzzles {name}")


def publish_set(stages: Stages, config: PrepareConfig, name: str = "set") -> Ref[Puzzles]:
    """Publishes the puzzle set of a config unless it exists, and returns it; runs with the same config share it."""
    identity = identity_of(config)
    out = stages.address(shared_key("puzzles", name, identity), Puzzles)
    if out.find(identity) is None and (missing := config.first_stretches()):
        stages.map(draw, missing, label="{config.first}", out=lambda stretch: address_of(stretch, stages.ctx.store))
    return stages.run(prepare, config, out=out)
