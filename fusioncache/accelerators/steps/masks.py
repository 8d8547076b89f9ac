"""The mask of an attention, prepared once for all layers of a program that computes a token.

The mask of a token says which rows of a key-value cache there are, and is one for all layers. Thunder's executor for
attention makes numbers of its bits, for each head, and pads them, in each layer anew: six kernels.

    (t1, ...) = sdpaex_...(q1, k1, v1, mask, 0.0)            t9 = prepare_mask(mask, q1)
                                                             (t1, ...) = attend_with_mask(q1, k1, v1, t9, 0.0)
    (t2, ...) = sdpaex_...(q2, k2, v2, mask, 0.0)            (t2, ...) = attend_with_mask(q2, k2, v2, t9, 0.0)

It is prepared by Thunder's own function, and the same kernel of torch's is given the same numbers, which lie as they
did. An attention by cuDNN (``accelerators/attention/``) has an operation of its own for that, whose first call stays.
What is prepared lives as long as the last attention, so it is for one row of queries, which is small. Nothing may write
into the mask meanwhile: it has to have memory of its own, as what is selected by positions has, and nothing else may be
given it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from fusioncache.accelerators.attention.executor import CudnnAttention
from fusioncache.accelerators.steps.views import Leaner
from fusioncache.thunder_adapter.installation import is_known_whole
from fusioncache.thunder_adapter.patches import Replacement

MASKS = "masks prepared a second time"

_PREPARE, _ATTEND = "prepare_mask", "attend_with_mask"


def replacements() -> tuple[Replacement, ...]:
    """Has Thunder know both operations, which a program that was stored by another process names; replaces nothing."""
    register_operators()
    return ()


def register_operators() -> tuple[Any, Any]:
    """Returns the operations that prepare a mask, and that attend with one that is prepared. A process has one of each.

    They are what Thunder's executor for torch runs.
    """
    from fusioncache.thunder_adapter.accelerator_api import sdpaex
    from fusioncache.thunder_adapter.api import torch_executor as ex

    functions = {_PREPARE: (infer_mask, prepare_mask), _ATTEND: (sdpaex.sdpea_gradfwd.meta, attend_with_mask)}
    prepare, attend = (
        ex.opmap.get(name) or ex.register_operator(name, meta=meta, fn=function)
        for name, (meta, function) in functions.items()
    )
    return prepare, attend


def share_masks(trace: Any, symbols: Sequence[Any]) -> Leaner:
    """Has each mask prepared once in the bound symbols of a trace, and counts how often it is not any more."""
    from fusioncache.thunder_adapter.api import tracectx, variableify

    found = dict(find_masks(symbols))
    uses, prepared, result = Counter(found.values()), dict[Any, Any](), list[Any]()
    renamed: dict[Any, Any] = {}
    for place, symbol in enumerate(symbols):
        kind = found.get(place)
        if kind is None or uses[kind] == 1:
            result.append(symbol.from_bsym_swap_proxies(renamed, skip_output=True))
        elif _is_preparation(symbol):
            if kind in prepared:
                renamed[variableify(symbol.output)] = prepared[kind]
            else:
                prepared[kind] = symbol.output
                result.append(symbol)
        else:
            prepare, attend = register_operators()
            query, mask = symbol.args[0], symbol.args[3]
            if kind not in prepared:
                with tracectx(trace):
                    prepared[kind] = infer_mask(mask, query)
                result.append(prepare.bind(mask, query, output=prepared[kind]))
            args = (*symbol.args[:3], prepared[kind], *symbol.args[4:])
            result.append(symbol.from_bsym(sym=attend, args=args, subsymbols=()))
    taken = sum(uses[kind] - 1 for kind in prepared)
    return Leaner(tuple(result), {MASKS: taken} if taken else {})


def find_masks(symbols: Sequence[Any]) -> Iterator[tuple[int, tuple[Any, ...]]]:
    """Yields the positions of what prepares a mask that may be shared, each with all that this depends on."""
    from fusioncache.thunder_adapter.api import TensorProxy, dtypes

    users = [
        (place, symbol) for place, symbol in enumerate(symbols) if _is_attention(symbol) or _is_preparation(symbol)
    ]
    selected = _find_selected(symbols) if users else frozenset()
    for place, symbol in users:
        prepares = _is_preparation(symbol)
        mask = symbol.args[0 if prepares else 3]
        if type(mask) is not TensorProxy or mask.dtype is not dtypes.bool8 or mask.ndim != 4:
            continue
        if mask.name not in selected or mask.shape[-2] != 1:
            continue
        query = symbol.args[1 if prepares else 0]
        if prepares:
            yield place, (mask.name, query.dtype)
        elif is_known_whole("prepared masks") and query.shape[-2] == 1:
            yield place, (mask.name, query.shape[1], query.shape[-1], query.dtype)


def _is_attention(symbol: Any) -> bool:
    from fusioncache.thunder_adapter.accelerator_api import sdpaex

    is_own = symbol.sym.executor is sdpaex.sdpa_ex and symbol.sym.id == sdpaex.sdpea_gradfwd.id
    return is_own and len(symbol.args) >= 4


def _is_preparation(symbol: Any) -> bool:
    """Returns whether a mask is prepared by an operation of its own, as that of an attention by cuDNN is."""
    executor = symbol.sym.executor
    return isinstance(executor, CudnnAttention) and symbol.sym.id == executor.make_bias.id


def _find_selected(symbols: Iterable[Any]) -> frozenset[str]:
    """Returns the names of what is selected by positions, and which nothing but attention is given.

    So there is neither a view of it nor anything that writes into it.
    """
    from fusioncache.thunder_adapter.api import PrimIDs

    selected, given = set[str](), set[str]()
    for symbol in symbols:
        for step in symbol.subsymbols if symbol.sym.is_fusion else (symbol,):
            if step.sym.id in (PrimIDs.TAKE, "index_select"):
                selected |= {proxy.name for proxy in step.flat_proxy_outs}
            elif not _is_attention(step) and not _is_preparation(step):
                given |= {proxy.name for proxy in step.flat_proxy_args}
    return frozenset(selected - given)


def infer_mask(mask: Any, query: Any) -> Any:
    """Returns a prepared mask, as Thunder knows it before anything is computed."""
    from fusioncache.thunder_adapter.api import TensorProxy

    rows, _, queries, keys = mask.shape
    return TensorProxy(like=mask, shape=(rows, query.shape[1], queries, keys), dtype=query.dtype)


def prepare_mask(mask: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """Returns what torch's kernel adds to scores: zero, or minus infinity where the mask is False.

    Args:
        mask: bits, of shape (rows, heads or 1, queries, keys).
        query: of shape (rows, heads, queries, size), of which only dtype and sizes are asked.
    """
    from fusioncache.thunder_adapter.accelerator_api import _attention_mask_memory_efficient_helper

    prepared: torch.Tensor = _attention_mask_memory_efficient_helper(mask, query)
    return prepared


def attend_with_mask(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
) -> tuple[torch.Tensor, ...]:
    """Attends as Thunder's operation does, with a mask that ``prepare_mask`` has prepared."""
    tensors = (each if each.stride(-1) == 1 else each.contiguous() for each in (query, key, value))
    attend: Any = torch.ops.aten._scaled_dot_product_efficient_attention
    # The logarithms of sums are computed as well, since the kernel is another one without.
    return tuple(attend(*tensors, attn_mask, True, dropout_p, is_causal, scale=scale))
