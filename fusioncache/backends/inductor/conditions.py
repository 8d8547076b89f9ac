"""What must hold of sizes and strides for code to be right: texts that outlive a process, in a language of integers.

Where torch says it, it is a guard of its shape environment. A text has integers, names of integers, sums, differences,
products, quotients without remainder, remainders, comparisons, and, or, not; it calls nothing and looks into nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping
from types import CodeType
from typing import Any

from fusioncache.ir import Declined, Scope

_LONGEST = 10_000
_NODES = (
    *(ast.Expression, ast.Name, ast.Load, ast.Constant, ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub),
    *(ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod),
    *(ast.Compare, ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE),
)


def check_condition(text: str, names: Collection[str]) -> None:
    """Checks that a text is in the language and has no other names.

    Raises:
        Declined: says what it has besides.
    """
    unknown = set(_compile(text).co_names).difference(names)
    if unknown:
        raise Declined(f"a condition with the name {min(unknown)[:60]}", Scope.STORING)


def evaluate(text: str, values: Mapping[str, Any]) -> Any:
    """Returns what a text says where its names stand for these integers, which may be symbolic.

    Raises:
        Declined: if it is not in the language.
        NameError, ZeroDivisionError: if a name stands for nothing, or something is divided by zero.
    """
    return eval(_compile(text), {"__builtins__": {}}, dict(values))


def _compile(text: str) -> CodeType:
    if len(text) > _LONGEST:
        raise Declined("a long condition", Scope.STORING)
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise Declined("a condition that is no Python", Scope.STORING) from error
    for node in ast.walk(tree):
        if not isinstance(node, _NODES) or (isinstance(node, ast.Constant) and type(node.value) not in (int, bool)):
            raise Declined(f"a condition with {type(node).__name__}", Scope.STORING)
    return compile(tree, "<a condition on sizes>", "eval", dont_inherit=True)
