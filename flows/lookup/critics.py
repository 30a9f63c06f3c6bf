"""Finds critics, and the iterations on which they are pretrained."""

from typing import Any

from artifacts.errors import BadInputError
from artifacts.layout import RunLayout
from artifacts.reading import Artifact
from artifacts.refs import Critic, Ref
from artifacts.store.store import Store
from stages.training.critic import PretrainConfig


def stored_critic(name: str, store: Store) -> Ref[Any]:
    """Returns the critic with a name RUN@ITERATION.

    Raises:
        BadInputError: The store does not have it.
    """
    run, _, number = name.partition("@")
    try:
        return Artifact.at(store, RunLayout(run).iteration(int(number), "critic"), Critic).ref
    except BadInputError as error:
        raise BadInputError(
            f"value.source: {name}", f"no critic in {store.url}", "that of a finished iteration",
            "name a run whose recipe has a section [value]",
        ) from error  # fmt: skip


def stored_parts(config: PretrainConfig, part: str, store: Store) -> list[Ref[Any]]:
    """Returns the rollouts or grades of the iterations on which a critic is pretrained.

    Raises:
        BadInputError: The store lacks one of them.
    """
    layout, refs = RunLayout(config.run), list[Ref[Any]]()
    for number in range(config.first, config.last + 1):
        try:
            refs.append(Artifact.at(store, layout.iteration(number, part)).ref)
        except BadInputError as error:
            raise BadInputError(
                f"value.pretrain: {layout.run}@{number}", f"no {part} in {store.url}",
                f"those of iterations {config.first} to {config.last}",
                f"let {layout.run} finish them, or name iterations that are finished",
            ) from error  # fmt: skip
    return refs
