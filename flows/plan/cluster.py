"""Kinds of GPUs: their memory and rates, from the makers' data sheets."""

import re
from dataclasses import dataclass
from itertools import takewhile

from artifacts.errors import BadInputError

GB = 1e9
MIB = 1 << 20


@dataclass(frozen=True)
class Gpu:
    """A kind of GPU.

    Attributes:
        name: Name, as in `--gpus 8xH100`.
        nominal: Gigabytes in its name, as in `--gpus 8x80`.
        memory_bytes: Memory that the driver reports.
        flops: Dense bf16 matrix products, FLOP/s.
        bandwidth: Memory bandwidth, bytes/s.
        link: Rate to another GPU of its machine in one direction, bytes/s.
        network: A GPU's share of the rate to another machine in one direction, bytes/s.
    """

    name: str
    nominal: int
    memory_bytes: int
    flops: float
    bandwidth: float
    link: float
    network: float


GPUS = (
    Gpu("H100", 80, 81_559 * MIB, 989e12, 3.35e12, 450e9, 50e9),
    Gpu("A100", 40, 40_960 * MIB, 312e12, 1.555e12, 300e9, 25e9),
    Gpu("A100-80", 80, 81_920 * MIB, 312e12, 2.039e12, 300e9, 25e9),
    Gpu("A40", 48, 46_068 * MIB, 149.7e12, 0.696e12, 32e9, 12.5e9),
    Gpu("L40S", 48, 46_068 * MIB, 362e12, 0.864e12, 32e9, 12.5e9),
    Gpu("H200", 141, 143_771 * MIB, 989e12, 4.8e12, 450e9, 50e9),
    Gpu("B200", 180, 183_359 * MIB, 2250e12, 8e12, 900e9, 50e9),
)
"""The known kinds. A size alone, as in `8x80`, means the first kind of that size."""


def gpu_of(device: str, memory_bytes: int) -> Gpu | None:
    """Returns the kind of a GPU by its driver's name, such as `NVIDIA A100-SXM4-80GB`; None if it is not known.

    Args:
        device: The driver's name.
        memory_bytes: Its memory.
    """
    kinds = [gpu for gpu in GPUS if gpu.name.partition("-")[0] in re.split(r"[^A-Za-z0-9]+", device)]
    return min(kinds, key=lambda gpu: abs(gpu.memory_bytes - memory_bytes), default=None)


_SPELLED = re.compile(r"([1-9]\d{0,3})x([A-Za-z0-9-]+)")
_IN_MACHINE = 8
"""Number of GPUs that a machine is assumed to have if only the total number is known."""


@dataclass(frozen=True)
class Cluster:
    """GPUs of one kind on machines of equal size."""

    gpu: Gpu
    per_node: int
    nodes: int = 1

    @property
    def count(self) -> int:
        """Number of GPUs."""
        return self.per_node * self.nodes

    @property
    def between(self) -> float:
        """Rate of the slowest connection of a ring through all GPUs, bytes/s in one direction."""
        return self.gpu.link if self.nodes == 1 else min(self.gpu.link, self.gpu.network)

    def sizes(self, most: int = 64) -> list["Cluster"]:
        """Returns clusters of 1, 2, 4 and so on GPUs of the same kind, eight in a machine."""
        counts = takewhile(lambda count: count <= most, (2**power for power in range(64)))
        return [Cluster(self.gpu, min(count, _IN_MACHINE), max(1, count // _IN_MACHINE)) for count in counts]

    def __str__(self) -> str:
        machines = "" if self.nodes == 1 else f" on {self.nodes} machines"
        return f"{self.count} x {self.gpu.name}{machines}"


def cluster(text: str, nodes: int = 1) -> Cluster:
    """Returns the cluster that `--gpus` and `--nodes` name.

    Args:
        text: GPUs of a machine, as `8x80` or `8xH100`.
        nodes: Number of machines.

    Raises:
        BadInputError: The text has another form, or the kind is unknown.
    """
    expected = "NUMBERxGIGABYTES or NUMBERxNAME, as 8x80 or 4xA40"
    if not (match := _SPELLED.fullmatch(text)):
        raise BadInputError("--gpus", repr(text), expected, "name the GPUs of one machine, and --nodes for more")
    for gpu in GPUS:
        if match[2].upper() == gpu.name or match[2] == str(gpu.nominal):
            return Cluster(gpu, int(match[1]), nodes)
    names = ", ".join(f"{gpu.name} ({gpu.nominal})" for gpu in GPUS)
    raise BadInputError("--gpus", repr(text), expected, f"the known kinds are {names}")
