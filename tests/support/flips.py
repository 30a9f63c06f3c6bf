"""Flips one bit in one stored file at a time, and checks that an error names the file."""

import random
from pathlib import Path

from artifacts.address import ArtifactAddress
from artifacts.errors import DeerstalkerError, IntegrityError
from artifacts.identity import Identity
from artifacts.layout import MANIFEST_NAME
from artifacts.reading import Artifact
from artifacts.refs import Checkpoint, Ref
from artifacts.store.store import Store

_FILES = 9
"""Files of an artifact, beside its manifest."""


def flip_bits(store: Store, count: int, cache: Path, seed: int) -> dict[str, int]:
    """Publishes artifacts of ten files in all, and flips a bit in one stored file after another.

    Half of the artifacts are read file by file, half as a local folder.

    Raises:
        AssertionError: A flip went unseen, or the error does not name the file.
    """
    generator = random.Random(seed)
    flipped = 0
    for number in range(-(-count // (_FILES + 1))):
        ref = _publish(store, number, generator)
        for key in store.list(ref.key):
            if flipped == count:
                break
            error = _error_after_flip(store, ref, key, cache / str(flipped), number, generator)
            assert error is not None, f"a flipped bit in {key} went unseen"
            assert key in str(error), f"a flipped bit in {key} was reported as: {error}"
            flipped += 1
        _read(store, ref, cache / f"whole-{number}", number)
    return {"files": flipped, "detected": flipped}


def _publish(store: Store, number: int, generator: random.Random) -> Ref[Checkpoint]:
    attempt = ArtifactAddress(store, f"runs/flips/iterations/{number:04d}/checkpoint", Checkpoint).attempt(
        _identity(number)
    )
    for name in range(_FILES):
        attempt.write_bytes(f"file-{name}.bin", generator.randbytes(generator.randint(1, 4096)))
    return attempt.publish({"reward/mean": generator.random(), "of": "a flipped bit in here counts too"})


def _error_after_flip(
    store: Store, ref: Ref[Checkpoint], key: str, cache: Path, number: int, generator: random.Random
) -> DeerstalkerError | None:
    whole = store.read_bytes(key)
    spot = generator.randrange(8 * len(whole))
    broken = bytearray(whole)
    broken[spot // 8] ^= 1 << spot % 8
    store.write_bytes(key, bytes(broken))
    try:
        _read(store, ref, cache, number)
    except IntegrityError as error:
        return error
    finally:
        store.write_bytes(key, whole)
    return None


def _read(store: Store, ref: Ref[Checkpoint], cache: Path, number: int) -> None:
    """Reads the artifact as a later stage would."""
    found = ArtifactAddress(store, ref.key, Checkpoint).find(_identity(number))
    assert found == ref
    artifact = Artifact.open(store, found)
    if number % 2:
        artifact.local_folder(cache)
    else:
        for name in artifact.names():
            artifact.read_bytes(name)
    assert MANIFEST_NAME not in artifact.names()


def _identity(number: int) -> Identity:
    return Identity.of("finetune", 1, {"number": number})
