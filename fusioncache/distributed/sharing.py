"""Models that ranks share, in one call: Thunder's own ``fsdp`` and ``ddp``, with all in the right order.

A transform that is added to what Thunder's ``fsdp`` returned silently gives other weights. Here it is there before.
Thunder's collectives run on a group of their own, which has torch's time limit (10 minutes over NCCL, else 30),
whatever ``init_process_group(timeout=...)`` was given. Here it has the job's.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

logger = logging.getLogger("fusioncache")


def fsdp(
    model: Any,
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
        reshard: whether backward gathers parameters again (ZeRO3); else they stay gathered until then (ZeRO2).
        device: where its shards are to be; None leaves that to Thunder.
        broadcast_from: the rank whose parameters all take; None: each takes its own.
        executors: for ``thunder.jit``; None are those of ``fusioncache.executors()``.
        transforms: more of them, in front of ``FusionCache``.
        options: of ``FusionCache``, such as ``in_flight_bytes``.
    """
    from thunder.distributed import FSDPType
    from thunder.distributed import fsdp as share

    sharding = FSDPType.ZERO3 if reshard else FSDPType.ZERO2
    jitted = _jit(model, executors, transforms, options)
    return _keep_time_limit(share(jitted, device=device, broadcast_from=broadcast_from, sharding_strategy=sharding))


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
    from thunder.distributed import ddp as share

    return _keep_time_limit(share(_jit(model, executors, transforms, options), broadcast_from=broadcast_from))


def _jit(model: Any, executors: Sequence[Any] | None, transforms: Sequence[Any], options: dict[str, Any]) -> Any:
    import thunder

    import fusioncache

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


def find_time_limits(group: Any) -> list[Any]:
    """Returns the time limit of each backend of a process group; None is the job's own."""
    from torch.distributed.distributed_c10d import _get_default_group

    group = _get_default_group() if group is None else group
    return [group._get_backend(device).options._timeout for device in group._device_types]
