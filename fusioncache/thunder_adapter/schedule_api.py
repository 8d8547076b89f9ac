"""The names of Thunder that models are shared among ranks with."""

from __future__ import annotations

import thunder
from thunder.core.transforms import add_transform
from thunder.distributed import FSDPType, ddp, fsdp
from thunder.distributed.prims import all_gather, all_reduce, reduce_scatter
from thunder.distributed.transforms.ddp_v2 import DDPTransform
from thunder.distributed.transforms.fsdp_v2 import FSDPTransform
from thunder.torch import to_torch_distributed_reduce_op
from thunder.transforms import MaterializationTransform

__all__ = [
    "DDPTransform",
    "FSDPTransform",
    "FSDPType",
    "MaterializationTransform",
    "add_transform",
    "all_gather",
    "all_reduce",
    "ddp",
    "fsdp",
    "reduce_scatter",
    "thunder",
    "to_torch_distributed_reduce_op",
]
