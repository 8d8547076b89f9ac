"""Prepares attention masks once for all layers of a program.

Thunder's executor for attention converts the bits of a mask to numbers, repeats them for each head, and pads them: five
kernels in each layer, forward and again backward. Backward also computes a gradient of the mask, which bits lack.

    (t1, ...) = sdpaex_...(q1, k1, v1, mask, 0.0)            t9 = prepare_mask(mask, q1)
                                                             (t1, ...) = attend_with_mask(q1, k1, v1, t9, 0.0)
    (t2, ...) = sdpaex_...(q2, k2, v2, mask, 0.0)            (t2, ...) = attend_with_mask(q2, k2, v2, t9, 0.0)

The same torch kernel gets the same numbers; all heads share their memory. A prepared mask lives until the last
attention, so the mask must be the same for all heads, or have one row of queries: then it is not larger than what
Thunder makes for one layer. Attention by cuDNN (``accelerators/attention/``) has its own operation for that, of which
the first call stays.

Nothing may write into the mask meanwhile. In a program that writes, it must have its own memory, as the result of an
index selection has, and only attention may use it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from fusioncache.accelerators.attention.executor import CudnnAttention
from fusioncache.accelerators.steps.views import SimplifiedProgram, Substitution
from fusioncache.backends.bound_symbols import written_values
from fusioncache.thunder_adapter.api import PrimIDs, TensorProxy, dtypes, tracectx
from fusioncache.thunder_adapter.installation import Replacement, is_known_whole
from fusioncache.transform.rewrite import register_once

MASKS = "masks prepared a second time"

_PREPARE, _ATTEND, _DIFFERENTIATE = "prepare_mask", "attend_with_mask", "attend_backward_with_mask"
_FORWARD, _BACKWARD = 3, 4
"""The position of the mask among the arguments of Thunder's operations. The query is the third argument before it."""
_ALIGNED = 8
"""Torch's kernel wants rows of a mask that start at multiples of so many numbers."""


def mask_replacements() -> tuple[Replacement, ...]:
    """Registers the operations in Thunder, as a program stored by another process may name them. Replaces nothing."""
    register_mask_operators()
    return ()


def register_mask_operators() -> tuple[Any, Any, Any]:
    """Returns the operations that prepare a mask, attend with it, and differentiate that. A process has one of each.

    They belong to Thunder's executor for torch.
    """
    from fusioncache.thunder_adapter.accelerator_api import sdpaex

    return (
        register_once(_PREPARE, infer_mask, prepare_mask),
        register_once(_ATTEND, sdpaex.sdpea_gradfwd.meta, attend_with_mask),
        register_once(_DIFFERENTIATE, sdpaex.sdpea_bwd.meta, attend_backward_with_mask),
    )


def share_masks(trace: Any, symbols: Sequence[Any]) -> SimplifiedProgram:
    """Returns the bound symbols of a trace with each mask prepared once, and the number of preparations saved."""
    found = dict(find_masks(symbols))
    uses, prepared, result = Counter[Any](found.values()), dict[Any, Any](), list[Any]()
    substitution = Substitution()
    for place, symbol in enumerate(symbols):
        kind = found.get(place)
        if uses[kind] < 2:
            result.append(substitution.apply(symbol))
        elif _is_preparation(symbol):
            if kind in prepared:
                substitution.add(symbol.output, prepared[kind])
            else:
                prepared[kind] = symbol.output
                result.append(symbol)
        else:
            prepare, attend, differentiate = register_mask_operators()
            place_of_mask = _masked_arguments()[symbol.sym.id]
            query, mask = symbol.args[place_of_mask - 3], symbol.args[place_of_mask]
            if kind not in prepared:
                with tracectx(trace):
                    prepared[kind] = infer_mask(mask, query)
                result.append(prepare.bind(mask, query, output=prepared[kind]))
            args = (*symbol.args[:place_of_mask], prepared[kind], *symbol.args[place_of_mask + 1 :])
            operation = attend if place_of_mask == _FORWARD else differentiate
            result.append(symbol.from_bsym(sym=operation, args=args, subsymbols=()))
    taken = sum(uses[kind] - 1 for kind in prepared)
    return SimplifiedProgram(tuple(result), {MASKS: taken} if taken else {})


def find_masks(symbols: Sequence[Any]) -> Iterator[tuple[int, tuple[Any, ...]]]:
    """Yields the positions of symbols that prepare a shareable mask, each with a key of all that it depends on."""
    places = _masked_arguments()
    users = [(place, symbol) for place, symbol in enumerate(symbols) if _prepares(symbol, places)]
    if not users:
        return
    writes = any(True for symbol in symbols for _ in written_values(symbol))
    selected = _find_selected(symbols, places) if writes else frozenset[str]()
    used = {proxy.name for symbol in symbols for proxy in symbol.flat_proxy_args}
    known = is_known_whole("prepared masks")
    for place, symbol in users:
        place_of_mask = places.get(symbol.sym.id, 0)
        mask = symbol.args[place_of_mask]
        if type(mask) is not TensorProxy or mask.dtype is not dtypes.bool8 or mask.ndim != 4:
            continue
        if (writes and mask.name not in selected) or (mask.shape[1] != 1 and mask.shape[-2] != 1):
            continue
        if _is_preparation(symbol):
            yield place, (mask.name, symbol.args[1].dtype)
        elif known and not _has_used_gradient(symbol, place_of_mask, used):
            query = symbol.args[place_of_mask - 3]
            yield place, (mask.name, query.shape[1], query.dtype)


