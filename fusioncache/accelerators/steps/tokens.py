"""Writes rows of key-value caches in place, in programs that compute one token.

Rows are written into a buffer in place. Thunder decomposes such a write into two copies of the whole buffer:

    t1 = torch.index_copy(cache, -2, position, rows)      a copy with the rows in it
    t2 = copy_(t1, cache, grad_enabled=False)             which is copied into the cache

Here Thunder's executor for torch claims the write as a whole, as the operation that the model called:

    t2 = write_rows_(cache, -2, position, rows)

The same rows go into the same memory. All other elements stay, with the bits of their copy. The order of uses before
and after the write is Thunder's, which names the buffer differently in each: nothing comes between the two copies.
This is done only in programs that compute no gradients: Thunder checks leaves that are written, and backward may need
the old contents.

In the final trace, names and copies are removed that are there only because of how Thunder represents writes:

    (t2, t3) = update_aliases((cache, t1))              the same tensors by other names, so that reads keep their order
    t4 = write_rows_(t2, -2, position, rows)
    t5 = copy_(t4, t2, grad_enabled=False)              what was written into, copied onto itself

Here statements keep their order, so the names are not needed. ``write_rows_`` returns the tensor that it wrote into,
and copying that onto itself does nothing: see ``_make_writer`` for its reason. The program returns the same tensor by
another name. Programs that save anything for backward are not changed, since backward refers to it by name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from fusioncache.accelerators.steps.views import SimplifiedProgram, Substitution, is_torch_op, simplify_views
from fusioncache.thunder_adapter.api import (
    ImplInfo,
    OpTags,
    PrimIDs,
    TensorProxy,
    get_compile_data,
    ltorch,
    prims,
    tree_flatten,
)
from fusioncache.thunder_adapter.api import torch_executor as ex
from fusioncache.thunder_adapter.installation import Replacement, is_known_whole
from fusioncache.transform.rewrite import register_once

WRITE_ROWS = "write_rows_"
"""The operation's name in programs. The underscore at the end marks operations that write into an argument."""


def row_replacements() -> Iterator[Replacement]:
    """Yields the replacement by which Thunder's executor for torch claims such a write, if a transform asks for it."""
    # Registered now, not when a trace first uses it: a program stored by another process may name it.
    operation = register_once(WRITE_ROWS, infer, write_rows_, tags=(OpTags.DONT_DCE, OpTags.IN_PLACE))
    if is_known_whole("rows in place"):
        implementation = ImplInfo(checker=may_write, execution_transform=_make_writer(operation, ex.opmap["copy_"]))
        yield Replacement(ex.implmap, ltorch.index_copy_.id, lambda own: own or implementation)


def _make_writer(operation: Any, copy: Any) -> Callable[..., Any]:
    """Returns a function that calls the operation in a trace.

    When Thunder splits forward from backward, it recognizes a write by one name only, ``copy_``: another write whose
    result is unused would be taken for a part of backward. So the tensor is copied onto itself. Torch notices that and
    does nothing, and final traces leave it out.
    """

    def write(a: Any, /, dim: int, index: Any, source: Any) -> Any:
        return copy(operation(a, dim, index, source), a, grad_enabled=False)

    return write


def may_write(a: Any, /, dim: int, index: Any, source: Any) -> bool:
    """True if rows may be written in place in the program that Thunder is compiling."""
    compiled = get_compile_data()
    if compiled is None or compiled.is_grad_enabled or not _is_asked_for(compiled) or not is_in_model_order(compiled):
        return False
    are_plain = all(type(each) is TensorProxy and not each.requires_grad for each in (a, index, source))
    return are_plain and a.dtype == source.dtype and not _is_done_otherwise(compiled.executors_list)


def _is_asked_for(compiled: Any) -> bool:
    return any(getattr(each, "lean", None) is not None for each in compiled.transforms)


def is_in_model_order(compiled: Any) -> bool:
    """True if all passes on a program keep reads and writes in the order of the model.

    Otherwise the order is recorded only in Thunder's names for written memory, or not at all.
    """
    options = compiled.compile_options
    return options.get("fusion_type") in (None, "consecutive") and not options.get("skip_inplace_alias_updates")


def _is_done_otherwise(executors: Any) -> bool:
    """True if another executor than torch's would have made the copy with the rows in it."""
    parts = ltorch.index_copy.id, prims.index_copy.id
    return any(part in each.implmap for each in executors if each is not ex for part in parts)


def infer(a: Any, /, dim: int, index: Any, source: Any) -> Any:
    """Returns the proxy of the buffer after the write: the meta function of ``write_rows_``."""
    return TensorProxy(like=a)


def write_rows_(a: torch.Tensor, /, dim: int, index: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """Writes rows into a tensor, and returns the tensor.

    Args:
        a: the tensor, of any shape.
        dim: the dimension along which its rows are counted.
        index: the position of each row, 64-bit integers of shape (rows,).
        source: the rows: of the tensor's dtype, and of its shape except for their number along the dimension.

    Raises:
        IndexError: if a position is out of range. Other rows may have been written by then, as with torch.
        RuntimeError: if torch refuses to write into the tensor, for example if its elements overlap in memory.
    """
    memory = a.untyped_storage().data_ptr()
    if source.untyped_storage().data_ptr() == memory or index.untyped_storage().data_ptr() == memory:
        return a.copy_(torch.index_copy(a, dim, index, source))
    try:
        return a.index_copy_(dim, index, source)
    except RuntimeError:
        if not a.is_inference():
            raise
    with torch.inference_mode():  # as regions do, whose writes torch does not check
        return a.index_copy_(dim, index, source)


NAMES, COPIES = "names for written memory", "copies of what rows are written into"

_RENAMING, _COPY, _WRITE = frozenset({"update_aliases"}), frozenset({"copy_"}), frozenset({WRITE_ROWS})


def simplify_writes(symbols: Sequence[Any]) -> SimplifiedProgram:
    """Removes names, copies and views from the bound symbols of a program that writes, and counts them."""
    compiled = get_compile_data()
    if _saves(symbols[-1]) or not (compiled is None or is_in_model_order(compiled)):
        return SimplifiedProgram(tuple(symbols), {})
    substitution, taken, written = Substitution(), Counter[str](), dict[str, str]()
    kept = []
    for original in symbols:
        symbol = substitution.apply(original)
        if is_torch_op(symbol, _RENAMING):
            taken[NAMES] += 1
            for new, old in zip(symbol.output, symbol.args[0], strict=True):
                substitution.add(new, old)
        elif is_torch_op(symbol, _COPY) and written.get(symbol.args[0].name) == symbol.args[1].name:
            taken[COPIES] += 2
            substitution.add(symbol.output, symbol.args[0])
        else:
            kept.append(symbol)
        if is_torch_op(symbol, _WRITE):
            written[symbol.output.name] = symbol.args[0].name
    views = simplify_views(kept, writes=True)
    return SimplifiedProgram(views.symbols, {**taken, **views.taken})


def _saves(result: Any) -> bool:
    """True if a program saves values for a backward pass, or is a backward program itself."""
    if result.sym.id is not PrimIDs.RETURN or not isinstance(result.args[0], dict):
        return True
    return bool(tree_flatten(result.args[1:])[0])
