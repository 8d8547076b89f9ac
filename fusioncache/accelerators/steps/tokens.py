"""What a program that computes a token does once or in place: masks of attention, and rows of a key-value cache.

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

Rows are written into a buffer where they belong. Thunder takes such a write apart into two copies of the whole buffer:

    t1 = torch.index_copy(cache, -2, position, rows)      a copy with the rows in it
    t2 = copy_(t1, cache, grad_enabled=False)             which is copied into the cache

Here its executor for torch claims it whole, as the operation that the model called:

    t2 = write_rows_(cache, -2, position, rows)

The same rows go into the same memory, and all else there stays, which has the bits of its copy. What comes before the
write and what behind it is as with Thunder, which has given the buffer a name for each: nothing comes between the two
copies. Only what computes no gradients has it so: Thunder asks for leaves that are written, and backward may want what
was there before.

In the final trace names and copies are left out that are there only because Thunder wrote otherwise:

    (t2, t3) = update_aliases((cache, t1))              the same tensors by other names, so that reads keep their order
    t4 = write_rows_(t2, -2, position, rows)
    t5 = copy_(t4, t2, grad_enabled=False)              what was written into, copied onto itself

Here the order is that of the statements, so the names are not needed. What ``write_rows_`` returns is what it wrote
into, and copying that onto itself does nothing: see ``_make_writer`` for why it is there. What leaves a program is the
same tensor by another name. Programs that save anything for backward stay as they are, since backward knows it by name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from fusioncache.accelerators.attention.executor import CudnnAttention
from fusioncache.accelerators.steps.views import Leaner, Swaps, is_torchs, skip_views
from fusioncache.thunder_adapter.api import (
    ImplInfo,
    OpTags,
    PrimIDs,
    TensorProxy,
    dtypes,
    get_compile_data,
    ltorch,
    prims,
    tracectx,
    tree_flatten,
    variableify,
)
from fusioncache.thunder_adapter.api import torch_executor as ex
from fusioncache.thunder_adapter.installation import Replacement, is_known_whole

MASKS = "masks prepared a second time"

_PREPARE, _ATTEND = "prepare_mask", "attend_with_mask"


def mask_replacements() -> tuple[Replacement, ...]:
    """Has Thunder know both operations, which a program that was stored by another process names; replaces nothing."""
    register_mask_operators()
    return ()


def register_mask_operators() -> tuple[Any, Any]:
    """Returns the operations that prepare a mask, and that attend with one that is prepared. A process has one of each.

    They are what Thunder's executor for torch runs.
    """
    from fusioncache.thunder_adapter.accelerator_api import sdpaex

    functions = {_PREPARE: (infer_mask, prepare_mask), _ATTEND: (sdpaex.sdpea_gradfwd.meta, attend_with_mask)}
    prepare, attend = (
        ex.opmap.get(name) or ex.register_operator(name, meta=meta, fn=function)
        for name, (meta, function) in functions.items()
    )
    return prepare, attend


def share_masks(trace: Any, symbols: Sequence[Any]) -> Leaner:
    """Has each mask prepared once in the bound symbols of a trace, and counts how often it is not any more."""
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
            prepare, attend = register_mask_operators()
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


WRITE_ROWS = "write_rows_"
"""What it is called in programs. Names that end so are known to write into what they are given."""


def row_replacements() -> Iterator[Replacement]:
    """Yields what has Thunder's executor for torch claim such a write, where a transform asks for it."""
    # Now, and not when a trace first has it: a program that was stored by another process names it.
    operation = register_row_operator()
    if is_known_whole("rows in place"):
        implementation = ImplInfo(checker=may_write, execution_transform=_make_writer(operation, ex.opmap["copy_"]))
        yield Replacement(ex.implmap, ltorch.index_copy_.id, lambda own: own or implementation)


def register_row_operator() -> Any:
    """Returns the operation that Thunder's executor for torch runs. A process has one."""
    tags = (OpTags.DONT_DCE, OpTags.IN_PLACE)
    return ex.opmap.get(WRITE_ROWS) or ex.register_operator(WRITE_ROWS, meta=infer, fn=write_rows_, tags=tags)


