"""The stage that generates one stretch of an endless stream of puzzles."""

from collections.abc import Iterator
from functools import partial

from pydantic import Field

from artifacts.address import ArtifactAddress
from artifacts.config import Config
from artifacts.identity import Identity
from artifacts.layout import Shared, shared_key
from artifacts.refs import Draw, Ref
from artifacts.schemas import PUZZLES
from artifacts.store.store import Store
from stages.context import StageContext
from stages.environments.generate import GeneratedPuzzleConfig, PuzzleConfig, generate_nth
from stages.environments.tables import to_table

REVISION = 1
TABLE = "puzzles.parquet"


class DrawConfig(Config):
    """Selects puzzles `first` to `first + count - 1` of the stream of a difficulty and a seed."""

    puzzle: GeneratedPuzzleConfig = Field(default_factory=PuzzleConfig)
    seed: int = Field(default=0, ge=0)
    first: int = Field(ge=0)
    count: int = Field(ge=1)


def draw(ctx: StageContext, config: DrawConfig, *, out: ArtifactAddress[Draw]) -> Ref[Draw]:
    """Publishes the puzzles of one stretch, in order.

    Puzzle i of the stream is generated independently, from a seed made of `seed` and i, so the stream may repeat
    puzzles.

    Raises:
        TransientError: A process of the pool died.
    """
    identity = identity_of(config)
    if published := out.find(identity):
        return published
    attempt = out.attempt(identity)
    make = partial(generate_nth, config.puzzle, config.seed)
    numbers = range(config.first, config.first + config.count)
    puzzles = ctx.pool.map(make, numbers, chunksize=max(1, config.count // 16))
    attempt.write_table(TABLE, to_table(puzzles), PUZZLES)
    return attempt.publish({"puzzles": len(puzzles)})


def identity_of(config: DrawConfig) -> Identity:
    """Returns the identity of a stretch."""
    return Identity.of("draw", REVISION, config)


def address_of(config: DrawConfig, store: Store) -> ArtifactAddress[Draw]:
    """Returns the address of a stretch: below the shared puzzles, named by its identity."""
    return ArtifactAddress(store, shared_key(Shared.DRAWN, f"{config.first:07d}", identity_of(config)), Draw)


def stretches(puzzle: GeneratedPuzzleConfig, seed: int, total: int) -> Iterator[DrawConfig]:
    """Yields the stretches of an endless stream of puzzles, in order.

    Up to puzzle `total`, a stretch has `total` / 32 puzzles, but at least 8 and at most 256; after it, 256.
    """
    first = 0
    while True:
        count = min(256, max(8, total // 32)) if first < total else 256
        yield DrawConfig(puzzle=puzzle, seed=seed, first=first, count=count)
        first += count
