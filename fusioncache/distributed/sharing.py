"""Distributed models in one call: tensor parallelism, and Thunder's ``fsdp`` and ``ddp`` in the right order.

A transform that is added to the result of Thunder's ``fsdp`` silently changes weights. Here it is added before.
Thunder's collectives run on a separate group with torch's default time limit (10 minutes over NCCL, else 30), even if
``init_process_group(timeout=...)`` set another one. Here the group gets the job's limit.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from fusioncache.distributed.cut_layers import Role, TensorParallelTransform, find_cut_parameters
from fusioncache.process.warning import log_errors


def find_group(given: Any) -> Any:
    """Returns a process group.

    Args:
        given: the group, or a mesh of one dimension; None is the job's default group.

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
        given: a process group or a mesh of one dimension, for one copy: then the second group is None. In a mesh of two
            dimensions copies are along the first one, as for torch's ``fully_shard``.

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
    """Returns the time limit of each backend of a process group; None is the job's default group."""
    group = find_group(group)
    return [group._get_backend(device).options._timeout for device in group._device_types]


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
    """Shards a model among ranks, and compiles it with ``FusionCache`` (fully sharded data parallelism).

    Args:
        model: a module, the same on each rank.
        group: the process group that shares it, or a mesh of one dimension. With a mesh of two dimensions the ranks
            along the second one share a copy of the model, and the ranks along the first one average the gradients of
            their shards: hybrid sharding, as in torch's ``fully_shard``. None is a group of all ranks.
        reshard: whether backward gathers parameters again (ZeRO3); else they stay gathered until then (ZeRO2).
        device: of its shards; None leaves that to Thunder.
        broadcast_from: the rank of the job whose parameters all ranks of ``group`` take; None: each takes its own.
        executors: for ``thunder.jit``; by default ``fusioncache.executors()``.
        transforms: further ones, in front of ``FusionCache``.
        options: of ``FusionCache``, such as ``in_flight_bytes``.

    Raises:
        ValueError: if a mesh has more than two dimensions, or two and ``broadcast_from`` is given: that rank is in one
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
    """Moves a model with tied parameters to the device of its shards: Thunder 0.2.6 raises if it moves them itself."""
    import torch

    if device is None and "LOCAL_RANK" in os.environ:  # as in Thunder
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    named = [parameter for _, parameter in model.named_parameters(remove_duplicate=False)]
    are_tied = len({id(parameter) for parameter in named}) < len(named)
    if device is not None and are_tied and not any(parameter.is_meta for parameter in named):
        model.to(device)


def _share_in(jitted: Any, group: Any, given: dict[str, Any]) -> Any:
    """Returns a model that a group shares, or each row of a mesh one copy. Thunder's ``fsdp`` supports all ranks only.

    Args:
        jitted: the result of ``thunder.jit``.
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
    # After the sharding transform, so that copies average the shards of gradients.
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
    """Compiles a model with ``FusionCache`` for data parallelism: ranks have it whole, and average gradients.

    Args:
        model: a module.
        broadcast_from: the rank whose parameters all ranks take; None: each keeps its own.
        executors: for ``thunder.jit``; by default ``fusioncache.executors()``.
        transforms: further ones, in front of ``FusionCache``.
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
    """Cuts a model's layers among ranks, and compiles it with ``FusionCache`` (tensor parallelism).

    All ranks pass the same input, and get the same output. Layers are named by patterns, such as ``"*.mlp.gate"``. The
    gradient of a cut parameter is a part; that of a whole parameter is the same on each rank.

    Args:
        model: a module, the same on each rank, on the device where it runs.
        group: a process group, or a mesh of one dimension; None is the job's default group.
        column: ``Linear`` layers of which each rank computes some output features, each in front of a row layer; and
            ``Embedding``s, whose vocabulary is cut and whose results are summed over ranks.
        row: ``Linear`` layers of which each rank has some input features. Results are summed over ranks.
        gathered: ``Linear`` layers that are cut like column layers, with the result gathered on each rank: a head.
        sequence: whether the activations between these layers are cut, too, along the sequence if ranks divide it.
        broadcast_from: the rank of the group whose parameters all ranks take; None: each takes its own.
        release: whether ``model`` drops the whole parameters that are cut here. Then it cannot run uncompiled.
        executors: for ``thunder.jit``; by default ``fusioncache.executors()``.
        transforms: further ones, behind this one and in front of ``FusionCache``.
        options: of ``FusionCache``, such as ``schedule``.

    Raises:
        CutError: if a layer cannot be cut in this way; in the first call of the model, if an operation on a cut tensor
            cannot be computed in parts.
    """
    group = find_group(group)
    parameters = find_cut_parameters(model, {Role.COLUMN: column, Role.ROW: row, Role.GATHERED: gathered}, group.size())
    cutting = TensorParallelTransform(group, parameters, of_rows=sequence, origin=broadcast_from, release=release)
    return _jit(model, executors, [cutting, *transforms], options)


def _jit(model: Any, executors: Sequence[Any] | None, transforms: Sequence[Any], options: dict[str, Any]) -> Any:
    """Returns a model that ``thunder.jit`` compiles with ``FusionCache`` behind all other transforms.

    Args:
        model: a module.
        executors: for ``thunder.jit``; by default ``fusioncache.executors()``.
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
    """Sets the time limit of a model's collectives to that of the job's default group, and returns the model.

    Args:
        model: the result of Thunder's ``fsdp`` or ``ddp``.
    """
    # Torch's function is private, and may change.
    with log_errors("collectives keep torch's time limit"):
        group = model.process_group_for_ddp
        limits = find_time_limits(None)
        if len(set(limits)) == 1:
            from torch.distributed.distributed_c10d import _set_pg_timeout

            _set_pg_timeout(limits[0], group)
    return model
