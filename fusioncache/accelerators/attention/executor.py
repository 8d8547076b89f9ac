"""A Thunder executor that computes attention with cuDNN where torch would.

Thunder chooses between torch's flash and memory-efficient kernels. torch also has cuDNN's kernel, and prefers it where
it is known to be correct and fast, depending on the GPU, cuDNN's version and ``sdpa_kernel``. This executor requires
that preference: it is not enough that torch could run cuDNN. The results of all three kernels differ bitwise.

The operations take the query as (rows, queries, heads, size), the order that a linear layer after attention needs. They
transpose it themselves, as a view. torch gives a result the memory layout of the query, and a gradient that of its
operand. So if the query is contiguous in this order, nothing is copied after attention or in the backward pass. All
other tensors have heads before positions, as in torch: a result that programs must transpose is a view.

torch also saves the random number state and the offsets of sequences of several lengths for backward. The operations
here do not, because there is no dropout.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from fusioncache.accelerators.attention import NAME
from fusioncache.process.warning import log_errors
from fusioncache.thunder_adapter.accelerator_api import get_grad, put_grads
from fusioncache.thunder_adapter.api import (
    OperatorExecutor,
    OpTags,
    Symbol,
    TensorProxy,
    devices,
    dtypes,
    get_compile_data,
    get_executor,
    ltorch,
    register_executor,
    to_torch_dtype,
)


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: torch.Tensor | None,
    is_causal: bool = False,
    scale: float | None = None,
) -> torch.Tensor:
    """Computes attention without saving anything for a backward pass.

    Args:
        query: of shape (rows, queries, heads, size), in float16 or bfloat16, as key and value are.
        key: of shape (rows, heads, keys, size).
        value: of shape (rows, heads, keys, size of a value).
        bias: added to scores, as made by ``make_bias``; or None.
        is_causal: whether a query attends only to keys up to its own position.
        scale: of scores; None: the inverse square root of the size.

    Returns:
        Of shape (rows, heads, queries, size of a value).
    """
    operands = _prepare(query, key, value)
    compute: Any = torch.ops.aten._scaled_dot_product_cudnn_attention
    found: torch.Tensor = compute(*operands, bias, False, 0.0, is_causal, scale=scale)[0]
    return found


def attend_forward(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    is_causal: bool = False,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Computes attention with saved tensors for a backward pass. Takes the arguments of ``attend`` but the bias.

    Returns:
        The result, and the log-sum-exp of the scores, of shape (rows, heads, queries, 1), in float32.
    """
    operands = _prepare(query, key, value)
    compute: Any = torch.ops.aten._scaled_dot_product_cudnn_attention
    result, sums, *_ = compute(*operands, None, True, 0.0, is_causal, scale=scale)
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
    """Returns the gradients of query, key and value, given that of the result and the results of ``attend_forward``.

    All of them, also that of the query, have heads before positions.
    """
    # Without dropout the random number state is not read, but torch requires tensors.
    drawn = torch.empty((), dtype=torch.int64, device=query.device)
    operands = [*_prepare(query, key, value), result, sums, drawn, drawn]
    sizes = (query.shape[1], key.shape[2])
    differentiate: Any = torch.ops.aten._scaled_dot_product_cudnn_attention_backward
    found: tuple[torch.Tensor, torch.Tensor, torch.Tensor] = differentiate(
        gradient, *operands, None, None, None, *sizes, 0.0, is_causal, scale=scale
    )
    return found