def _masked_arguments() -> Mapping[Any, int]:
    """Returns the position of the mask among the arguments, by operation of Thunder's."""
    from fusioncache.thunder_adapter.accelerator_api import sdpaex

    return {sdpaex.sdpea_gradfwd.id: _FORWARD, sdpaex.sdpea_bwd.id: _BACKWARD}


def _prepares(symbol: Any, places: Mapping[Any, int]) -> bool:
    """True if a symbol prepares a mask: as a part of attention, or alone."""
    return _is_attention(symbol, places) or _is_preparation(symbol)


def _is_attention(symbol: Any, places: Mapping[Any, int]) -> bool:
    from fusioncache.thunder_adapter.accelerator_api import sdpaex

    return symbol.sym.executor is sdpaex.sdpa_ex and len(symbol.args) > places.get(symbol.sym.id, len(symbol.args))


def _is_preparation(symbol: Any) -> bool:
    """True if a symbol only prepares a mask, as for an attention by cuDNN."""
    executor = symbol.sym.executor
    return isinstance(executor, CudnnAttention) and symbol.sym.id == executor.make_bias.id


def _has_used_gradient(symbol: Any, place_of_mask: int, used: set[str]) -> bool:
    """True if the last result of an attention's backward, the gradient of its mask, is used."""
    gradient = symbol.output[-1] if place_of_mask == _BACKWARD else None
    return getattr(gradient, "name", None) in used


def _find_selected(symbols: Iterable[Any], places: Mapping[Any, int]) -> frozenset[str]:
    """Returns the names of results of index selections that only attention uses.

    So they have no views, and nothing writes into them.
    """
    selected, given = set[str](), set[str]()
    for symbol in symbols:
        for step in symbol.subsymbols if symbol.sym.is_fusion else (symbol,):
            if step.sym.id in (PrimIDs.TAKE, "index_select"):
                selected |= {proxy.name for proxy in step.flat_proxy_outs}
            elif not _prepares(step, places):
                given |= {proxy.name for proxy in step.flat_proxy_args}
    return frozenset(selected - given)


def infer_mask(mask: Any, query: Any) -> Any:
    """Returns the proxy of a prepared mask: the meta function of ``prepare_mask``."""
    rows, _, queries, keys = mask.shape
    return TensorProxy(like=mask, shape=(rows, query.shape[1], queries, keys), dtype=query.dtype)


def prepare_mask(mask: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """Returns the numbers that torch's kernel adds to scores: zero, or minus infinity where the mask is False.

    Args:
        mask: bits, of shape (rows, heads or 1, queries, keys).
        query: of shape (rows, heads, queries, size). Only its dtype and its number of heads are used.

    Returns:
        Of shape (rows, heads, queries, keys). Heads that are equal share their memory.
    """
    *outer, keys = mask.shape
    padded = torch.zeros((*outer, keys + -keys % _ALIGNED), dtype=query.dtype, device=mask.device)
    numbers = padded[..., :keys].masked_fill_(mask.logical_not(), float("-inf"))
    return numbers.expand(-1, query.shape[1], -1, -1)


def attend_with_mask(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
) -> tuple[torch.Tensor, ...]:
    """Computes attention as Thunder's operation does, with a mask prepared by ``prepare_mask``."""
    attend: Any = torch.ops.aten._scaled_dot_product_efficient_attention
    # The logarithms of sums are computed as well, since torch uses another kernel without them.
    return tuple(attend(*_prepare(query, key, value), attn_mask, True, dropout_p, is_causal, scale=scale))


def attend_backward_with_mask(
    grad_out: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor,
    out: torch.Tensor,
    logsumexp: torch.Tensor,
    philox_seed: torch.Tensor,
    philox_offset: torch.Tensor,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
) -> tuple[torch.Tensor | None, ...]:
    """Computes the gradients of query, key and value as Thunder's operation does, and None for that of the mask.

    The arguments are those of Thunder's operation, with a mask prepared by ``prepare_mask``.
    """
    differentiate: Any = torch.ops.aten._scaled_dot_product_efficient_attention_backward
    tensors = (*_prepare(query, key, value), attn_mask, out, logsumexp, philox_seed, philox_offset)
    wanted = [*(each.requires_grad for each in (query, key, value)), False]
    return (*differentiate(grad_out, *tensors, dropout_p, wanted, is_causal, scale=scale)[:3], None)


def _prepare(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """Returns the tensors with a last dimension of stride 1."""
    return [each if each.stride(-1) == 1 else each.contiguous() for each in tensors]
