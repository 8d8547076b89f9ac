"""Replaces operations in Dynamo's graphs that Thunder lacks, by operations that compute the same bits.

Thunder's splitter leaves operations without a rule to TorchInductor. Each cuts a graph into parts that are traced,
compiled, stored and called one by one. If a graph stays whole, sums of gradients are Thunder's and not TorchInductor's:
their last bits may be other ones. Indexing and views are replaced that nvFuser would compile again at each length.

An operation stays as it is where the replacement might differ: with other arguments, dtypes, or types of tensors, or
if something writes into what a layer takes or returns.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true, sym_eq

from fusioncache.accelerators.splitting.operations import pick, project, replacements
from fusioncache.process.warning import log_errors
from fusioncache.thunder_adapter.installation import install_more
from fusioncache.transform.passes import Accelerator

type _Replace = Callable[[Node], None]


class Splitting(Accelerator):
    """Replaces operations in each graph before Thunder's splitter cuts it."""

    name: ClassVar[str] = "splitting"

    def __init__(self) -> None:
        install_more("splitting", replacements)

    @contextmanager
    def around_splitting(self, graph: GraphModule) -> Iterator[None]:
        """Replaces the operations of a graph, and of graphs that it calls, such as checkpointed layers.

        Thunder does not interpret the graphs that these call in turn, and so would not find the new operations.
        """
        for module in (graph, *graph.children()):
            if isinstance(module, GraphModule):
                replace_operations(module)
        yield


def replace_operations(module: GraphModule) -> None:
    """Replaces the operations of a graph that Thunder lacks. Never raises: what cannot be replaced stays."""
    for node in list(module.graph.nodes):
        target = getattr(torch.Tensor, node.target, None) if node.op == "call_method" else node.target
        replace = _REPLACEMENTS.get(target) if node.op in ("call_function", "call_method") else None
        if replace is not None:
            with log_errors(f"{node.target} stays an operation that Thunder lacks"):
                replace(node)
    module.recompile()


def _value(node: Node) -> Any:
    """Returns the fake tensor that Dynamo computed for a node."""
    return node.meta["example_value"]


def _are_plain(*nodes: Any) -> bool:
    """True if all are plain tensors of dtypes that Thunder has: of no subclass, outside ``torch.func``'s transforms."""
    values = [node.meta.get("example_value") if isinstance(node, Node) else None for node in nodes]
    return all(isinstance(value, FakeTensor) and value.dtype not in _OTHER_DTYPES for value in values)


def _insert(before: Node, function: Callable[..., Any], *args: Any, **options: Any) -> Node:
    """Returns a new call, inserted before a node."""
    values, named = torch.fx.node.map_arg((args, options), _value)
    with before.graph.inserting_before(before):
        made = before.graph.call_function(function, args, options)
    made.meta = {**before.meta, "example_value": function(*values, **named)}
    return made


def _exchange(node: Node, function: Callable[..., Any], *args: Any, **options: Any) -> Node:
    """Replaces a node by a call with an equal value, and returns the call."""
    with node.graph.inserting_before(node):
        made = node.graph.call_function(function, args, options)
    made.meta = node.meta
    node.replace_all_uses_with(made)
    node.graph.erase_node(node)
    return made


def _replace_addmm(node: Node) -> None:
    """Replaces a product of matrices plus a vector by an operation that Thunder has been given."""
    if node.kwargs or not _are_plain(node, *node.args):
        return
    bias, rows, weight = node.args
    matrix = _value(weight)
    if not matrix.is_floating_point() or not _has_shape(bias, matrix.shape[1:]) or _is_written(node, rows):
        return
    if _is_row_major(rows) and _is_row_major(weight):  # torch's gradients of others are column-major
        _take_whole(_exchange(node, project, rows, weight, bias))


def _take_whole(product: Node) -> None:
    """Gives a layer the tensor of whose rows its matrix is a view, if a view gives the result that shape again.

    nvFuser would compile each such view again at each length.
    """
    rows, weight, bias = product.args
    whole, users = _find_whole(rows), list(product.users)
    if not whole or len(users) != 1 or not _is_view_of(product, users[0]):
        return
    (view,) = users
    if _has_shape(view, (*_value(whole).shape[:-1], _value(product).shape[-1])):
        product.args, product.meta = (whole, weight, bias), view.meta
        view.replace_all_uses_with(product)
        product.graph.erase_node(view)
        if not rows.users:
            product.graph.erase_node(rows)


def _find_whole(matrix: Node) -> Node | None:
    """Returns the tensor with three dimensions of which a matrix is a view with the same rows, else None."""
    whole = matrix.args[0] if matrix.args else None
    if not isinstance(whole, Node) or not _is_view_of(whole, matrix) or _value(whole).ndim != 3:
        return None
    if any(node.target is torch._C._set_grad_enabled for node in matrix.graph.nodes):  # the view may have no gradient
        return None
    return whole if _has_shape(matrix, (_value(matrix).shape[0], _value(whole).shape[-1])) else None


def _has_shape(node: Node, shape: Sequence[Any]) -> bool:
    """True if the value of a node has a shape for all values of its symbolic sizes."""
    return statically_known_true(sym_eq(tuple(_value(node).shape), tuple(shape)))


def _is_row_major(node: Node) -> bool:
    """True if a matrix is row-major, and not column-major as well."""
    row, column = _value(node).stride()
    return statically_known_true(column == 1) and statically_known_true(row != 1)


def _is_written(*nodes: Node) -> bool:
    """True if an operation of the graph writes into one of these tensors, or into a view of it."""
    storages = {_value(node).untyped_storage()._cdata for node in nodes}
    written = (each for other in nodes[0].graph.nodes for each in _list_written(other))
    return any(_are_plain(each) and _value(each).untyped_storage()._cdata in storages for each in written)


