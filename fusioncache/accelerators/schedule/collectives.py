"""Reads Thunder's traces with collectives as calls that can be scheduled."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from math import prod
from typing import Any

from fusioncache.accelerators.attention import NAME as ATTENTION
from fusioncache.accelerators.schedule.calls import COLLECTIVES, CallGraph, CallNode, Kind
from fusioncache.backends.bound_symbols import argument_names, leaves_of, may_write
from fusioncache.ir.errors import Declined, Scope

TOGETHER: Mapping[str, str] = {
    "torch_all_gather_prim_impl": "gather_together",
    "torch_reduce_scatter_prim_impl": "reduce_scatter_together",
    "torch_all_reduce_prim_impl": "all_reduce_together",
    "all_reduce_in_place": "all_reduce_together",
}
"""For each collective the operation that starts several of them: see ``collective_passes.py``."""
_KINDS: Mapping[str, Kind] = {
    "torch_all_gather_prim_impl": Kind.GATHER,
    "torch_reduce_scatter_prim_impl": Kind.REDUCE,
    "torch_all_reduce_prim_impl": Kind.REDUCE,
    "all_reduce_in_place": Kind.REDUCE,
    "torch_wait_prim_impl": Kind.WAIT,
    "landed": Kind.WAIT,
    "gather_together": Kind.GATHER,
    "reduce_scatter_together": Kind.REDUCE,
    "all_reduce_together": Kind.REDUCE,
}
_LIBRARIES = frozenset({"gloo", "nccl"})
"""Backends that can start several collectives with one call."""
_PREFIX, _SUFFIX = "torch_", "_prim_impl"
_IN_PLACE = "_in_place"
_OTHERS = frozenset(
    {"broadcast", "pack", "unpack", "unpack_for_fsdp", "update_bucket_view", "pack_for_fsdp", "stash_grad_for_fsdp"}
)
"""Thunder's other operations for several ranks: synchronous, or with their own memory that is written in place."""
_VIEWS = frozenset({"torch_slice_prim_impl", "torch_prims_reshape_impl", "shallow_copy"})
"""Thunder's implementations that only change a shape but have no tag for it. A padded parameter is sliced, and one with
copies on other ranks is a shallow copy, which is the tensor itself."""
_EXECUTORS = frozenset({"torch", "python", "sdpa", "cudnn", ATTENTION})
"""Executors whose operations declare all their writes."""


def kind_of(bound_symbol: Any) -> Kind | None:
    """Returns the kind of a bound symbol that is a collective or a wait; None for any other."""
    return _KINDS.get(str(bound_symbol.sym.id))


def has_collectives(symbols: Iterable[Any]) -> bool:
    """True if there is a collective among bound symbols that may be moved."""
    return any(map(exchanges, symbols))


def exchanges(symbol: Any) -> bool:
    """True if a bound symbol is a collective, which all ranks have to run in the same order."""
    return kind_of(symbol) in COLLECTIVES


def read_message(bound_symbol: Any) -> str:
    """Returns the properties on which the ranks of a collective, or of coalesced ones, must agree, as text."""
    if str(bound_symbol.sym.id) in TOGETHER.values():
        return " + ".join(map(read_message, bound_symbol.subsymbols))
    given = arguments_of(bound_symbol)
    tensor, operation = given["a"], given.get("op")
    dtype, shape = str(tensor.dtype).rpartition(".")[2], _shape_of(tensor)
    # Ranks need not agree on whether a sum is made in place.
    name = bound_symbol.sym.name.removeprefix(_PREFIX).removesuffix(_SUFFIX).removesuffix(_IN_PLACE)
    words = [name, dtype, str(shape)]
    if operation is not None:
        words.insert(1, operation.name)
    if given.get("dim") is not None:
        words.append(f"along {given['dim']}")
    return " ".join(words)


def group_of(bound_symbol: Any) -> Any:
    """Returns the process group of a collective."""
    while str(bound_symbol.sym.id) in TOGETHER.values():
        bound_symbol = bound_symbol.subsymbols[0]
    return arguments_of(bound_symbol)["group"]


def arguments_of(bound_symbol: Any) -> Mapping[str, Any]:
    """Returns the arguments of a collective, by name."""
    arguments = inspect.signature(bound_symbol.sym.meta).bind(*bound_symbol.args, **bound_symbol.kwargs).arguments
    return dict(arguments)


def read_calls(symbols: Iterable[Any]) -> CallGraph:
    """Returns bound symbols as calls.

    Raises:
        Declined: if the effect of one of them is not known, or it writes in place.
    """
    sizes: dict[str, int] = {}
    return CallGraph(tuple(_read_all(symbols, sizes)), sizes)


