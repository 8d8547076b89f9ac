"""The last product of a program, split off its text.

t2 = region(t1)                                   t2 = region(t1)
t3 = torch.nn.functional.linear(t2, w, None)
del t2
return (t3,)                                      return ((behind_the_graph,), (t2, w, None))
"""

from __future__ import annotations

import ast
import inspect
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from types import CodeType, FunctionType
from typing import Any

import torch

from fusioncache.accelerators.graphs.captured_forward import BEHIND, LastProduct
from fusioncache.accelerators.steps.leaving import NEW_VIEWS
from fusioncache.accelerators.steps.views import RESHAPES

_NAME = "behind_the_graph"
_PRODUCTS = frozenset({"torch.nn.functional.linear", "torch.mm", "torch.matmul"})
"""What allocates its result, and does nothing else."""
_VIEWS = NEW_VIEWS | RESHAPES
"""What launches nothing, or little. A graph of nothing else would be empty."""
_TAKES_ANY = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS
_DECORATORS = ("torch.no_grad()", "no_autocast")
"""What Thunder puts around a program that it compiles."""


def split_last_product(function: FunctionType, text: str, *, has_backward: bool) -> LastProduct | None:
    """Splits a program that writes into nothing; returns None if it does not end with a product that it only returns.

    Args:
        function: the program, without what Thunder puts around it.
        text: its source, with that. Where it is not the source of this very function, nothing is split off.
        has_backward: whether it returns results and what it saves for backward.
    """
    module = ast.parse(text)
    programs = [each for each in module.body if isinstance(each, ast.FunctionDef)]
    if len(programs) != 1 or not _is_called_alike(programs[0]) or function.__closure__:
        return None
    if not _is_source(text, function.__code__):
        return None
    program = programs[0]
    statements = [each for each in program.body if not isinstance(each, ast.Delete)]
    ending = _find_ending(program, statements[-2:], has_backward)
    if ending is None or not any(map(_computes, statements[:-2])):
        return None
    program.body = _take_out(program.body, ending)
    known: dict[str, Any] = {**function.__globals__, _NAME: BEHIND}
    code = compile(
        ast.fix_missing_locations(module), f"{function.__code__.co_filename} captured", "exec", dont_inherit=True
    )
    exec(code, known)
    return LastProduct(known[program.name], attrgetter(ast.unparse(ending.call.func).removeprefix("torch."))(torch))


@dataclass(frozen=True, slots=True)
class _Ending:
    """How a program ends.

    Attributes:
        product: the statement.
        name: of its value.
        call: what it calls.
        returned: the statement that returns the results.
    """

    product: ast.Assign
    name: str
    call: ast.Call
    returned: ast.Return


def _is_source(text: str, code: CodeType) -> bool:
    """Tells whether the one function in a text does what code does.

    Lines may be others, as those of a program that was filled in for another length are. Constants are compared as
    Python writes them, for which 1 and True are not the same.
    """
    module = compile(text, "", "exec", dont_inherit=True)
    return [_describe(each) for each in module.co_consts if isinstance(each, CodeType)] == [_describe(code)]


def _describe(code: CodeType) -> tuple[Any, ...]:
    takes = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags & _TAKES_ANY
    return code.co_code, repr(code.co_consts), code.co_names, code.co_varnames, takes


def _is_called_alike(program: ast.FunctionDef) -> bool:
    """Tells whether Thunder has put around a program what it always does, and nothing else."""
    return [ast.unparse(each) for each in program.decorator_list] == [*_DECORATORS]


def _find_ending(program: ast.FunctionDef, last: Sequence[ast.stmt], has_backward: bool) -> _Ending | None:
    """Returns how a program ends whose last two statements are these, if nothing but the results has the product."""
    match last:
        case [ast.Assign(targets=[ast.Name(id=name)], value=ast.Call() as call) as product, ast.Return() as returned]:
            ending = _Ending(product, name, call, returned)
        case _:
            return None
    results = _find_results(returned, has_backward)
    if results is None or not _is_product(call):
        return None
    count = Counter(_list_names(results))[name]
    uses = sum(isinstance(each, ast.Name) and each.id == name for each in ast.walk(program))
    return ending if count and uses == 1 + count else None


def _is_product(call: ast.Call) -> bool:
    """Tells whether a call is a product of values that have names."""
    simple = all(isinstance(each, (ast.Name, ast.Constant)) for each in call.args) and not call.keywords
    return simple and isinstance(call.args[0], ast.Name) and ast.unparse(call.func) in _PRODUCTS


def _find_results(statement: ast.Return, has_backward: bool) -> ast.expr | None:
    """Returns what a program's last statement returns, but for what it saves."""
    if not has_backward:
        return statement.value
    match statement.value:
        case ast.Tuple(elts=[results, _]):
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


def _computes(statement: ast.stmt) -> bool:
    """Tells whether a statement launches something."""
    match statement:
        case ast.Assign(value=ast.Call(func=function)):
            return ast.unparse(function).rpartition(".")[2] not in _VIEWS
    return False


def _take_out(body: Sequence[ast.stmt], ending: _Ending) -> list[ast.stmt]:
    """Returns the statements without the product, whose operands live until they are returned."""
    before = body[: body.index(ending.product)]  # behind it is nothing but what lets go of values
    assert ending.returned.value is not None
    results = _Renaming(ending.name).visit(ending.returned.value)
    operands = ast.Tuple(list(ending.call.args), ast.Load())
    return [*before, ast.Return(ast.Tuple([results, operands], ast.Load()))]


class _Renaming(ast.NodeTransformer):
    """Has ``BEHIND`` stand wherever a name does."""

    def __init__(self, name: str):
        self._name = name

    def visit_Name(self, node: ast.Name) -> ast.Name:
        """Renames it."""
        return ast.Name(_NAME, ast.Load()) if node.id == self._name else node