def make_bias(mask: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Returns the bias for scores: zero, or minus infinity where the mask is False; its last dimension has stride 1.

    With it, the result for a query that attends to no key is zero, as with torch's other kernels. torch 2.10 itself
    adds -65504, so that such a query attends to all keys (pytorch/pytorch#177842). Other results are bitwise the same.

    Args:
        mask: boolean, of any shape.
        like: a tensor with the dtype of the result.
    """
    bias = torch.full_like(mask, float("-inf"), dtype=like.dtype, memory_format=torch.contiguous_format)
    return bias.masked_fill_(mask, 0.0)


def _prepare(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> list[torch.Tensor]:
    """Returns the operands as torch's attention kernels require: heads before positions, last dimension of stride 1."""
    given = (query.transpose(1, 2), key, value)
    return [each if each.stride(-1) == 1 else each.contiguous() for each in given]


def infer_result(query: Any, key: Any, value: Any, bias: Any, is_causal: bool = False, scale: Any = None) -> Any:
    """Returns a proxy of the result of ``attend`` (meta function)."""
    rows, queries, heads, _ = query.shape
    return TensorProxy(like=query, shape=(rows, heads, queries, value.shape[-1]))


def infer_forward(query: Any, key: Any, value: Any, is_causal: bool = False, scale: Any = None) -> Any:
    """Returns proxies of the results of ``attend_forward`` (meta function)."""
    result = infer_result(query, key, value, None)
    shape = (*result.shape[:-1], 1)
    return result, TensorProxy(shape=shape, dtype=dtypes.float32, device=query.device, requires_grad=False)


def infer_gradients(gradient: Any, query: Any, key: Any, value: Any, *others: Any, **options: Any) -> Any:
    """Returns proxies of the results of ``attend_backward`` (meta function)."""
    rows, queries, heads, size = query.shape
    of_query = TensorProxy(like=query, shape=(rows, heads, queries, size))
    return of_query, *(TensorProxy(like=each, shape=each.shape) for each in (key, value))


def infer_bias(mask: Any, like: Any) -> Any:
    """Returns a proxy of the result of ``make_bias`` (meta function)."""
    return TensorProxy(like=mask, shape=mask.shape, dtype=like.dtype)


_DIMENSIONS = 4
"""The number of dimensions of each operand and of a mask. Attention with any other number is left to Thunder."""


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
    """True if this executor computes an attention: it is supported here, and torch would choose cuDNN for it.

    Only boolean masks are supported, and only without gradients. A mask of numbers may need a gradient, which cuDNN
    does not compute, and with any mask its gradients may be NaN (pytorch/pytorch#196678). Attention with dropout is
    left to Thunder, so that the order of random numbers stays the same. Attention for which
    ``torch._fused_sdp_choice`` raises is left to Thunder as well.

    Args:
        query: Thunder's proxy of a tensor of shape (rows, heads, queries, size).
        key: of shape (rows, heads, keys, size).
        value: of shape (rows, heads, keys, size of a value).
        mask: a boolean proxy that can be expanded to (rows, heads, queries, keys); or None.
        dropout: the probability that an element is dropped.
        is_causal: whether a query attends only to keys up to its own position.
        scale: of scores; None: the inverse square root of the size.
        with_gradients: whether a backward pass may follow.
    """
    given = [each for each in (query, key, value, mask) if each is not None]
    if any(each.device.devicetype is not devices.DeviceType.CUDA or each.ndim != _DIMENSIONS for each in given):
        return False
    if dropout != 0 or (mask is not None and (with_gradients or mask.dtype is not dtypes.bool8)):
        return False
    # It raises for an unexpected shape, or an option that this torch lacks.
    with log_errors("an attention is left to Thunder"):
        return _is_claimed_by_cudnn(query, key, value, mask, bool(is_causal), scale, with_gradients)
    return False


def _is_claimed_by_cudnn(
    query: Any, key: Any, value: Any, mask: Any, is_causal: bool, scale: float | None, with_gradients: bool
) -> bool:
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
    """Returns a tensor of one row that has the proxy's dtype and device. Expanding it to all rows takes no memory."""
    device = devices.to_torch_device(proxy.device)
    return torch.empty(proxy.shape[-1], dtype=to_torch_dtype(proxy.dtype), device=device)


@dataclass(frozen=True, slots=True)
class Attention:
    """The arguments of ``torch.nn.functional.scaled_dot_product_attention``, in order, with Thunder's names.

    Attributes:
        query: of shape (rows, heads, queries, size).
        key: of shape (rows, heads, keys, size).
        value: of shape (rows, heads, keys, size of a value).
        attn_mask: booleans or numbers that can be expanded to (rows, heads, queries, keys).
        dropout_p: the probability that an element is dropped.
        is_causal: whether a query attends only to keys up to its own position.
        scale: of scores; None: the inverse square root of the size.
    """

    query: Any
    key: Any
    value: Any
    attn_mask: Any = None
    dropout_p: float = 0.0
    is_causal: bool = False
    scale: float | None = None

    @property
    def operands(self) -> tuple[Any, Any, Any]:
        """Query, key and value."""
        return self.query, self.key, self.value


class CudnnAttention(OperatorExecutor):
    """Executor that claims ``torch.nn.functional.scaled_dot_product_attention`` where torch would choose cuDNN.

    Its results are bitwise those of torch's cuDNN attention, and not those of the kernels that Thunder chooses.

    Args:
        name: of the executor in Thunder.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        no_recompute = (OpTags.DONT_AUTO_RECOMPUTE_IN_BACKWARD,)
        self.attend = self._register("cudnn_attend", infer_result, attend, no_recompute)
        self.attend_forward = self._register("cudnn_attend_forward", infer_forward, attend_forward, no_recompute)
        self.attend_backward = self._register("cudnn_attend_backward", infer_gradients, attend_backward)
        self.make_bias = self._register("make_attention_bias", infer_bias, make_bias)
        self.register_implementation(
            ltorch.scaled_dot_product_attention,
            checker=_can_attend,
            execution_transform=self._compute,
            grad_transform=self._differentiate,
        )

    def cache_key(self) -> str:
        """Returns the dependencies of this executor's programs that are not in every program's key: only its name.

        The key contains cuDNN's version, the GPU, torch's attention settings, and the sources of fusioncache.
        """
        return str(self.name)

    def _register(self, name: str, meta: Any, function: Any, tags: tuple[OpTags, ...] = ()) -> Symbol:
        return self.register_operator(name, meta=meta, fn=function, tags=tags)

    def _compute(self, *args: Any, **options: Any) -> Any:
        given = Attention(*args, **options)
        bias = None if given.attn_mask is None else self.make_bias(given.attn_mask, given.query)
        return self.attend(*_lay_out(given), bias, given.is_causal, given.scale)

    def _differentiate(self, *args: Any, **options: Any) -> Any:
        given = Attention(*args, **options)
        if given.attn_mask is not None:  # the checker rejects a mask if a backward pass may follow
            raise NotImplementedError("gradients of an attention by cuDNN with a mask")
        numbers = given.is_causal, given.scale
        operands = _lay_out(given)
        result, sums = self.attend_forward(*operands, *numbers)
        gradients = self.attend_backward(get_grad(result), *operands, result, sums, *numbers)
        put_grads(given.operands, gradients)
        return result


def cudnn_attention() -> CudnnAttention:
    """Returns the process's executor. The first call registers it with Thunder."""
    known = get_executor(NAME)
    if known is None:
        known = register_executor(CudnnAttention(NAME))
    return known  # type: ignore[no-any-return]


def _lay_out(given: Attention) -> tuple[Any, Any, Any]:
    """Returns the operands as the operations here take them: the query with positions before heads, contiguous.

    If a region produces the query, the region writes it in that order, and the results of torch's kernels have it, too.
    Without ``contiguous``, nvFuser makes a permutation at the end of a region a view. If no region produces the query,
    ``contiguous`` would copy, and ``accelerators/steps/views.py`` removes the copy.
    """
    query = ltorch.permute(given.query, (0, 2, 1, 3))
    return ltorch.contiguous(query), given.key, given.value


def _can_attend(*args: Any, **options: Any) -> bool:
    compiled, given = get_compile_data(), Attention(*args, **options)
    # A model may switch off gradients that were enabled when it was called.
    with_gradients = torch.is_grad_enabled() or compiled is None or compiled.is_grad_enabled
    numbers = given.dropout_p, given.is_causal, given.scale
    # Called as a global, because observers of decisions replace the global.
    return can_attend_with_cudnn(*given.operands, given.attn_mask, *numbers, with_gradients)
