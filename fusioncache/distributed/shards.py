"""Which part of each parameter a rank keeps of a model that Thunder's ``fsdp`` shares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Shards:
    """How a model's parameters are shared.

    Attributes:
        group: the process group whose ranks share them.
        shapes: of whole parameters, by name.
    """

    group: Any
    shapes: Mapping[str, tuple[int, ...]]

    def count_rows(self, name: str, padded: int) -> int:
        """Returns how many rows of this rank's shard belong to a parameter.

        Thunder pads a parameter whose rows the ranks do not divide: the last rows are no part of it.

        Args:
            name: of the parameter.
            padded: how many rows each shard has.
        """
        return max(0, min(padded, self.shapes[name][0] - int(self.group.rank()) * padded))


def find_shards(model: Any) -> Shards | None:
    """Returns how the ranks share a model; None if each keeps it whole.

    Args:
        model: what ``fsdp`` or ``ddp`` returned.

    Raises:
        TypeError: if it is nothing that Thunder compiled.
    """
    from thunder import ThunderModule
    from thunder.distributed.transforms.fsdp_v2 import FSDPTransform

    if not isinstance(model, ThunderModule):
        raise TypeError(f"not a model that fsdp() or ddp() returned: {type(model).__name__}")
    for transform in model._lc_transforms:
        if isinstance(transform, FSDPTransform):
            shapes = {name: tuple(whole) for name, (whole, *_) in transform.sharded_params.items()}
            return Shards(transform.process_group, shapes)
    return None
