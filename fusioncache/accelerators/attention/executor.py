"""An executor of Thunder's that has attention computed by cuDNN, where torch would."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from fusioncache.accelerators.attention import NAME, choice, operators
from fusioncache.thunder_adapter.accelerator_api import get_grad, put_grads
from fusioncache.thunder_adapter.api import (
    OperatorExecutor,
    OpTags,
    Symbol,
    get_compile_data,
    get_executor,
    ltorch,
    register_executor,
)


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
        self.attend = self._register("cudnn_attend", operators.infer_result, operators.attend, no_recompute)
        self.attend_forward = self._register(
            "cudnn_attend_forward", operators.infer_forward, operators.attend_forward, no_recompute
        )
        self.attend_backward = self._register(
            "cudnn_attend_backward", operators.infer_gradients, operators.attend_backward
        )
        self.make_bias = self._register("make_attention_bias", operators.infer_bias, operators.make_bias)
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
    # By its name, as whoever watches decisions replaces it there.
    return choice.can_attend_with_cudnn(*given.operands, given.attn_mask, *numbers, with_gradients)
