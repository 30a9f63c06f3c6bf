"""A task without a right answer: long prompts of random words, and rewards that differ by chance."""

import random
import zlib
from collections.abc import Iterator

WORDS = ["ash", "beech", "cedar", "fir", "hazel", "larch", "maple", "oak", "pine", "rowan", "spruce", "willow"]


class Noise:
    """Items are numbered, so that no two prompts are equal."""

    def items(self, count: int, seed: int) -> Iterator[dict[str, object]]:
        draw = random.Random(seed)
        for number in range(2 * count):
            yield {"prompt": f"{seed}.{number}: {' '.join(draw.choices(WORDS, k=200))}", "number": number}

    def grade(self, completion: str, item: dict[str, object]) -> float:
        return zlib.crc32(completion.encode()) % 1000 / 1000
