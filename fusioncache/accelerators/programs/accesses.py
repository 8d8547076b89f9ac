"""The statements of prologues and epilogues, which take values out of a model and its inputs and put values back."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

_METHODS = {
    "get_parameter": "unpack_parameter",
    "get_buffer": "unpack_buffer",
    "get_submodule": "unpack_submodule",
    "set_buffer": "pack_buffer",
}


def bind_access(node: ast.stmt, value_of: Callable[[ast.expr], Any]) -> Any:
    """Returns the bound symbol of a statement that takes a value out of another, or puts one in; None if it is none.

    Args:
        node: the statement.
        value_of: gives the value of an expression, which is a name or a literal.
    """
    match node:
        case ast.AnnAssign(ast.Name() as target, value=ast.expr() as source):
            return _bind_unpacking(source, value_of(target), value_of)
        case ast.Assign([ast.Attribute(holder, name)], value):
            return _bind("pack_attr", value_of(holder), name, value_of(value))
        case ast.Assign([ast.Subscript(holder, key)], value):
            return _bind("pack_setitem", value_of(holder), value_of(key), value_of(value))
        case ast.Expr(ast.Call(ast.Attribute(ast.Name() as holder, method), [key, value])) if method in _METHODS:
            return _bind(_METHODS[method], value_of(holder), value_of(key), value_of(value))
    return None


def _bind_unpacking(source: ast.expr, output: Any, value_of: Callable[[ast.expr], Any]) -> Any:
    match source:
        case ast.Call(ast.Attribute(ast.Name() as holder, method), [key]) if method in _METHODS:
            return _bind(_METHODS[method], value_of(holder), value_of(key), output=output)
        case ast.Call(ast.Attribute(attr="get_thunder_module"), [module]):
            return _bind("unpack_thunder_module", value_of(module), output=output)
        case ast.Call(ast.Attribute(attr="_get_cache_info"), []):
            return _bind("unpack_cache_info", output, output=output)
        case ast.Subscript(ast.Call(ast.Name("globals"))):
            return _bind("unpack_function_obj", output, output=output)
        case ast.Subscript(holder, key):
            return _bind("unpack_getitem", value_of(holder), value_of(key), output=output)
        case ast.Attribute(holder, name):
            return _bind("unpack_attr", value_of(holder), name, output=output)
    return None


def _bind(primitive: str, *args: Any, output: Any = None) -> Any:
    from fusioncache.thunder_adapter.api import prims

    return getattr(prims, primitive).bind(*args, output=output)
