"""Distributed models: Thunder's ``fsdp`` and ``ddp``, tensor parallelism, checkpoints, and gradient clipping."""

from fusioncache.distributed.cuts import CutError
from fusioncache.distributed.shards import clip_grad_norm_, optimizer_state_dict, state_dict
from fusioncache.distributed.sharing import ddp, fsdp, tensor_parallel

__all__ = ["CutError", "clip_grad_norm_", "ddp", "fsdp", "optimizer_state_dict", "state_dict", "tensor_parallel"]
