"""The last product of a program, computed behind the graph that the rest of the program is captured in.

What a graph computed is copied when it leaves, as the next replay overwrites it. Most of that is often one product that
nothing else is computed with, such as a language model's logits. It is taken out of the program's text:

    t2 = region(t1)                                   t2 = region(t1)
    t3 = torch.nn.functional.linear(t2, w, None)
    del t2
    return (t3,)                                      return ((behind_the_graph,), (t2, w, None))

The operands stay where the graph leaves them. The product follows each replay, on the same stream and before anything
else is replayed, and allocates what it makes.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType, FunctionType, MappingProxyType
from typing import Any

_NAME = "behind_the_graph"
_PRODUCTS = frozenset({"torch.nn.functional.linear", "torch.mm", "torch.matmul"})
"""What allocates its result, and does nothing else."""
_DECORATORS = ("torch.no_grad()", "no_autocast")
"""What Thunder puts around a program that it compiles. Here it must be this and nothing else."""


class _Behind:
    """Stands among the results of a program for what is computed behind its graph."""


BEHIND = _Behind()


@dataclass(frozen=True, slots=True)
class LastProduct:
    """A program in two parts.

    Attributes:
        head: takes what the program takes. Returns what that returns, with ``BEHIND`` wherever the product would be,
            and the product's operands.
        product: one of torch's functions.
    """

    head: Callable[..., tuple[Any, Sequence[Any]]]
    product: Callable[..., Any]

    def compute(self, operands: Sequence[Any]) -> Any:
        """Computes the product, without autocast like the rest of the program. Gradients are off."""
        import torch

        if not torch.is_autocast_enabled(operands[0].device.type):
            return self.product(*operands)
        with torch.autocast(operands[0].device.type, enabled=False):
            return self.product(*operands)


def split_last_product(function: FunctionType, text: str, *, has_backward: bool) -> LastProduct | None:
    """Splits a program that writes into nothing it is given; returns None if there is nothing to split off.

    Args:
        function: the program, without what Thunder puts around it.
        text: its source, with that. Where it is not the source of this very function, nothing is split off.
        has_backward: whether it returns results and what it saves for backward.
    """
    module = ast.parse(text)
    program = next((each for each in module.body if isinstance(each, ast.FunctionDef)), None)
    if program is None or not _is_source(text, program, function):
        return None
    found = _find_product(program, has_backward)
    if found is None:
        return None
    place, name, call = found
    program.body = _take_out(program.body, place, name, call)
    known: dict[str, Any] = {**function.__globals__, _NAME: BEHIND}
    exec(compile(ast.fix_missing_locations(module), f"{function.__code__.co_filename} captured", "exec"), known)
    return LastProduct(known[program.name], _evaluate(ast.unparse(call.func)))


def _is_source(text: str, program: ast.FunctionDef, function: FunctionType) -> bool:
    """Tells whether what is compiled of a text is the code of a function, and is called as Thunder calls it."""
    if [ast.unparse(each) for each in program.decorator_list] != [*_DECORATORS] or function.__closure__:
        return False
    codes = (each for each in compile(text, "", "exec").co_consts if isinstance(each, CodeType))
    own = function.__code__
    return any(
        (code.co_code, code.co_consts, code.co_names, code.co_varnames)
        == (own.co_code, own.co_consts, own.co_names, own.co_varnames)
        for code in codes
    )


def _find_product(program: ast.FunctionDef, has_backward: bool) -> tuple[int, str, ast.Call] | None:
    """Returns of the last product that is only returned which statement it is, its name, and its call."""
    results = _find_results(program.body[-1], has_backward)
    if results is None:
        return None
    returned = list(_list_names(results))
    for place in reversed(range(len(program.body) - 1)):
        match program.body[place]:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(keywords=[]) as call) if name in returned:
                uses = sum(isinstance(each, ast.Name) and each.id == name for each in ast.walk(program))
                if uses == 1 + returned.count(name) and _is_product(call, program.body[place + 1 :]):
                    return place, name, call
    return None


def _find_results(statement: ast.stmt, has_backward: bool) -> ast.expr | None:
    """Returns what a program's last statement returns, but for what it saves."""
    match statement:
        case ast.Return(value=ast.Tuple(elts=[results, _])) if has_backward:
            return results
        case ast.Return(value=ast.expr() as results) if not has_backward:
            return results
    return None


def _list_names(results: ast.expr) -> Iterator[str]:
    """Yields the names that nested tuples, lists and dicts consist of."""
    match results:
        case ast.Name(id=name):
            yield name
        case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Dict(values=parts):
            for part in parts:
                yield from _list_names(part)


def _is_product(call: ast.Call, behind: Sequence[ast.stmt]) -> bool:
    """Tells whether a call is a product of values whose names stand for nothing else behind it."""
    simple = all(isinstance(each, (ast.Name, ast.Constant)) for each in call.args)
    operands = _list_operands(call)
    names = (each for statement in behind for each in ast.walk(statement) if isinstance(each, ast.Name))
    is_kept = not any(isinstance(each.ctx, ast.Store) and each.id in operands for each in names)
    return ast.unparse(call.func) in _PRODUCTS and simple and isinstance(call.args[0], ast.Name) and is_kept


def _list_operands(call: ast.Call) -> Collection[str]:
    return {each.id for each in call.args if isinstance(each, ast.Name)}


def _take_out(body: Sequence[ast.stmt], place: int, name: str, call: ast.Call) -> list[ast.stmt]:
    """Returns the statements without the product, whose operands live until they are returned."""
    operands = _list_operands(call)
    kept = [*body[:place], *(left for each in body[place + 1 : -1] if (left := _spare(each, operands)) is not None)]
    result = body[-1]
    assert isinstance(result, ast.Return) and result.value is not None
    results = _Renaming(name).visit(result.value)
    value = ast.Tuple([results, ast.Tuple(list(call.args), ast.Load())], ast.Load())
    return [*kept, ast.Return(value)]


def _spare(statement: ast.stmt, names: Collection[str]) -> ast.stmt | None:
    """Returns a statement that lets go of none of these; None if it did nothing else."""
    if not isinstance(statement, ast.Delete):
        return statement
    targets = [each for each in statement.targets if not (isinstance(each, ast.Name) and each.id in names)]
    return ast.Delete(targets) if targets else None


class _Renaming(ast.NodeTransformer):
    """Has ``BEHIND`` stand wherever a name does."""

    def __init__(self, name: str):
        self._name = name

    def visit_Name(self, node: ast.Name) -> ast.Name:
        """Renames it."""
        return ast.Name(_NAME, ast.Load()) if node.id == self._name else node


def _evaluate(name: str) -> Callable[..., Any]:
    import torch

    products: Mapping[str, Callable[..., Any]] = MappingProxyType(
        {
            "torch.nn.functional.linear": torch.nn.functional.linear,
            "torch.mm": torch.mm,
            "torch.matmul": torch.matmul,
        }
    )
    return products[name]
