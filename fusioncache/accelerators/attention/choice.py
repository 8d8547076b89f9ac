"""Whether torch itself would have an attention computed by cuDNN.

Thunder chooses among torch's flash attention and its memory-efficient one. torch has cuDNN's as well, and prefers it
where that is known to be right and quick: it goes by the GPU, by cuDNN's version, and by what ``sdpa_kernel`` says.
That torch could run it is not enough. The bits of all three differ.
"""

from __future__ import annotations

import logging
from typing import Any

logger = logging.getLogger("fusioncache")

_DIMENSIONS = 4
"""How many dimensions each operand has, and a mask: an attention with others is left to Thunder."""


def can_attend_with_cudnn(
    query: Any,
    key: Any,
    value: Any,
    mask: Any,
    dropout: float,
    is_causal: bool,
    scale: float | None,
    with_gradients: bool,
) -> bool:
    """Tells whether torch would have an attention computed by cuDNN.

    Only masks of bits are taken, and only without gradients. One of numbers may need a gradient itself, which cuDNN
    does not give, and with any mask its gradients may be no numbers (pytorch/pytorch#196678). With dropout an attention
    is left to Thunder, whose order of random numbers stays. What torch cannot be asked about is left to it as well.

    Args:
        query: Thunder's proxy of a tensor of shape (rows, heads, queries, size).
        key: of shape (rows, heads, keys, size).
        value: of shape (rows, heads, keys, size of a value).
        mask: a proxy of bits that can be expanded to (rows, heads, queries, keys); or None.
        dropout: the probability that an element is dropped.
        is_causal: whether a query sees the keys up to its own position only.
        scale: of scores; None: the inverse root of the size.
        with_gradients: whether a backward pass may follow.
    """
    from fusioncache.thunder_adapter.api import devices, dtypes

    given = [each for each in (query, key, value, mask) if each is not None]
    if any(each.device.devicetype is not devices.DeviceType.CUDA or each.ndim != _DIMENSIONS for each in given):
        return False
    if dropout != 0 or (mask is not None and (with_gradients or mask.dtype is not dtypes.bool8)):
        return False
    try:
        return _ask_torch(query, key, value, mask, bool(is_causal), scale, with_gradients)
    except Exception as error:  # a shape that torch does not expect, an option that it does not know
        logger.info("an attention is left to Thunder", exc_info=error)
        return False


def _ask_torch(
    query: Any, key: Any, value: Any, mask: Any, is_causal: bool, scale: float | None, with_gradients: bool
) -> bool:
    import torch
    from torch.nn.attention import SDPBackend

    operands = [_describe(each).requires_grad_(with_gradients) for each in (query, key, value)]
    with torch.enable_grad() if with_gradients else torch.no_grad():
        kernel = torch._fused_sdp_choice(
            *(each.expand(proxy.shape) for each, proxy in zip(operands, (query, key, value), strict=True)),
            None if mask is None else _describe(mask).expand(mask.shape),
            0.0,
            is_causal,
            scale=scale,
        )
    return bool(kernel == SDPBackend.CUDNN_ATTENTION.value)


def _describe(proxy: Any) -> Any:
    """Returns one row of a tensor like the proxy's. Expanded to all rows, it takes no more memory than the one."""
    import torch

    from fusioncache.thunder_adapter.api import devices, to_torch_dtype

    device = devices.to_torch_device(proxy.device)
    return torch.empty(proxy.shape[-1], dtype=to_torch_dtype(proxy.dtype), device=device)
