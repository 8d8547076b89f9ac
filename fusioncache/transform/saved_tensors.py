"""What a forward trace saves for its backward trace, and how both are given something else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from typing import Any

_OF_TENSORS = "C0"
"""What Thunder calls the collection of saved tensors in a backward trace."""


def find_saved(trace: Any) -> tuple[Any, ...]:
    """Returns what a forward trace saves for its backward trace: nothing where there is none, as without gradients."""
    from fusioncache.thunder_adapter.api import TraceTag

    if TraceTag.AUGMENTED_FORWARD not in trace.tags:
        return ()
    _, (tensors, _) = trace.bound_symbols[-1].args
    return tuple(tensors)


def save_instead(returning: Any, left: Sequence[Any]) -> Any:
    """Returns the bound symbol with which a forward trace ends, saving these values instead.

    Args:
        returning: the one with which it ends now.
        left: proxies of what is saved.
    """
    return returning.from_bsym(args=(returning.args[0], (tuple(left), returning.args[1][1])))


def take_instead(trace: Any, left: Sequence[Any]) -> tuple[Any, ...]:
    """Returns the arguments of a backward trace that takes these values instead."""
    return ([list(left), *trace.args[0][1:]], *trace.args[1:])


def unpack_instead(symbols: Sequence[Any], saved: Sequence[str], left: Sequence[Any]) -> Iterator[Any]:
    """Yields the bound symbols of a backward trace that unpacks other values.

    Args:
        symbols: those of the backward trace.
        saved: the names of what it unpacks now.
        left: proxies of what it is to unpack.

    Raises:
        RuntimeError: if this is not the backward trace of that forward trace. Then it cannot run as it is either.
    """
    unpacking = next((symbol for symbol in symbols if unpacks_saved(symbol)), None)
    if unpacking is None or [proxy.name for proxy in unpacking.output] != list(saved):
        raise RuntimeError("fusioncache: the backward trace does not take what its forward trace saves")
    old, taken = unpacking.args[0], list(left)
    collection = copy(old)
    collection.coll = taken
    for symbol in symbols:
        if symbol is unpacking:
            yield symbol.from_bsym(args=(collection, len(taken)), output=taken)
        elif any(each is old for each in symbol.flat_proxy_outs):
            # Thunder's CUDAGraphTransform asks for the very collection that was unpacked before.
            yield symbol.from_bsym(output=[collection if each is old else each for each in symbol.output])
        else:
            yield symbol


def unpacks_saved(symbol: Any) -> bool:
    """Tells whether a bound symbol of a backward trace unpacks the saved tensors."""
    from fusioncache.thunder_adapter.api import PrimIDs

    return bool(symbol.sym.id is PrimIDs.UNPACK_SEQUENCE and symbol.args[0].name == _OF_TENSORS)
