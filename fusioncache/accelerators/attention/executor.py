"""An executor of Thunder's that has attention computed by cuDNN, where torch would.

Thunder chooses among torch's flash attention and its memory-efficient one. torch has cuDNN's as well, and prefers it
where that is known to be right and quick: it goes by the GPU, by cuDNN's version, and by what ``sdpa_kernel`` says.
That torch could run it is not enough. The bits of all three differ.

Of a query the operations take each position with all of its heads, as a linear layer behind attention wants it, and
swap dimensions themselves, which moves nothing. torch lays out a result as the query is, and a gradient as what it is
of. So where the query lies in memory in the order of its dimensions here, nothing is copied behind attention, nor on
the way back. All else has its heads first, as in torch: were a result swapped by the program, it would be a view.

What torch keeps of a forward pass besides its results is not kept here, since there is no dropout: numbers that say
which random ones were drawn, and where sequences of several lengths begin.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import torch

from fusioncache.accelerators.attention import NAME
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
    rows, queries, heads, _ = query.shape
    return TensorProxy(like=query, shape=(rows, heads, queries, value.shape[-1]))


def infer_forward(query: Any, key: Any, value: Any, is_causal: bool = False, scale: Any = None) -> Any:
    """Returns the results of ``attend_forward``, as Thunder knows them."""
    result = infer_result(query, key, value, None)
    shape = (*result.shape[:-1], 1)
    return result, TensorProxy(shape=shape, dtype=dtypes.float32, device=query.device, requires_grad=False)


def infer_gradients(gradient: Any, query: Any, key: Any, value: Any, *others: Any, **options: Any) -> Any:
    """Returns the results of ``attend_backward``, as Thunder knows them."""
    rows, queries, heads, size = query.shape
    of_query = TensorProxy(like=query, shape=(rows, heads, queries, size))
    return of_query, *(TensorProxy(like=each, shape=each.shape) for each in (key, value))


def infer_bias(mask: Any, like: Any) -> Any:
    """Returns the result of ``make_bias``, as Thunder knows it."""
    return TensorProxy(like=mask, shape=mask.shape, dtype=like.dtype)


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
    """Returns whether torch would have an attention computed by cuDNN.

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
    device = devices.to_torch_device(proxy.device)
    return torch.empty(proxy.shape[-1], dtype=to_torch_dtype(proxy.dtype), device=device)


@dataclass(frozen=True, slots=True)
class Attention:
    """What ``torch.nn.functional.scaled_dot_product_attention`` is called with, by Thunder's names, in their order.

    Attributes:
        query: of shape (rows, heads, queries, size).
        key: of shape (rows, heads, keys, size).
        value: of shape (rows, heads, keys, size of a value).
        attn_mask: bits or numbers that can be expanded to (rows, heads, queries, keys).
        dropout_p: the probability that an element is dropped.
        is_causal: whether a query sees the keys up to its own position only.
        scale: of scores; None: the inverse root of the size.
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
    """Claims ``torch.nn.functional.scaled_dot_product_attention`` where torch would have cuDNN compute it.

    Its results have the bits of torch's attention by cuDNN, and not those of the kernels that Thunder chooses.

    Args:
        name: by which Thunder knows the executor.
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
        """Returns what programs depend on that this executor takes part in, besides what each program's key has.

        The key has cuDNN's version, the GPU, torch's settings of attention, and the sources of fusioncache.
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
        if given.attn_mask is not None:  # the checker takes none where a backward pass may follow
            raise NotImplementedError("gradients of an attention by cuDNN with a mask")
        numbers = given.is_causal, given.scale
        operands = _lay_out(given)
        result, sums = self.attend_forward(*operands, *numbers)
        gradients = self.attend_backward(get_grad(result), *operands, result, sums, *numbers)
        put_grads(given.operands, gradients)
        return result


def cudnn_attention() -> CudnnAttention:
    """Returns the executor. A process has one, which Thunder knows from the first call on."""
    known = get_executor(NAME)
    if known is None:
        known = register_executor(CudnnAttention(NAME))
    return known  # type: ignore[no-any-return]


def _lay_out(given: Attention) -> tuple[Any, Any, Any]:
    """Returns the operands as our operations take them: the query with each position before its heads.

    It lies in memory in that order if a region makes it, and with it the results of torch's kernels do. nvFuser has a
    permutation at the end of a region move nothing otherwise. Where no region makes it that would be a copy, which
    ``accelerators/steps/views.py`` takes out.
    """
    query = ltorch.permute(given.query, (0, 2, 1, 3))
    return ltorch.contiguous(query), given.key, given.value


def _can_attend(*args: Any, **options: Any) -> bool:
    compiled, given = get_compile_data(), Attention(*args, **options)
    # A model may end with gradients switched off that were on when it was called.
    with_gradients = torch.is_grad_enabled() or compiled is None or compiled.is_grad_enabled
    numbers = given.dropout_p, given.is_causal, given.scale
    # By its name, as observers of decisions replace it there.
    return can_attend_with_cudnn(*given.operands, given.attn_mask, *numbers, with_gradients)
