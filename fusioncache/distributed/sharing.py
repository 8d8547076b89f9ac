"""Models that ranks share, in one call: tensor parallelism, and Thunder's own ``fsdp`` and ``ddp`` in the right order.

A transform that is added to the result of Thunder's ``fsdp`` silently gives other weights. Here it is added before.
Thunder's collectives run on a group of their own, which has torch's time limit (10 minutes over NCCL, else 30),
whatever ``init_process_group(timeout=...)`` was given. Here it has the job's.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Any

from fusioncache.distributed.cut_layers import Role, TensorParallelTransform, find_cut_parameters


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


logger = logging.getLogger("fusioncache")


def fsdp(
    model: Any,
    group: Any = None,
    *,
    reshard: bool = True,
    device: Any = None,
    broadcast_from: int | None = None,
    executors: Sequence[Any] | None = None,
    transforms: Sequence[Any] = (),
    **options: Any,
) -> Any:
    """Compiles a model of which each rank keeps a shard, with ``FusionCache``.

    Args:
        model: a module, the same on each rank.
        group: the process group that shares it, or a mesh of one dimension. With a mesh of two dimensions the ranks
            along the second one share a copy of the model, and those along the first one average the gradients of
            their shards: hybrid sharding, as torch's ``fully_shard`` has it. None is a group of all ranks.
        reshard: whether backward gathers parameters again (ZeRO3); else they stay gathered until then (ZeRO2).
        device: where its shards are to be; None leaves that to Thunder.
        broadcast_from: the rank of the job whose parameters all of ``group`` take; None: each takes its own.
        executors: for ``thunder.jit``; None are those of ``fusioncache.executors()``.
        transforms: more of them, in front of ``FusionCache``.
        options: of ``FusionCache``, such as ``in_flight_bytes``.

    Raises:
        ValueError: if a mesh has more than two dimensions, or if parameters are to come from a rank that is in one
            copy of the model only.
    """
    from fusioncache.thunder_adapter.accelerator_api import FSDPType
    from fusioncache.thunder_adapter.accelerator_api import fsdp as share

    move_tied_model(model, device)
    jitted = _jit(model, executors, transforms, options)
    sharding: Any = FSDPType.ZERO3 if reshard else FSDPType.ZERO2
    given = {"device": device, "broadcast_from": broadcast_from, "sharding_strategy": sharding}
    return _keep_time_limit(share(jitted, **given)) if group is None else _share_in(jitted, group, given)


def move_tied_model(model: Any, device: Any) -> None:
    """Moves a model that ties parameters to where its shards are to be: Thunder 0.2.6 raises where it moves those."""
    import torch

    if device is None and "LOCAL_RANK" in os.environ:  # as Thunder takes it
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    named = [parameter for _, parameter in model.named_parameters(remove_duplicate=False)]
    are_tied = len({id(parameter) for parameter in named}) < len(named)
    if device is not None and are_tied and not any(parameter.is_meta for parameter in named):
        model.to(device)


def _share_in(jitted: Any, group: Any, given: dict[str, Any]) -> Any:
    """Returns a model that a group shares, or each copy of it one row of a mesh: Thunder's ``fsdp`` takes all ranks.

    Args:
        jitted: what ``thunder.jit`` returned.
        group: a process group or a mesh.
        given: arguments of ``FSDPTransform``.
    """
    from fusioncache.thunder_adapter.accelerator_api import (
        DDPTransform,
        FSDPTransform,
        MaterializationTransform,
        add_transform,
    )

    one_copy, copies = find_groups(group)
    if copies is not None and given["broadcast_from"] is not None:
        raise ValueError("broadcast_from names a rank of one copy of the model: give all ranks the same parameters")
    cutting = FSDPTransform(release_original_parameters=True, process_group=one_copy, **given)
    filling = MaterializationTransform(cutting.device, init=MaterializationTransform.init_from_original_module_init())
    # Behind the one that cuts: what copies have of a gradient is averaged when its shard is there.
    averaging = [] if copies is None else [DDPTransform(copies, bucket_size_in_mb=25.0, broadcast_from=None)]
    return add_transform(jitted, transform=[cutting, filling, *averaging])


def ddp(
    model: Any,
    *,
    broadcast_from: int | None = 0,
    executors: Sequence[Any] | None = None,
    transforms: Sequence[Any] = (),
    **options: Any,
) -> Any:
    """Compiles a model that each rank keeps whole, with ``FusionCache``: ranks add up their gradients.

    Args:
        model: a module.
        broadcast_from: the rank whose parameters all take; None: each keeps its own.
        executors: for ``thunder.jit``; None are those of ``fusioncache.executors()``.
        transforms: more of them, in front of ``FusionCache``.
        options: of ``FusionCache``, such as ``in_flight_bytes``.
    """
    from fusioncache.thunder_adapter.accelerator_api import ddp as share

    return _keep_time_limit(share(_jit(model, executors, transforms, options), broadcast_from=broadcast_from))


def tensor_parallel(
    model: Any,
    group: Any = None,
    *,
    column: Sequence[str] = (),
    row: Sequence[str] = (),
    gathered: Sequence[str] = (),
    sequence: bool = False,
    broadcast_from: int | None = None,
    release: bool = False,
    executors: Sequence[Any] | None = None,
    transforms: Sequence[Any] = (),
    **options: Any,
) -> Any:
    """Compiles a model whose layers are cut among ranks, with ``FusionCache``.

    All ranks give it the same input, and get the same output. Layers are named by patterns, as in ``"*.mlp.gate"``. The
    gradient of a cut parameter is a part, that of a whole one is the same on each rank.

    Args:
        model: a module, the same on each rank, on the device where it is to run.
        group: a process group, or a mesh of one dimension; None is the job's own group.
        column: ``Linear`` layers that give each rank a part of their result, each in front of a row layer; and
            ``Embedding``s, whose vocabulary is cut and whose results ranks add up.
        row: ``Linear`` layers of whose input each rank has a part. Ranks add up what they give.
        gathered: ``Linear`` layers that are cut as column ones, and whose result each rank gets whole: a head.
        sequence: whether ranks share what is between these layers, too, by the rows of a sequence that they divide.
        broadcast_from: the rank of the group whose parameters all take; None: each takes its own.
        release: whether ``model`` lets go of whole parameters that are cut here. Then it cannot run on its own.
        executors: for ``thunder.jit``; None are those of ``fusioncache.executors()``.
        transforms: more of them, behind this one and in front of ``FusionCache``.
        options: of ``FusionCache``, such as ``schedule``.

    Raises:
        CutError: if a layer cannot be cut in this way. When the model is first called: if it does something with a part
            of a tensor of which it is not known how ranks do it together.
    """
    group = find_group(group)
    parameters = find_cut_parameters(model, {Role.COLUMN: column, Role.ROW: row, Role.GATHERED: gathered}, group.size())
    cutting = TensorParallelTransform(group, parameters, of_rows=sequence, origin=broadcast_from, release=release)
    return _jit(model, executors, [cutting, *transforms], options)


def _jit(model: Any, executors: Sequence[Any] | None, transforms: Sequence[Any], options: dict[str, Any]) -> Any:
    """Returns a model that ``thunder.jit`` compiles with ``FusionCache`` behind all other transforms.

    Args:
        model: a module.
        executors: for ``thunder.jit``; None are those of ``fusioncache.executors()``.
        transforms: in front of ``FusionCache``.
        options: of ``FusionCache``.
    """
    import fusioncache
    from fusioncache.thunder_adapter.accelerator_api import thunder

    return thunder.jit(
        model,
        executors=fusioncache.executors() if executors is None else executors,
        transforms=[*transforms, fusioncache.FusionCache(**options)],
    )


def _keep_time_limit(model: Any) -> Any:
    """Gives the collectives of a model the time limit of the job's own process group.

    Args:
        model: what Thunder's ``fsdp`` or ``ddp`` returned. It is returned again.
    """
    try:
        group = model.process_group_for_ddp
        limits = find_time_limits(None)
        if len(set(limits)) == 1:
            from torch.distributed.distributed_c10d import _set_pg_timeout

            _set_pg_timeout(limits[0], group)
    except Exception as error:  # torch has no public name for it
        logger.info("collectives keep torch's time limit", exc_info=error)
    return model
