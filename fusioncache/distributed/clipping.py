"""Gradients of a model that ranks share, clipped by the norm of all of them.

``torch.nn.utils.clip_grad_norm_`` sees a rank's shards only: each rank would clip by another norm.
"""

from __future__ import annotations

from typing import Any

from fusioncache.distributed.shards import find_shards


def clip_grad_norm_(model: Any, max_norm: float, norm_type: float = 2.0) -> Any:
    """Clips a model's gradients as ``torch.nn.utils.clip_grad_norm_`` does, by their norm over all ranks.

    All ranks of the model call it. It returns the norm that all gradients had, the same on each rank.

    Args:
        model: what ``fsdp``, ``ddp`` or ``tensor_parallel`` returned.
        max_norm: the norm that gradients have at most behind it.
        norm_type: of the norm; infinity is that of the greatest number.
    """
    from torch.nn.utils import clip_grads_with_norm_, get_total_norm

    parameters = dict(model.named_parameters())
    gradients = {name: parameter.grad for name, parameter in parameters.items() if parameter.grad is not None}
    shards = find_shards(model)
    cut = gradients.keys() & shards.shapes.keys() if shards else set()
    norm = get_total_norm([gradient for name, gradient in gradients.items() if name not in cut], norm_type)
    if shards is not None:
        # A whole parameter has the same gradient on each rank, and counts once.
        parts = get_total_norm([gradients[name] for name in gradients if name in cut], norm_type)
        together = _add_up(parts.to(next(iter(parameters.values())).device), norm_type, shards.group)
        norm = get_total_norm([together, norm.to(together)], norm_type) if cut < gradients.keys() else together
    clip_grads_with_norm_(parameters.values(), max_norm, norm)
    return norm


def _add_up(norm: Any, norm_type: float, group: Any) -> Any:
    """Returns the norm of what all ranks have, of the norm of what this one has."""
    from torch.distributed import ReduceOp, all_reduce

    norm = norm.float()
    if norm_type == float("inf"):
        all_reduce(norm, ReduceOp.MAX, group)
        return norm
    powers = norm**norm_type
    all_reduce(powers, ReduceOp.SUM, group)
    return powers ** (1.0 / norm_type)
