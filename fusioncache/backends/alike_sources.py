"""One Python function in place of several that differ only in numbers.

The functions are those that Thunder writes of regions of one skeleton, each for its own sizes. Where their texts have
different numbers, these must be the values of one variable, function by function; everything else must be equal. So
nothing of what Thunder computes from a size is taken for constant: it differs, and is a variable's value or refused.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fusioncache.ir import Declined, Scope

Number = int | float

FUNCTION = "region"
"""What functions are called in their sources, and in the source that takes their place."""


@dataclass(frozen=True, slots=True)
class Source:
    """The text of a function, and what its names stand for."""

    text: str
    names: Mapping[str, Any]


def merge_sources(sources: Sequence[Source], values: Sequence[Sequence[Number]]) -> Source:
    """Returns the source of a function that takes the variables' values as well, behind its other arguments.

    Args:
        sources: of functions of the same name.
        values: for each source, the value of each variable. Those of no two variables are equal in all of them.

    Raises:
        Declined: if the sources differ in anything else.
    """
    first, *others = sources
    if any(not _have_equal_names(first.names, other.names) for other in others):
        raise Declined("Thunder makes other operations at other sizes", Scope.GENERAL)
    trees = [ast.parse(source.text) for source in sources]
    merger = _Merger(values)
    merged = merger.merge(trees)
    _find_function(merged).args.args += [ast.arg(name) for name in merger.variables]
    return Source(ast.unparse(ast.fix_missing_locations(merged)), first.names)


def move_variables(source: Source, variables: int, first: Sequence[int]) -> Source:
    """Returns the source of the same function with some of its variables in front of the others.

    Args:
        source: of a function that takes as many variables, behind its other arguments.
        variables: their number.
        first: which of them come first.
    """
    tree = ast.parse(source.text)
    parameters = _find_function(tree).args.args
    own = len(parameters) - variables
    order = [*first, *(variable for variable in range(variables) if variable not in first)]
    parameters[own:] = [parameters[own + variable] for variable in order]
    return Source(ast.unparse(tree), source.names)


def read_shapes(source: Source, places: Sequence[tuple[int, int] | None]) -> Source:
    """Returns the source of a function that takes tensors only, where another one takes the variables' values as well.

    Args:
        source: of the other one, as ``merge_sources`` returns it.
        places: for each variable, the position of a tensor and the dimension whose size it is. One without a place is
            the size of a further tensor, of two dimensions.
    """
    tree = ast.parse(source.text)
    function = _find_function(tree)
    parameters = [parameter.arg for parameter in function.args.args]
    own = len(parameters) - len(places)
    tensors, variables = parameters[:own], parameters[own:]
    read, further = [], []
    for variable, place in zip(variables, places, strict=True):
        if place is None:
            further.append(f"{variable}_tensor")
            read.append(f"{variable} = {further[-1]}.shape[0]")
        else:
            read.append(f"{variable} = {tensors[place[0]]}.shape[{place[1]}]")
    function.args.args = [ast.arg(name) for name in (*tensors, *further)]
    function.body = [*ast.parse("\n".join(read)).body, *function.body]
    return Source(ast.unparse(ast.fix_missing_locations(tree)), source.names)


def _find_function(tree: ast.Module) -> ast.FunctionDef:
    (function,) = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    return function


def define_source(source: Source) -> Any:
    """Makes the function of a source, as Thunder makes those of traces: torch.compile wants to know where code is."""
    from fusioncache.thunder_adapter.api import build_callable

    return build_callable(FUNCTION, python_str=source.text, file_name=f"thunder.{FUNCTION}", ctx=dict(source.names))


def _have_equal_names(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return one.keys() == other.keys() and all(
        value is other[name] or (type(value) is type(other[name]) and value == other[name])
        for name, value in one.items()
    )


class _Merger:
    """Merges the syntax trees of texts, node by node."""

    def __init__(self, values: Sequence[Sequence[Number]]):
        columns = list(zip(*values, strict=True))
        self.variables = [f"variable{number}" for number in range(len(columns))]
        self._variable = {_typed(column): name for column, name in zip(columns, self.variables, strict=True)}

    def merge(self, nodes: Sequence[Any]) -> Any:
        first = nodes[0]
        if isinstance(first, ast.expr) and all(_number(node) is not None for node in nodes):
            return self._merge_numbers(nodes)
        if any(type(node) is not type(first) for node in nodes):
            raise Declined("Thunder makes another definition at other sizes", Scope.GENERAL)
        if isinstance(first, ast.AST):
            fields = {name: self.merge([getattr(node, name, None) for node in nodes]) for name in first._fields}
            return type(first)(**fields)
        if isinstance(first, list):
            if len({len(node) for node in nodes}) != 1:
                raise Declined("Thunder makes a longer definition at some sizes", Scope.GENERAL)
            return [self.merge(items) for items in zip(*nodes, strict=True)]
        if any(node != first for node in nodes):
            raise Declined("Thunder makes another definition at other sizes", Scope.GENERAL)
        return first

    def _merge_numbers(self, nodes: Sequence[ast.expr]) -> ast.expr:
        column = _typed([_number(node) for node in nodes])
        if len(set(column)) == 1:
            return nodes[0]
        name = self._variable.get(column)
        if name is None:
            raise Declined("Thunder computes with a size", Scope.GENERAL)
        return ast.Name(name, ast.Load())


def _typed(column: Sequence[Any]) -> tuple[tuple[type, Any], ...]:
    return tuple((type(value), value) for value in column)


def _number(node: Any) -> Number | None:
    """Returns the number that an expression is, if it is one."""
    match node:
        case ast.Constant(int() | float() as value) if not isinstance(value, bool):
            return value
        case ast.UnaryOp(ast.USub(), ast.Constant(int() | float() as value)) if not isinstance(value, bool):
            return -value
    return None