def _make_writer(operation: Any, copy: Any) -> Callable[..., Any]:
    """Returns what calls the operation in a trace.

    Where Thunder parts forward from backward it knows what is written by one name only, ``copy_``: a write whose result
    is not needed would be taken for a part of backward. So the tensor is copied onto itself, which torch sees and does
    nothing, and which is left out of final traces.
    """

    def write(a: Any, /, dim: int, index: Any, source: Any) -> Any:
        return copy(operation(a, dim, index, source), a, grad_enabled=False)

    return write


def may_write(a: Any, /, dim: int, index: Any, source: Any) -> bool:
    """Returns whether rows may be written in place in the program that Thunder compiles at this moment."""
    compiled = get_compile_data()
    if compiled is None or compiled.is_grad_enabled or not _is_asked_for(compiled) or not is_in_model_order(compiled):
        return False
    are_plain = all(type(each) is TensorProxy and not each.requires_grad for each in (a, index, source))
    return are_plain and a.dtype == source.dtype and not _is_done_otherwise(compiled.executors_list)


def _is_asked_for(compiled: Any) -> bool:
    return any(getattr(getattr(each, "lean", None), "writes_rows", False) for each in compiled.transforms)


def is_in_model_order(compiled: Any) -> bool:
    """True if all that is done to a program has reads and writes in the order in which the model has them.

    Otherwise Thunder's names for memory that is written say all that is known of the order, or not even these do.
    """
    options = compiled.compile_options
    return options.get("fusion_type") in (None, "consecutive") and not options.get("skip_inplace_alias_updates")


def _is_done_otherwise(executors: Any) -> bool:
    """Returns whether another executor than torch's would have made the copy with the rows in it."""
    parts = ltorch.index_copy.id, prims.index_copy.id
    return any(part in each.implmap for each in executors if each is not ex for part in parts)


def infer(a: Any, /, dim: int, index: Any, source: Any) -> Any:
    """Returns the buffer behind the write, as Thunder knows it before anything is computed."""
    return TensorProxy(like=a)


def write_rows_(a: torch.Tensor, /, dim: int, index: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """Writes rows into a tensor, and returns that.

    Args:
        a: the tensor, of any shape.
        dim: the dimension along which its rows are counted.
        index: where each row belongs, 64-bit integers of shape (rows,).
        source: the rows: of the tensor's dtype, and of its shape but for so many rows along the dimension.

    Raises:
        IndexError: if a row belongs to no place. Others may have been written by then, as with torch.
        RuntimeError: if torch refuses to write into the tensor, as where several of its elements lie in one place.
    """
    memory = a.untyped_storage().data_ptr()
    if source.untyped_storage().data_ptr() == memory or index.untyped_storage().data_ptr() == memory:
        return a.copy_(torch.index_copy(a, dim, index, source))
    try:
        return a.index_copy_(dim, index, source)
    except RuntimeError:
        if not a.is_inference():
            raise
    with torch.inference_mode():  # as regions do, which torch does not see write
        return a.index_copy_(dim, index, source)


NAMES, COPIES = "names for written memory", "copies of what rows are written into"

_RENAMING, _COPY, _WRITE = frozenset({"update_aliases"}), frozenset({"copy_"}), frozenset({WRITE_ROWS})


def simplify_writes(symbols: Sequence[Any]) -> Leaner:
    """Takes names, copies and views out of the bound symbols of a program that writes, and counts them."""
    compiled = get_compile_data()
    if _saves(symbols[-1]) or not (compiled is None or is_in_model_order(compiled)):
        return Leaner(tuple(symbols), {})
    swaps, taken, written = Swaps(), Counter[str](), dict[str, str]()
    kept = []
    for original in symbols:
        symbol = swaps.apply(original)
        if is_torchs(symbol, _RENAMING):
            taken[NAMES] += 1
            for new, old in zip(symbol.output, symbol.args[0], strict=True):
                swaps.add(new, old)
        elif is_torchs(symbol, _COPY) and written.get(symbol.args[0].name) == symbol.args[1].name:
            taken[COPIES] += 2
            swaps.add(symbol.output, symbol.args[0])
        else:
            kept.append(symbol)
        if is_torchs(symbol, _WRITE):
            written[symbol.output.name] = symbol.args[0].name
    views = skip_views(kept)
    return Leaner(views.symbols, {**taken, **views.taken})


def _saves(result: Any) -> bool:
    """Returns whether what a program returns is for a backward pass, or for one before it."""
    if result.sym.id is not PrimIDs.RETURN or not isinstance(result.args[0], dict):
        return True
    return bool(tree_flatten(result.args[1:])[0])