def _read_all(symbols: Iterable[Any], sizes: dict[str, int]) -> Iterator[CallNode]:
    known: set[str] = set()
    for symbol in symbols:
        inputs = tuple(argument_names(symbol))
        known.update(inputs)
        # Some symbols list arguments among their results.
        given = [proxy for proxy in symbol.flat_proxy_outs if proxy.name not in known]
        known.update(proxy.name for proxy in given)
        sizes.update((proxy.name, _bytes_of(proxy)) for proxy in (*symbol.flat_proxy_args, *given))
        outputs = tuple(dict.fromkeys(proxy.name for proxy in given))
        yield _read_call(symbol, inputs, outputs)


def _read_call(symbol: Any, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> CallNode:
    kind, name = kind_of(symbol), str(symbol.sym.name)
    if kind in COLLECTIVES:
        _check_collective(symbol)
        message = read_message(symbol)
        return CallNode(kind, name, inputs, outputs, channel=_channel_of(symbol, message), message=message)
    if kind is Kind.WAIT:
        return CallNode(kind, name, inputs, outputs)
    check_effects(symbol)
    fixed = not all(_is_pure(leaf) for leaf in leaves_of(symbol))
    return CallNode(Kind.VIEW if is_view(symbol) else Kind.COMPUTE, name, inputs, outputs, fixed=fixed)


def _channel_of(symbol: Any, message: str) -> str:
    """Returns the channel of a collective, the same for all that may be coalesced; empty if it must run alone.

    A sum of two numbers is the same in any order. A sum of three is not, and a library may add up coalesced tensors in
    another order than single ones.
    """
    given = arguments_of(symbol)
    if kind_of(symbol) is Kind.REDUCE and given["group"].size() > 2:
        return ""
    if given.get("dim") is not None or not _LIBRARIES.issuperset(_libraries_of(given["group"])):
        return ""
    return f"{message.partition(' (')[0]} of {given['group'].group_name}"


def _libraries_of(group: Any) -> Iterable[str]:
    from torch.distributed import get_backend_config

    return (each.rpartition(":")[2] for each in get_backend_config(group).split(","))


def _check_collective(symbol: Any) -> None:
    if str(symbol.sym.id) not in TOGETHER:
        raise Declined("collectives are coalesced already", Scope.REGION)
    given = arguments_of(symbol)
    if given["do_async"] is not True:
        raise Declined("a synchronous collective", Scope.REGION)
    if given.get("skip_clone"):
        raise Declined("a collective that writes into its input", Scope.REGION)


def is_view(symbol: Any) -> bool:
    """True if a bound symbol only changes a tensor's shape: its result may share the memory."""
    return not symbol.sym.is_fusion and all(
        str(leaf.sym.id) in _VIEWS or _has_tags(leaf, "SHAPE_OP") for leaf in leaves_of(symbol)
    )


def check_effects(symbol: Any) -> None:
    """Raises ``Declined`` if a trace with this bound symbol must keep its order.

    Raises:
        Declined: if it writes in place or enters a context, or its effects are not known.
    """
    name = str(symbol.sym.id)
    if name.removeprefix(_PREFIX).removesuffix(_SUFFIX) in _OTHERS and name.endswith(_SUFFIX):
        raise Declined(f"a collective of a kind that is not moved: {name}", Scope.REGION)
    if may_write(symbol):
        raise Declined("a trace with collectives writes in place", Scope.REGION)
    if _has_tags(symbol, "CTX_MANAGER_ENTER_EXIT_OP"):
        raise Declined("a trace with collectives enters a context", Scope.REGION)
    executor = symbol.sym.executor
    if executor is not None and not symbol.sym.is_fusion and str(executor.name) not in _EXECUTORS:
        raise Declined(
            f"a trace with collectives has an unknown operation of the executor {executor.name}", Scope.REGION
        )


def _is_pure(leaf: Any) -> bool:
    """True if an operation is one of Thunder's primitives and has no effect besides its results."""
    if str(leaf.sym.id) in _VIEWS:
        return True
    arithmetic = leaf.sym.is_prim and leaf.sym.executor is None and bool(leaf.flat_proxy_outs)
    return arithmetic and not _has_tags(leaf, "RANDOM_OP", "DONT_DCE", "IN_PLACE") and not _unpacks(leaf)


def _unpacks(leaf: Any) -> bool:
    return str(leaf.sym.name).startswith(("unpack", "check", "return", "python_return", "clear"))


def _has_tags(symbol: Any, *names: str) -> bool:
    return any(tag.name in names for tag in symbol.sym.tags or ())


def _bytes_of(proxy: Any) -> int:
    from fusioncache.thunder_adapter.api import FutureTensorProxy, TensorProxy

    if not isinstance(proxy, TensorProxy | FutureTensorProxy):
        return 0
    return prod(_shape_of(proxy)) * int(proxy.dtype.bytes)


def _shape_of(proxy: Any) -> tuple[int, ...]:
    """Returns a tensor's shape in numbers. The value of a symbolic integer is read without being recorded as used."""
    return tuple(int(getattr(size, "value", size)) for size in proxy._shape)
