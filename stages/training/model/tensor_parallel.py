"""Divides the layers of a policy among the processes of a tensor group, with torch's DTensor.

The plan of a layer is torchtune's (`torchtune.models.llama3._parallelism`), as in Megatron (arXiv 1909.08053): each
process computes some heads and a part of the feed-forward width, and the processes add their outputs. torchtune's
`prepare_mha_for_tp` fits only its own attention. Its plan divides embedding and head by tokens, which needs a
vocabulary that the group divides evenly. Here both are stored divided by width. All processes of a group compute the
same log-probabilities from the gathered head, a small part of a model whose layers do not fit one GPU. The processes
also repeat all norms. Those of queries and keys read only the heads of one process, so DTensor adds their gradients.
"""

from functools import cache, partial
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    parallelize_module,
)
from torch.distributed.tensor.placement_types import Placement

from stages.training.model.components import RMSNorm


@cache
def device_mesh(device_type: str, tensor_parallel: int) -> DeviceMesh:
    """Returns the mesh of all processes, made once (collective). The processes of a tensor group are adjacent."""
    sizes = dist.get_world_size() // tensor_parallel, tensor_parallel
    mesh = init_device_mesh(device_type, sizes, mesh_dim_names=("data", "tensor"))
    mesh._flatten()  # pyright: ignore[reportPrivateUsage]  # a norm is then one sum, and the same on all processes
    return mesh


def divide(policy: nn.Module, group: DeviceMesh) -> None:
    """Divides the weights of a policy among the processes of a tensor group, in place.

    The inputs and outputs of the policy stay plain tensors, equal on all processes of the group.

    Args:
        policy: A `Policy` of plain parameters.
        group: Mesh of the group.
    """
    plan: dict[str, ParallelStyle] = {
        "decoder.tok_embeddings": ColwiseParallel(output_layouts=Replicate()),
        "decoder.layers.*.attn": _shared_input(Replicate(), None),
        "decoder.layers.*.mlp": _shared_input(Replicate()),
        "decoder.layers.*.mlp.w2": RowwiseParallel(),
        "decoder.layers.*.attn.output_proj": RowwiseParallel(),
    }
    for name in ("attn.q_proj", "attn.k_proj", "attn.v_proj", "mlp.w1", "mlp.w3"):
        plan[f"decoder.layers.*.{name}"] = ColwiseParallel()
    if "head" in dict(policy.named_children()):
        plan["head"] = RowwiseParallel()  # only stored so: `Policy` reads the whole weight
    parallelize_module(policy, group, plan)
    for name, module in policy.named_modules():
        if isinstance(module, RMSNorm) or name == "value_head":
            layout = Shard(1) if name.endswith(("q_norm", "k_norm")) else Replicate()  # [N, heads, D]
            distribute_module(module, group, input_fn=partial(_enter, layout), output_fn=_leave)


def _shared_input(*layouts: Placement | None) -> ParallelStyle:
    """Returns a style whose parts read one input, so that the group adds its gradients once and not for each part."""
    return PrepareModuleInput(input_layouts=layouts, desired_input_layouts=layouts)


def _enter(layout: Placement, module: nn.Module, inputs: tuple[Tensor], group: DeviceMesh) -> Any:
    return DTensor.from_local(inputs[0], group, (layout,), run_check=False)


def _leave(module: nn.Module, output: DTensor, group: DeviceMesh) -> Any:
    return output.to_local()
