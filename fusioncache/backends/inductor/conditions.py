"""What must hold of sizes and strides for code to be right: texts that outlive a process, in a language of integers.

Where torch says it, it is a guard of its shape environment. A text has integers, names of integers, sums, differences,
products, quotients without remainder, remainders, comparisons, and, or, not; it calls nothing and looks into nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping
from types import CodeType
from typing import Any

from fusioncache.backends.api import NotPersistable

_LONGEST = 10_000
_NODES = (
    *(ast.Expression, ast.Name, ast.Load, ast.Constant, ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub),
    *(ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod),
    *(ast.Compare, ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE),
)


class ForeignCondition(NotPersistable, ValueError):
    """A text is not in the language. What it belongs to is not persisted, and not loaded."""


def check_condition(text: str, names: Collection[str]) -> None:
    """Checks that a text is in the language and has no other names.

    Raises:
        NotPersistable: says what it has besides; a ``ValueError`` as well.
    """
    unknown = set(_compile(text).co_names).difference(names)
    if unknown:
        raise ForeignCondition(f"a condition with the name {min(unknown)[:60]}")


def evaluate(text: str, values: Mapping[str, Any]) -> Any:
    """Returns what a text says where its names stand for these integers, which may be symbolic.

    Raises:
        NotPersistable: if it is not in the language; a ``ValueError`` as well.
        NameError, ZeroDivisionError: if a name stands for nothing, or something is divided by zero.
    """
    return eval(_compile(text), {"__builtins__": {}}, dict(values))


def _compile(text: str) -> CodeType:
    if len(text) > _LONGEST:
        raise ForeignCondition("a long condition")
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ForeignCondition("a condition that is no Python") from error
    for node in ast.walk(tree):
        if not isinstance(node, _NODES) or (isinstance(node, ast.Constant) and type(node.value) not in (int, bool)):
            raise ForeignCondition(f"a condition with {type(node).__name__}")
    return compile(tree, "<a condition on sizes>", "eval", dont_inherit=True)
