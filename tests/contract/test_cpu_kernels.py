"""Norms and blocks of the cache on CPUs: what the engine adds to vLLM, and what of it vLLM still lacks."""

from types import ModuleType
from typing import Any, get_args

import pytest
import torch

from stages.models.from_scratch import HeadDim

EPSILON = 1e-6
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2**-6}


@pytest.fixture
def attention(monkeypatch: pytest.MonkeyPatch) -> Any:
    """vLLM's attention for CPUs, which is as it was after the test."""
    backend = pytest.importorskip("vllm.v1.attention.backends.cpu_attn").CPUAttentionBackend
    own = backend.get_supported_kernel_block_sizes()
    monkeypatch.setattr(backend, "get_supported_kernel_block_sizes", staticmethod(lambda: own))
    return backend


@pytest.fixture
def norms(attention: Any) -> tuple[Any, ModuleType]:
    """vLLM's operations, and the module that adds implementations to them."""
    from vllm import ir

    from stages.sampling.replicas import cpu_kernels

    return ir.ops, cpu_kernels


@pytest.mark.long
def test_vllm_still_lacks_what_we_add(attention: Any, norms: tuple[Any, ModuleType]) -> None:
    """Where this fails after an update of vLLM, `replicas/cpu_kernels.py` or a part of it is not needed any more."""
    assert "vllm_c" not in norms[0].rms_norm.supported_providers()
    assert [size.base for size in attention.get_supported_kernel_block_sizes()] == [32]


def test_the_engine_is_started_with_both(attention: Any, norms: tuple[Any, ModuleType]) -> None:
    arguments = norms[1].faster_arguments()
    block = int(arguments[arguments.index("--block-size") + 1])
    assert block == (32 if torch.cpu._is_amx_tile_supported() else 16)
    assert [size.base for size in attention.get_supported_kernel_block_sizes()] == [16]
    assert norms[1].PROVIDER in arguments[arguments.index("--ir-op-priority") + 1]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_norms_equal_those_of_vllm(norms: tuple[Any, ModuleType], dtype: torch.dtype) -> None:
    operations, module = norms
    torch.manual_seed(0)
    x, residual, weight = torch.randn(33, 96).to(dtype), torch.randn(33, 96).to(dtype), torch.rand(96).to(dtype)

    def norm(provider: str) -> Any:
        return operations.rms_norm.impls[provider].impl_fn(x, weight, EPSILON)

    def norm_of_sum(provider: str) -> Any:
        return operations.fused_add_rms_norm.impls[provider].impl_fn(x.clone(), residual.clone(), weight, EPSILON)

    for compute in (norm, norm_of_sum):
        ours, theirs = compute(module.PROVIDER), compute("native")
        torch.testing.assert_close(ours, theirs, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


def test_norms_that_the_kernels_cannot_compute_are_left_to_vllm(norms: tuple[Any, ModuleType]) -> None:
    applies = norms[0].rms_norm.impls[norms[1].PROVIDER].supports_args
    x, weight = torch.randn(4, 64), torch.rand(64)
    assert applies(x, weight, EPSILON)
    assert not applies(x[:, :32], weight[:32], EPSILON)  # rows with gaps
    assert not applies(x, None, EPSILON)
    assert not applies(x.to(torch.bfloat16), weight, EPSILON)
    assert not applies(x, weight, EPSILON, 32)


def test_heads_that_a_model_may_have_are_those_of_its_attention(attention: Any) -> None:
    assert list(get_args(HeadDim)) == attention.get_supported_head_sizes()
