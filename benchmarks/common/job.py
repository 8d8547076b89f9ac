"""A rank's place in a job that torchrun began."""

from __future__ import annotations

import os
from datetime import timedelta

import torch
import torch.distributed as distributed

_LIMIT = timedelta(seconds=180)
"""After which a rank that waits for another one in vain ends its job."""


def enter_job(device: str) -> None:
    """Joins the other ranks: over NCCL with a GPU of this rank's own, else over gloo with one thread.

    Args:
        device: ``"cuda"`` or ``"cpu"``.
    """
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        own = torch.device("cuda", torch.cuda.current_device())
        distributed.init_process_group("nccl", timeout=_LIMIT, device_id=own)
    else:
        torch.set_num_threads(1)
        distributed.init_process_group("gloo", timeout=_LIMIT)
