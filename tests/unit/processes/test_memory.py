"""Memory that is left, and want of it, told from other ends by what was said."""

import subprocess
import sys
from pathlib import Path

import pytest

from stages.processes import cgroups
from stages.processes.memory import refused_allocation, spare_bytes
from stages.training.worker_group.group import memory_remedy
from stages.training.worker_group.hardware import TrainHardware

Group = tuple[str, int, int]


@pytest.mark.parametrize(
    "said",
    [
        "RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you "
        "tried to allocate 8589934592 bytes. Error code 12 (Cannot allocate memory)",
        "RuntimeError: unable to mmap 5888 bytes from file </x>: Cannot allocate memory (12)",
        "MemoryError: ",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        "terminate called after throwing an instance of 'std::bad_alloc'",
        "ValueError: Available memory on node 0 (12.09/23.54 GiB) on kv cache allocation is less than requested memory",
    ],
)
def test_a_refused_allocation_is_found_in_a_log(said: str) -> None:
    log = f"loading weights, memory 3 GiB\n{said}\nEngineDeadError: see above"
    assert refused_allocation(log) in said


@pytest.mark.parametrize("said", ["", "RuntimeError: Connection closed by peer", "KV cache memory: 1 GiB"])
def test_other_ends_are_none(said: str) -> None:
    assert refused_allocation(said) == ""


def test_the_remedy_names_fields_that_are_not_set_yet() -> None:
    one = memory_remedy(TrainHardware(activation_checkpointing=True, device="cpu"))
    assert "micro_batch_tokens" in one and "activation_checkpointing" not in one and "cpu_offload" not in one
    two = memory_remedy(TrainHardware(processes=2))
    assert "trainer.activation_checkpointing or trainer.cpu_offload" in two


def _show_kernel(patched: pytest.MonkeyPatch, folder: Path, membership: str, groups: dict[str, Group]) -> None:
    """Shows a /proc of a machine with 8 GiB available, and cgroups: limit, use, and what of it is files, in MiB."""
    (folder / "proc" / "self").mkdir(parents=True)
    (folder / "proc" / "meminfo").write_text("MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\n")
    (folder / "proc" / "self" / "cgroup").write_text(membership)
    for place, (limit, used, files) in groups.items():
        group = folder / "cgroup" / place
        group.mkdir(parents=True, exist_ok=True)
        first = place.startswith("memory")
        (group / ("memory.limit_in_bytes" if first else "memory.max")).write_text(f"{limit}\n")
        (group / ("memory.usage_in_bytes" if first else "memory.current")).write_text(f"{used << 20}\n")
        kind = "total_" if first else ""
        (group / "memory.stat").write_text(f"{kind}active_file {files << 19}\n{kind}inactive_file {files << 19}\n")
    patched.setattr(cgroups, "PROC", folder / "proc")
    patched.setattr(cgroups, "CGROUPS", folder / "cgroup")


@pytest.mark.parametrize(
    ("membership", "groups", "mib"),
    [
        ("0::/\n", {}, 8192),
        ("0::/pod/box\n", {"pod/box": ("max", 100, 0), "pod": (str(4 << 30), 3000, 500)}, 4096 - 3000 + 500),
        ("0::/pod/box\n", {"pod/box": (str(1 << 30), 900, 0), "pod": (str(4 << 30), 900, 0)}, 124),
        ("4:cpu,memory:/a\n1:pids:/a\n0::/\n", {"memory/a": (str(2 << 30), 1024, 24)}, 1048),
        ("4:memory:/of/the/host\n", {"memory": (str(2 << 30), 1024, 0)}, 1024),  # a container sees its own as the root
        ("4:memory:/\n", {"memory": ("9223372036854771712", 4096, 0)}, 8192),
        ("0::/\n", {".": (str(1 << 30), 1030, 0)}, 0),
    ],
)
def test_what_is_spare_is_what_machine_and_cgroups_leave(
    membership: str, groups: dict[str, Group], mib: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _show_kernel(monkeypatch, tmp_path, membership, groups)
    assert spare_bytes() == mib << 20


@pytest.mark.parametrize(("sharers", "kept"), [(1, True), (10**6, False), (None, False)])
def test_freed_memory_is_handed_back_where_little_is_spare(sharers: int | None, kept: bool) -> None:
    """A million sharers of 200 MB would need more than any machine has."""
    code = f"""
import ctypes
from stages.processes.memory import hand_back_freed
held = lambda: int(open("/proc/self/statm").read().split()[1]) * 4096 >> 20
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes, libc.memset.argtypes = ctypes.c_void_p, [ctypes.c_void_p], [
    ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
blocks = [libc.malloc(100_000) for _ in range(2000)]
for block in blocks:
    libc.memset(block, 1, 100_000)
top, before = libc.malloc(100_000), held()  # lies behind them, so that free alone hands nothing back
for block in blocks:
    libc.free(block)
hand_back_freed({sharers})
print(before, held())
"""
    before, after = map(int, subprocess.check_output([sys.executable, "-c", code]).split())
    assert before > 190
    assert after > 190 if kept else after < before - 150


def test_collections_leave_out_what_was_there_before() -> None:
    code = """
import gc
from stages.processes.memory import quick_collections
libraries = [[] for _ in range(100_000)]
counts = len(gc.get_objects()), gc.get_freeze_count()
with quick_collections():
    cycle = []
    cycle.append(cycle)
    del cycle
    inside = len(gc.get_objects()), gc.get_freeze_count(), gc.collect()
print(*counts, *inside, len(gc.get_objects()), gc.get_freeze_count())
"""
    output = subprocess.check_output([sys.executable, "-c", code])
    before, none, inside, frozen, collected, after, thawed = map(int, output.split())
    assert min(before, after) > 100_000 and inside < 10_000
    assert frozen > 100_000 and none == thawed == 0
    assert collected >= 1, "garbage of the block"
