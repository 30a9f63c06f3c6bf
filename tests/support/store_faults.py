"""Publishing and reading over a network that fails on purpose.

Artifacts of small files and of files in parts go through a proxy in front of a real S3 server. Some requests are
refused, cut off, cut short either way, kept back, or delivered twice, at once or later. An onlooker reads through a
clean connection: a published artifact must be complete from its first moment. At the end, every artifact is there as it
was written.
"""

import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from artifacts.address import ArtifactAddress
from artifacts.errors import TransientError
from artifacts.identity import Identity
from artifacts.layout import MANIFEST_NAME
from artifacts.reading import Artifact
from artifacts.refs import Checkpoint, Ref
from artifacts.store.store import Store
from tests.support.fault_proxy import FAULTS, SLOW_FAULTS, FaultProxy, at_random, fault_proxy
from tests.support.servers import S3Server

BUCKET = "faults"
PART_BYTES = 5 << 20
_LARGE_EVERY = 4
_WRITERS = 4
_SHARE = 0.25
_READ_TIMEOUT_S, _STALL_S = 3.0, 4.0

ResultT = TypeVar("ResultT")


@dataclass
class Campaign:
    """Publications through a proxy, and their record.

    Attributes:
        published: Ref by number.
        repeated: How often a publication or a reading was done again, as a task's retry would.
        watched: Manifests that the onlooker met and found complete.
    """

    server: S3Server
    proxy: FaultProxy
    url: str
    seed: int
    scratch: Path
    published: dict[int, Ref[Checkpoint]] = field(default_factory=dict[int, Ref[Checkpoint]])
    repeated: int = 0
    watched: set[str] = field(default_factory=set[str])
    seconds: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, count: int) -> None:
        """Publishes and reads until `count` faults were injected."""
        started = time.perf_counter()
        store = self._through_proxy()
        store.create_bytes("warm", b"up")  # the store probes an endpoint once, without faults
        self.proxy.stall_s = _STALL_S
        self.proxy.choose = at_random(_SHARE, self.seed, FAULTS + SLOW_FAULTS)
        numbers = iter(range(1, sys.maxsize))
        over = threading.Event()

        def work() -> None:
            while sum(self.proxy.injected.values()) < count:
                with self._lock:
                    number = next(numbers)
                self._cycle(store, number)

        watcher = ThreadPoolExecutor(1)
        watching = watcher.submit(self._watch, over)
        with ThreadPoolExecutor(_WRITERS) as writers:
            outcomes = [writers.submit(work) for _ in range(_WRITERS)]
        over.set()
        for outcome in (*outcomes, watching):
            outcome.result()
        self.proxy.choose = lambda method, path: None
        self._check_everything()
        self.seconds = time.perf_counter() - started

    def content(self, number: int) -> dict[str, bytes]:
        """Returns the files of artifact `number`, by name."""
        generator = random.Random(self.seed * 100_000 + number)
        files = {f"part-{i}.bin": generator.randbytes(generator.choice((0, 900, 40_000))) for i in range(3)}
        if number % _LARGE_EVERY == 0:
            files["model.safetensors"] = generator.randbytes(PART_BYTES + generator.randrange(1 << 20))
        return files

    def _through_proxy(self) -> Store:
        options = self.server.options(
            endpoint_url=self.proxy.url, part_bytes=PART_BYTES, read_timeout_s=_READ_TIMEOUT_S
        )
        return Store.open(self.url, options=options)

    def _clean(self) -> Store:
        return Store.open(self.url, options=self.server.options())

    def _address(self, store: Store, number: int) -> ArtifactAddress[Checkpoint]:
        return ArtifactAddress(store, f"runs/r/iterations/{number:04d}/checkpoint", Checkpoint)

    def _cycle(self, store: Store, number: int) -> None:
        files = self.content(number)
        ref = self._until_done(lambda: self._publish(self._address(store, number), number, files))
        assert self._until_done(lambda: _read(store, ref, self.scratch)) == files, f"artifact {number} reads otherwise"
        with self._lock:
            self.published[number] = ref

    def _publish(self, address: ArtifactAddress[Checkpoint], number: int, files: dict[str, bytes]) -> Ref[Checkpoint]:
        identity = _identity(number)
        if published := address.find(identity):
            return published
        attempt = address.attempt(identity)
        with attempt.folder(self.scratch) as folder:
            for name, data in files.items():
                if len(data) > PART_BYTES:
                    (folder / name).write_bytes(data)
        for name, data in files.items():
            if len(data) <= PART_BYTES:
                attempt.write_bytes(name, data)
        return attempt.publish()

    def _until_done(self, action: Callable[[], ResultT]) -> ResultT:
        while True:
            try:
                return action()
            except TransientError:
                with self._lock:
                    self.repeated += 1

    def _watch(self, over: threading.Event) -> None:
        """Reads each artifact as soon as its manifest is seen: nothing may be missing or different."""
        store = self._clean()
        while True:
            last = over.is_set()
            for key in store.list("runs"):
                if key.endswith(MANIFEST_NAME) and key not in self.watched:
                    number = int(key.split("/")[3])
                    artifact = Artifact.at(store, key.removesuffix(f"/{MANIFEST_NAME}"))
                    seen = {name: artifact.read_bytes(name) for name in artifact.names()}
                    assert seen == self.content(number), f"artifact {number} was published before it was complete"
                    self.watched.add(key)
            if last:
                return
            time.sleep(0.05)

    def _check_everything(self) -> None:
        store = self._clean()
        keys = set(store.list("runs"))
        for number, ref in self.published.items():
            stored = self._address(store, number).find(_identity(number))
            assert stored == ref, f"artifact {number} is lost or another: {stored}"
            assert _read(store, ref, self.scratch) == self.content(number), f"artifact {number} was damaged"
            manifest = Artifact.open(store, ref).manifest
            keys -= {f"{ref.key}/{manifest.attempt}/{name}" for name in manifest.files} | {f"{ref.key}/{MANIFEST_NAME}"}
        left_over = {key.rpartition("/")[0] for key in keys}
        assert len(left_over) <= self.repeated, f"files that no attempt explains: {sorted(left_over)[:5]}"
        assert set(self.published) == {int(key.split("/")[3]) for key in self.watched}

    def report(self) -> dict[str, Any]:
        """Returns the counts."""
        return {
            "injected": sum(self.proxy.injected.values()),
            **{kind: self.proxy.injected[kind] for kind in FAULTS + SLOW_FAULTS},
            "artifacts": len(self.published),
            "in_parts": sum(number % _LARGE_EVERY == 0 for number in self.published),
            "repeated": self.repeated,
            "lost": 0,
            "half_published": 0,
            "seconds": round(self.seconds, 1),
        }


def _identity(number: int) -> Identity:
    return Identity.of("finetune", 1, {"number": number})


def _read(store: Store, ref: Ref[Checkpoint], scratch: Path) -> dict[str, bytes]:
    artifact = Artifact.open(store, ref)
    if any(file.size_bytes > PART_BYTES for file in artifact.manifest.files.values()):
        with tempfile.TemporaryDirectory(dir=scratch) as cache:
            folder = artifact.local_folder(Path(cache))
            return {name: (folder / name).read_bytes() for name in artifact.names()}
    return {name: artifact.read_bytes(name) for name in artifact.names()}


def campaign(server: S3Server, count: int, scratch: Path, seed: int = 1, bucket: str = BUCKET) -> dict[str, Any]:
    """Injects `count` faults between a store and one server.

    Raises:
        AssertionError: Something was lost, damaged or published before it was complete.
    """
    with fault_proxy(server.url, lambda method, path: None) as proxy:
        one = Campaign(server, proxy, f"s3://{bucket}/faults-{seed}", seed, scratch)
        one.run(count)
        return one.report()
