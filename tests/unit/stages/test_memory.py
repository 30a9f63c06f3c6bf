"""Want of memory, told from other ends by what was said."""

import pytest

from stages.memory import kernel_kills, refused_allocation
from stages.training.gang import memory_remedy
from stages.training.job import TrainHardware


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


def test_the_kernel_counts_its_kills() -> None:
    assert kernel_kills() >= 0


def test_the_remedy_names_fields_that_are_not_set_yet() -> None:
    one = memory_remedy(TrainHardware(activation_checkpointing=True, device="cpu"))
    assert "micro_batch_tokens" in one and "activation_checkpointing" not in one and "cpu_offload" not in one
    two = memory_remedy(TrainHardware(processes=2))
    assert "trainer.activation_checkpointing or trainer.cpu_offload" in two
