"""Two writer processes race for one address, again and again.

Each has its own content, and publishes within 0.2 s of the other. Afterwards one of them has won, both hold the same
ref, and readers find the winner's files. The store is a folder, an S3 server that honours conditional puts (moto), or
one that does not (rclone), where writers pause and look again.
"""

import multiprocessing
import random
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

from artifacts.address import ArtifactAddress
from artifacts.identity import Identity
from artifacts.reading import Artifact
from artifacts.refs import Batch, Ref
from artifacts.store.store import S3Options, Store
from tests.support.servers import S3Server, moto_server, rclone_server

BUCKET = "races"
KINDS = ("directory", "moto", "rclone")
_LARGEST_SKEW_S = 0.01
_LIMIT_S = 300.0


@dataclass(frozen=True)
class Place:
    """A store to race in, with the options that open it."""

    kind: str
    url: str
    options: S3Options | None = None

    def open(self) -> Store:
        """The store, for this process."""
        return Store.open(self.url, options=self.options)


@dataclass(frozen=True)
class Outcome:
    """The result of one writer in a round."""

    ref: Ref[Batch]
    reused: bool
    content: bytes


@contextmanager
def place(kind: str, scratch: Path) -> Generator[Place]:
    """Yields a store of one kind; an S3 store has a server of its own."""
    if kind == "directory":
        yield Place(kind, str(scratch / "store"))
        return
    with moto_server() if kind == "moto" else rclone_server(scratch / "served") as server:
        yield on_server(kind, server)


def on_server(kind: str, server: S3Server) -> Place:
    """A store in a new bucket of a running server."""
    server.create_bucket(BUCKET)
    return Place(kind, f"s3://{BUCKET}/r", server.options())


def race(where: Place, count: int, seed: int = 1) -> dict[str, Any]:
    """Lets two processes race `count` times.

    Raises:
        AssertionError: Both or none won, or they disagree, or the store holds something else.
    """
    started = time.perf_counter()
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(2)
    pipes = [context.Pipe(duplex=False) for _ in range(2)]
    writers = [
        context.Process(target=_write, args=(where, who, count, seed, barrier, pipes[who][1]), daemon=True)
        for who in range(2)
    ]
    for writer in writers:
        writer.start()
    wins = [0, 0]
    store = where.open()
    try:
        for number in range(count):
            outcomes = [_received(pipe, writer) for (pipe, _), writer in zip(pipes, writers, strict=True)]
            winners = [who for who, outcome in enumerate(outcomes) if not outcome.reused]
            assert len(winners) == 1, f"round {number}: {len(winners)} winners"
            assert outcomes[0].ref == outcomes[1].ref, f"round {number}: they hold different refs"
            expected = _content(winners[0], number)
            assert [outcome.content for outcome in outcomes] == [expected] * 2, f"round {number}: not the winner's"
            winner = _address(store, number).find(_identity(number))
            assert winner == outcomes[0].ref, f"round {number}: the store holds {winner}"
            assert Artifact.open(store, winner).read_bytes("batch.bin") == expected
            wins[winners[0]] += 1
    finally:
        for writer in writers:
            writer.join(1.0)
            writer.kill()
    return {"races": count, "won_by_first": wins[0], "won_by_second": wins[1], "seconds": time.perf_counter() - started}


def _write(where: Place, who: int, count: int, seed: int, barrier: Barrier, pipe: Connection) -> None:
    store = where.open()
    store.create_bytes(f"warm-{who}", b"%d" % who)  # the store probes an endpoint once; this is not part of the race
    generator = random.Random(10 * seed + who)
    for number in range(count):
        address = _address(store, number)
        assert address.find(_identity(number)) is None
        attempt = address.attempt(_identity(number))
        attempt.write_bytes("batch.bin", _content(who, number))
        barrier.wait(_LIMIT_S)
        time.sleep(generator.choice((0.0, generator.uniform(0, _LARGEST_SKEW_S), generator.uniform(0, 0.2))))
        ref = attempt.publish({"writer": who})
        pipe.send(Outcome(ref, ref.reused, Artifact.open(store, ref).read_bytes("batch.bin")))


def _received(pipe: Connection, writer: BaseProcess) -> Outcome:
    deadline = time.monotonic() + _LIMIT_S
    while not pipe.poll(1.0):
        assert writer.is_alive(), f"a writer ended with {writer.exitcode}"
        assert time.monotonic() < deadline, f"a writer said nothing for {_LIMIT_S:.0f} s"
    return pipe.recv()


def _content(who: int, number: int) -> bytes:
    return b"writer %d in round %d" % (who, number)


def _address(store: Store, number: int) -> ArtifactAddress[Batch]:
    return ArtifactAddress(store, f"runs/race/iterations/{number:04d}/batch", Batch)


def _identity(number: int) -> Identity:
    return Identity.of("pack", 1, {"number": number})
