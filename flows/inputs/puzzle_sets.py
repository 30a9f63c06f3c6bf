"""Returns puzzle sets from a config, a file or RUN:SPLIT, and runs the stages that make them."""

from artifacts.documents.parsing import exists
from artifacts.errors import BadInputError
from artifacts.layout import shared_key
from artifacts.manifest import MANIFEST_NAME
from artifacts.reading import Artifact
from artifacts.refs import Puzzles, Ref
from artifacts.store.location import local_folder
from artifacts.store.store import Store
from artifacts.verification import noted
from flows.config.recipes import validate
from flows.lookup.splits import named_split
from flows.session import Stages
from stages.draw import address_of, draw
from stages.environments.config import SourceConfig
from stages.prepare import PrepareConfig, identity_of, prepare, settings_without_locations


def named_puzzles(name: str, stages: Stages) -> tuple[Ref[Puzzles], str]:
    """Returns the puzzle set and split that a name means: RUN:SPLIT, KEY:SPLIT of a set in the store, or a JSON file.

    Raises:
        BadInputError: There is no such run, set, split or file.
    """
    if name.endswith((".jsonl", ".ndjson", ".csv", ".parquet")):
        raise BadInputError(
            f"--puzzles {name}",
            "a file of questions, which needs the columns and the grader of a recipe",
            "RUN:SPLIT of a run on this file, or a JSON file in the published format",
            "train with a recipe that names the file in puzzles.puzzle.path; with iterations = 0 it only evaluates",
        )
    if ":" not in name or name.endswith(".json"):
        config = validate(PrepareConfig, {"file": name}, f"--puzzles {name}")
        return publish_set(stages, config, "file"), "test"
    return named_split(name, stages.ctx.store, f"--puzzles {name}")


def publish_set(stages: Stages, config: PrepareConfig, name: str = "set") -> Ref[Puzzles]:
    """Publishes the puzzle set of a config unless it exists, and returns it; runs with the same config share it.

    If a file of questions no longer exists, the set that was last made from it is used. So a run can continue on a
    machine without that file.
    """
    if isinstance(config.puzzle, SourceConfig) and (made := made_from_a_lost_file(config, stages.ctx.store)):
        stages.ctx.log.warning("%s does not exist; using the set made from it: %s", config.puzzle.location, made.key)
        return made
    identity = identity_of(config)
    out = stages.address(shared_key("puzzles", name, identity), Puzzles)
    if out.find(identity) is None and (missing := config.first_stretches()):
        stages.map(draw, missing, label="{config.first}", out=lambda stretch: address_of(stretch, stages.ctx.store))
    return stages.run(prepare, config, out=out)


_CONTENT = ("sha256", "math_verify")
"""What the identity of a set names beside its config: the file's content and what reads it."""


def made_from_a_lost_file(config: PrepareConfig, store: Store) -> Ref[Puzzles] | None:
    """Returns the set last made from a local file of questions that is missing; None if the file exists or no set does.

    Args:
        config: The set's config, with a file of questions.
        store: The store with the sets.
    """
    assert isinstance(config.puzzle, SourceConfig)
    location = config.puzzle.location
    file = None if location is None else local_folder(location)
    if file is None or exists(file):
        return None
    settings = settings_without_locations(config)
    sets: list[Artifact] = []
    for key in store.list("puzzles"):
        if key.startswith("puzzles/set-") and key.endswith(f"/{MANIFEST_NAME}") and key.count("/") == 2:
            with noted([], key):  # skips a damaged set, which `verify` reports
                sets.append(Artifact.at(store, key.removesuffix(f"/{MANIFEST_NAME}")))
    same = [
        item
        for item in sets
        if item.manifest.facts.get("file") == location
        and settings == {name: value for name, value in item.manifest.identity.config.items() if name not in _CONTENT}
    ]
    newest = max(same, key=lambda item: item.manifest.made_at, default=None)
    return None if newest is None else newest.ref
