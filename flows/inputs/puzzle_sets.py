"""Returns puzzle sets from a config, a file or RUN:SPLIT, and runs the stages that make them."""

import logging
from collections.abc import Callable

from artifacts.errors import BadInputError
from artifacts.layout import Shared, shared_key
from artifacts.manifest import Manifest
from artifacts.reading import is_published
from artifacts.refs import Puzzles, Ref
from artifacts.store.store import Store
from flows.config.recipes import validate
from flows.lookup.lost_sources import is_lost, made_from_a_lost_source
from flows.lookup.splits import named_split, set_of_run, whole_set
from flows.session.calls import Stages
from flows.session.session import Session
from stages.draw import address_of, draw
from stages.environments.config import SourceConfig
from stages.environments.question_file.config import REMOTE, place_of
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


def publish_set(
    stages: Stages, config: PrepareConfig, name: str = "set", meanwhile: Callable[[], None] = lambda: None
) -> Ref[Puzzles]:
    """Publishes the puzzle set of a config unless it exists, and returns it; runs with the same config share it.

    If a file of questions no longer exists, the set that was last made from it is used. Files of the hub and of web
    servers are read once: the set made from them stays the same.

    Args:
        meanwhile: Called while puzzles are drawn; never if none are.
    """
    if isinstance(config.puzzle, SourceConfig) and (made := made_from_a_lost_file(config, stages.ctx.store)):
        _say_it_is_not_read(config.puzzle.location, made, stages)
        return made
    identity = identity_of(config)
    out = stages.address(shared_key(Shared.PUZZLES, name, identity), Puzzles)
    if out.find(identity) is None and (missing := config.first_stretches()):
        stages.map(
            draw, missing, label="{config.first}", out=lambda stretch: address_of(stretch, stages.ctx.store),
            meanwhile=meanwhile,
        )  # fmt: skip
    return stages.run(prepare, config, out=out)


def publish_set_of_run(session: Session, meanwhile: Callable[[], None]) -> Ref[Puzzles]:
    """Returns the puzzle set of a run's recipe, which is published unless it exists (see `publish_set`).

    A run that has begun goes on with its set if the file of the questions is not on this machine.

    Raises:
        BadInputError: The file of the questions has changed since the run began.
    """
    config, store = session.recipe.puzzles, session.ctx.store
    location = config.puzzle.location if isinstance(config.puzzle, SourceConfig) else None
    if location is None or not is_published(store, session.layout.iteration(0, "report")):
        return publish_set(session, config, meanwhile=meanwhile)
    used = whole_set(set_of_run(session.layout, store)).ref
    if is_lost(location):
        _say_it_is_not_read(location, used, session)
        return used
    puzzles = publish_set(session, config)
    if puzzles.digest != used.digest:
        raise BadInputError(
            location, "changed since the run began", f"the content from which {used.key} was made",
            "restore the file, or use another run name",
        )  # fmt: skip
    return puzzles


def _say_it_is_not_read(location: str | None, made: Ref[Puzzles], stages: Stages) -> None:
    level = logging.INFO if location is not None and location.startswith(REMOTE) else logging.WARNING
    stages.ctx.log.log(level, "%s is not read; using the set made from it: %s", location, made.key)


_CONTENT = ("sha256", "dataset", "commit", "files", "math_verify")
"""What the identity of a set names beside its config: the content of the files and what reads it."""


def made_from_a_lost_file(config: PrepareConfig, store: Store) -> Ref[Puzzles] | None:
    """Returns the set last made from a file of questions that is missing or not on this machine; else None.

    Args:
        config: The set's config, with a file of questions.
        store: The store with the sets.
    """
    assert isinstance(config.puzzle, SourceConfig)
    settings, location = settings_without_locations(config), config.puzzle.location

    def same(made: Manifest) -> bool:
        asked = {name: value for name, value in made.identity.config.items() if name not in _CONTENT}
        return made.facts.get("place") == place_of(location) and asked == settings

    return made_from_a_lost_source(location, Shared.PUZZLES, "set", same, store)
