"""Process groups of models that ranks share, as users give them: a group, a mesh, or nothing."""

from __future__ import annotations

from typing import Any


def find_group(given: Any) -> Any:
    """Returns a process group.

    Args:
        given: it, or a mesh of one dimension; None is the job's own group.

    Raises:
        ValueError: if it is a mesh of several dimensions.
    """
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.distributed_c10d import _get_default_group

    if given is None:
        return _get_default_group()
    if isinstance(given, DeviceMesh):
        if given.ndim != 1:
            raise ValueError(f"the mesh must have one dimension, as mesh['tp'] has; it has {given.ndim}")
        return given.get_group()
    return given


def find_groups(given: Any) -> tuple[Any, Any]:
    """Returns the group whose ranks share one copy of a model, and the group of ranks that have the same part of it.

    Args:
        given: a process group, or a mesh of one dimension: there is one copy, and the second group is None. Of a mesh
            of two dimensions copies are along the first one, as torch's ``fully_shard`` has it.

    Raises:
        ValueError: if it is a mesh of more dimensions.
    """
    from torch.distributed.device_mesh import DeviceMesh

    if not isinstance(given, DeviceMesh) or given.ndim == 1:
        return find_group(given), None
    if given.ndim != 2:
        raise ValueError(f"the mesh must have one dimension, or two, of which copies are along the first: {given.ndim}")
    return given.get_group(1), given.get_group(0)


def find_time_limits(group: Any) -> list[Any]:
    """Returns the time limit of each backend of a process group; None is the job's own."""
    from torch.distributed.distributed_c10d import _get_default_group

    group = _get_default_group() if group is None else group
    return [group._get_backend(device).options._timeout for device in group._device_types]
