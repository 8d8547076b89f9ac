"""Models that the ranks of a job share: Thunder's ``fsdp`` and ``ddp`` in one call, checkpoints, clipped gradients."""

from fusioncache.distributed.checkpoint import optimizer_state_dict, state_dict
from fusioncache.distributed.clipping import clip_grad_norm_
from fusioncache.distributed.sharing import ddp, fsdp

__all__ = ["clip_grad_norm_", "ddp", "fsdp", "optimizer_state_dict", "state_dict"]
