"""Which part of each parameter a rank keeps of a model that ranks share by ``fsdp`` or ``tensor_parallel``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Shards:
    """How a model's parameters are shared.

    Attributes:
        group: the process group whose ranks share them.
        shapes: of the parameters of which each rank has a part, by name: those of all of them.
        dims: along which each of these is cut.
    """

    group: Any
    shapes: Mapping[str, tuple[int, ...]]
    dims: Mapping[str, int]

    def measure(self, name: str, padded: int) -> int:
        """Returns how much of this rank's shard belongs to a parameter, along the dimension in which it is cut.

        Thunder pads a parameter whose rows the ranks do not divide: the last rows are no part of it.

        Args:
            name: of the parameter.
            padded: how long each shard is.
        """
        return max(0, min(padded, self.shapes[name][self.dims[name]] - int(self.group.rank()) * padded))


def find_shards(model: Any) -> Shards | None:
    """Returns how the ranks share a model; None if each keeps it whole.

    Args:
        model: what ``fsdp``, ``ddp`` or ``tensor_parallel`` returned.

    Raises:
        TypeError: if it is nothing that Thunder compiled.
    """
    from fusioncache.distributed.parallel_transform import TensorParallelTransform
    from fusioncache.thunder_adapter.api import ThunderModule
    from fusioncache.thunder_adapter.schedule_api import FSDPTransform

    if not isinstance(model, ThunderModule):
        raise TypeError(f"not a model that fsdp(), ddp() or tensor_parallel() returned: {type(model).__name__}")
    for transform in model._lc_transforms:
        if isinstance(transform, FSDPTransform):
            shapes = {name: tuple(whole) for name, (whole, *_) in transform.sharded_params.items()}
            return Shards(transform.process_group, shapes, dict.fromkeys(shapes, 0))
        if isinstance(transform, TensorParallelTransform):
            cut = transform.parameters
            shapes = {name: parameter.shape for name, parameter in cut.items()}
            return Shards(transform.process_group, shapes, {name: parameter.dim for name, parameter in cut.items()})
    return None
