"""Whether torch can run an attention by cuDNN.

Thunder chooses among torch's flash attention and its memory-efficient one. torch has cuDNN's as well, and prefers it on
some GPUs; the bits of both differ.
"""

from __future__ import annotations

from typing import Any


def can_attend_with_cudnn(
    query: Any, key: Any, value: Any, mask: Any, dropout: float, is_causal: bool, scale: float | None
) -> bool:
    """Tells whether torch can run an attention by cuDNN, on the GPU that is current.

    Only masks of bits are taken: one of numbers may need a gradient, which cuDNN does not give. With dropout it is left
    to Thunder, whose order of random numbers stays.

    Args:
        query: Thunder's proxy of a tensor of shape (rows, heads, queries, size).
        key: of shape (rows, heads, keys, size).
        value: of shape (rows, heads, keys, size of a value).
        mask: a proxy of bits that can be expanded to (rows, heads, queries, keys); or None.
        dropout: the probability that an element is dropped.
        is_causal: whether a query sees the keys up to its own position only.
        scale: of scores; None: the inverse root of the size. torch does not ask for it.
    """
    import torch
    from thunder.core import devices, dtypes

    given = [each for each in (query, key, value, mask) if each is not None]
    if any(each.device.devicetype is not devices.DeviceType.CUDA for each in given):
        return False
    if dropout != 0 or (mask is not None and mask.dtype is not dtypes.bool8):
        return False
    params = _describe(query, key, value, mask, bool(is_causal))
    return torch.backends.cuda.cudnn_sdp_enabled() and torch.backends.cuda.can_use_cudnn_attention(params, False)


def _describe(query: Any, key: Any, value: Any, mask: Any, is_causal: bool) -> Any:
    """Returns an attention as torch is asked about it, with tensors that have no memory."""
    from thunder.executors.utils import _convert_to_fake_tensor, _convert_to_meta_tensor
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.backends.cuda import SDPAParams

    with FakeTensorMode() as mode:
        tensors = [_convert_to_fake_tensor(mode, _convert_to_meta_tensor(each)) for each in (query, key, value, mask)]
    return SDPAParams(*tensors, 0.0, is_causal, False)
