"""How long ranks wait for one that does not come.

Thunder's collectives run on a group of their own, which has torch's time limit (10 minutes over NCCL, else 30),
whatever ``init_process_group(timeout=...)`` was given.
"""

from __future__ import annotations

import logging
from typing import Any

logger = logging.getLogger("fusioncache")


def keep_time_limit(model: Any) -> Any:
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
