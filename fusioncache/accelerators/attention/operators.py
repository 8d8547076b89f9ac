"""Operations of torch's attention by cuDNN, as an executor of Thunder's runs them.

Of a query they take each position with all of its heads, as a linear layer behind attention wants it, and swap
dimensions themselves, which moves nothing. torch lays out a result as the query is, and a gradient as what it is of. So
where the query lies in memory in the order of its dimensions here, nothing is copied behind attention, nor on the way
back. All else has its heads first, as in torch: were a result swapped by the program, whoever gets it from that would
have a view in place of a tensor.

What torch keeps of a forward pass besides its results is not kept here, since there is no dropout: numbers that say
which random ones were drawn, and where sequences of several lengths begin.
"""

from __future__ import annotations

from typing import Any

import torch


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: torch.Tensor | None,
    is_causal: bool = False,
    scale: float | None = None,
) -> torch.Tensor:
    """Attends, with nothing kept for a backward pass.

    Args:
        query: of shape (rows, queries, heads, size), in float16 or bfloat16, as key and value are.
        key: of shape (rows, heads, keys, size).
        value: of shape (rows, heads, keys, size of a value).
        bias: what is added to scores, as ``make_bias`` makes it; or None.
        is_causal: whether a query sees the keys up to its own position only.
        scale: of scores; None: the inverse root of the size.

    Returns:
        Of shape (rows, heads, queries, size of a value).
    """
    found: torch.Tensor = _attend(query, key, value, bias, False, is_causal, scale)[0]
    return found


def attend_forward(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    is_causal: bool = False,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attends for a backward pass, without a mask, and with all else as ``attend`` takes it.

    Returns:
        The result, and the logarithms of the sums of scores, of shape (rows, heads, queries, 1), in float32.
    """
    result, sums, *_ = _attend(query, key, value, None, True, is_causal, scale)
    return result, sums


def attend_backward(
    gradient: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    result: torch.Tensor,
    sums: torch.Tensor,
    is_causal: bool = False,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns the gradients of query, key and value, given that of the result and what ``attend_forward`` returned.

    Each has its heads first, that of the query as well.
    """
    # Without dropout no random numbers are read, but torch asks for tensors.
    drawn = torch.empty((), dtype=torch.int64, device=query.device)
    operands = [*_prepare(query, key, value), result, sums, drawn, drawn]
    sizes = (query.shape[1], key.shape[2])
    differentiate: Any = torch.ops.aten._scaled_dot_product_cudnn_attention_backward
    found: tuple[torch.Tensor, torch.Tensor, torch.Tensor] = differentiate(
        gradient, *operands, None, None, None, *sizes, 0.0, is_causal, scale=scale
    )
    return found


def make_bias(mask: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Returns what is added to scores: zero, or minus infinity where the mask is False; its last dimension is dense.

    A query that sees no key gets zeros for it, as from torch's other kernels. torch 2.10 adds -65504 itself, by which
    such a query sees all keys (pytorch/pytorch#177842); else bits are the same.

    Args:
        mask: bits, of any shape.
        like: has the dtype of the result.
    """
    bias = torch.full_like(mask, float("-inf"), dtype=like.dtype, memory_format=torch.contiguous_format)
    return bias.masked_fill_(mask, 0.0)


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: torch.Tensor | None,
    saves: bool,
    is_causal: bool,
    scale: float | None,
) -> Any:
    compute: Any = torch.ops.aten._scaled_dot_product_cudnn_attention
    return compute(*_prepare(query, key, value), bias, saves, 0.0, is_causal, scale=scale)


def _prepare(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> list[torch.Tensor]:
    """Returns operands as torch's kernels for attention ask for them: heads first, and each last dimension dense."""
    given = (query.transpose(1, 2), key, value)
    return [each if each.stride(-1) == 1 else each.contiguous() for each in given]


def infer_result(query: Any, key: Any, value: Any, bias: Any, is_causal: bool = False, scale: Any = None) -> Any:
    """Returns the result of ``attend``, as Thunder knows it before anything is computed."""
    from fusioncache.thunder_adapter.api import TensorProxy

    rows, queries, heads, _ = query.shape
    return TensorProxy(like=query, shape=(rows, heads, queries, value.shape[-1]))


def infer_forward(query: Any, key: Any, value: Any, is_causal: bool = False, scale: Any = None) -> Any:
    """Returns the results of ``attend_forward``, as Thunder knows them."""
    from fusioncache.thunder_adapter.api import TensorProxy, dtypes

    result = infer_result(query, key, value, None)
    shape = (*result.shape[:-1], 1)
    return result, TensorProxy(shape=shape, dtype=dtypes.float32, device=query.device, requires_grad=False)


def infer_gradients(gradient: Any, query: Any, key: Any, value: Any, *others: Any, **options: Any) -> Any:
    """Returns the results of ``attend_backward``, as Thunder knows them."""
    from fusioncache.thunder_adapter.api import TensorProxy

    rows, queries, heads, size = query.shape
    of_query = TensorProxy(like=query, shape=(rows, heads, queries, size))
    return of_query, *(TensorProxy(like=each, shape=each.shape) for each in (key, value))


def infer_bias(mask: Any, like: Any) -> Any:
    """Returns the result of ``make_bias``, as Thunder knows it."""
    from fusioncache.thunder_adapter.api import TensorProxy

    return TensorProxy(like=mask, shape=mask.shape, dtype=like.dtype)