def _list_written(node: Node) -> list[Node]:
    """Returns the tensors into which an operation writes."""
    name = str(getattr(node.target, "__name__", node.target)).partition(".")[0]
    arguments: list[Node] = []
    if (name.endswith("_") and not name.endswith("__")) or node.target in _WRITES or _is_in_place(node):
        torch.fx.node.map_arg(node.args[:1], arguments.append)
    torch.fx.node.map_arg(node.kwargs.get("out"), arguments.append)
    return arguments


def _is_in_place(node: Node) -> bool:
    """True if an operation has the argument ``inplace=True``."""
    if node.op != "call_function" or node.kwargs.get("inplace"):
        return bool(node.kwargs.get("inplace"))
    with suppress(TypeError, ValueError):  # a builtin has no signature
        return bool(inspect.signature(node.target).bind(*node.args, **node.kwargs).arguments.get("inplace"))
    return False


def _is_view_of(whole: Node, node: Node) -> bool:
    return node.op == "call_method" and node.target == "view" and node.args[0] is whole and _are_plain(node, whole)


def _replace_new(fill: Callable[..., Any]) -> _Replace:
    """Returns a replacement of a method that makes a tensor like another one, by a function that takes its dtype."""

    def replace(node: Node) -> None:
        if _are_plain(node, node.args[0]) and not node.kwargs.keys() - {"dtype", "device"}:
            value = _value(node)
            _exchange(node, fill, *node.args[1:], dtype=value.dtype, device=value.device)

    return replace


def _replace_cast(dtype: torch.dtype) -> _Replace:
    """Returns a replacement of a method that converts a tensor by the method that takes a dtype."""

    def replace(node: Node) -> None:
        if node.op != "call_method" or not _are_plain(node, *node.args) or node.kwargs:
            return
        (source,) = node.args
        if _value(source).dtype != dtype:
            node.target, node.args = "to", (source, dtype)
        else:  # it is its own result
            node.replace_all_uses_with(source)
            node.graph.erase_node(node)

    return replace


def _replace_min(node: Node) -> None:
    """Replaces the smaller of two integers; of other numbers Thunder might have another gradient."""
    if len(node.args) == 2 and not node.kwargs and _are_plain(node, *node.args) and _is_integer(_value(node)):
        _exchange(node, torch.minimum, *node.args)


def _replace_diff(node: Node) -> None:
    """Replaces the differences of neighbors along the last dimension, of integers."""
    whole, *others = node.args or (None,)
    options = dict(node.kwargs)
    first, last = options.pop("prepend", None), options.pop("append", None)
    parts = [each for each in (first, whole, last) if each is not None]
    if others or options not in ({}, {"dim": -1}) or not _are_plain(node, *parts) or not _is_integer(_value(node)):
        return
    joined = _insert(node, torch.cat, parts, dim=-1) if len(parts) > 1 else whole
    later, earlier = (_insert(node, operator.getitem, joined, (..., each)) for each in (_LATER, _EARLIER))
    _exchange(node, operator.sub, later, earlier)


def _replace_pick(node: Node) -> None:
    """Replaces indexing of integers or booleans, which have no gradient, by one tensor for each dimension."""
    values, indices = node.args
    if not isinstance(indices, tuple) or len(indices) < 2 or not _are_plain(node, values, *indices):
        return
    have_no_gradient = _value(values).dtype == torch.bool or _is_integer(_value(values))
    are_positions = all(_is_integer(_value(each)) for each in indices) and len(indices) == _value(values).ndim
    is_copy = _value(node).ndim > 0 and not _is_written(node)  # a single element is a view
    if have_no_gradient and are_positions and is_copy:
        _exchange(node, pick, values, *indices)


def _is_integer(value: torch.Tensor) -> bool:
    return not value.is_floating_point() and not value.is_complex() and value.dtype != torch.bool


def _replace_size(node: Node) -> None:
    """Replaces a shape by a tuple where it is an argument of a method, such as ``view``."""
    (sizes,) = node.args
    for user in list(node.users):
        if user.op == "call_method" and user.args[0] is not node:
            user.args = torch.fx.node.map_arg(user.args, lambda each: tuple(sizes) if each is node else each)
    if not node.users:
        node.graph.erase_node(node)


_IN_PLACE_OPERATORS = "setitem iadd isub imul itruediv ifloordiv imod ipow iand ior ixor"
_WRITES = frozenset(getattr(operator, name) for name in _IN_PLACE_OPERATORS.split())
"""Functions that write into their first argument, besides those whose names end in an underscore."""
_OTHER_DTYPES = (torch.uint64, torch.float8_e8m0fnu, torch.float4_e2m1fn_x2)
"""Dtypes of torch that Thunder cannot take."""
_LATER, _EARLIER = slice(1, None), slice(None, -1)
_CASTS = ("bfloat16", "bool", "half", "int")
"""Dtypes, and the names of the methods that convert to them."""
_REPLACEMENTS: Mapping[Any, _Replace] = MappingProxyType(
    {
        **{getattr(torch.Tensor, name): _replace_cast(getattr(torch, name)) for name in _CASTS},
        torch.addmm: _replace_addmm,
        torch.Tensor.new_ones: _replace_new(torch.ones),
        torch.Tensor.new_zeros: _replace_new(torch.zeros),
        torch.diff: _replace_diff,
        torch.min: _replace_min,
        operator.getitem: _replace_pick,
        torch.Size: _replace_size,
    }
)
