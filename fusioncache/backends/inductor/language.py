"""The language of wrappers: whether a text is in it, and the function that the text defines."""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping, Sequence
from types import CodeType, SimpleNamespace
from typing import Any

from fusioncache.backends.api import Run
from fusioncache.ir import Declined, Scope

TORCH_FUNCTIONS = {
    "assert_size_stride": "assert_size_stride",
    "empty_strided_cpu": "_empty_strided_cpu",
    "reinterpret_tensor": "_reinterpret_tensor",
}
"""What a wrapper may call besides kernels, with its name in ``torch._C._dynamo.guards``."""
OPERATIONS = ("mm", "bmm", "addmm", "baddbmm")
"""Functions of torch that a wrapper may call by the name under which TorchInductor has them."""
EXTERNAL = "extern_kernels"
_OPERATIONS = frozenset((EXTERNAL, operation) for operation in OPERATIONS)
_KEYWORDS = frozenset({"out", "alpha", "beta"})
RESERVED = frozenset({"call", "torch", "args", EXTERNAL, *TORCH_FUNCTIONS})
"""Names that no kernel may have."""
_STATEMENTS = (ast.Assign, ast.Delete, ast.Expr, ast.Return)
_EXPRESSIONS = (
    ast.Call,
    ast.Name,
    ast.Tuple,
    ast.List,
    ast.Constant,
    ast.UnaryOp,
    ast.USub,
    # What is made of sizes, in code for any of them.
    ast.BinOp,
    ast.Add,
    ast.Sub,
    ast.Mult,
    ast.FloorDiv,
    ast.Attribute,
    ast.keyword,
)
_CONTEXTS = (ast.Load, ast.Store, ast.Del)
_LONGEST = 4_000_000
_DTYPES = (
    *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
)


def check_wrapper(wrapper: str, kernels: Collection[str]) -> CodeType:
    """Compiles a text that is a wrapper of these kernels.

    Raises:
        Declined: names what the text does besides.
    """
    if len(wrapper) > _LONGEST:
        raise Declined("a long wrapper", Scope.STORING)
    try:
        tree = ast.parse(wrapper)
        code = compile(tree, "<TorchInductor's wrapper, kept>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise Declined("a wrapper that is no Python", Scope.STORING) from error
    match tree.body:
        case [
            ast.FunctionDef("call", ast.arguments([], [ast.arg("args", None)], None, [], [], None, []), body, [], None)
        ]:
            _check_body(body, {*TORCH_FUNCTIONS, *kernels})
        case _:
            raise Declined("a wrapper that is no single function", Scope.STORING)
    return code


def _check_body(body: Sequence[ast.stmt], functions: set[str]) -> None:
    if any(not isinstance(statement, _STATEMENTS) for statement in body):
        raise Declined("a wrapper with control flow", Scope.STORING)
    nodes = [node for statement in body for node in ast.walk(statement)]
    given = {node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    if given & {*functions, *RESERVED}:
        raise Declined("a wrapper that redefines what it uses", Scope.STORING)
    calls = [node.func for node in nodes if isinstance(node, ast.Call)]
    called = {id(part) for function in calls for part in (function, getattr(function, "value", None))}
    for node in nodes:
        if id(node) not in called:
            _check_node(node, functions, {*given, "torch", "args"})


def _check_node(node: ast.AST, functions: set[str], values: set[str]) -> None:
    """Looks at all nodes but those that say which function is called."""
    match node:
        case ast.Attribute(ast.Name("torch"), dtype, ast.Load()) if dtype in _DTYPES:
            pass
        case ast.Attribute():
            raise Declined(f"a wrapper that uses {node.attr[:60]}", Scope.STORING)
        case ast.Call(ast.Name(name), _, []) if name in functions:
            pass
        case ast.Call(ast.Attribute(ast.Name(name), operation), _, keywords) if (name, operation) in _OPERATIONS:
            if not _KEYWORDS.issuperset(keyword.arg for keyword in keywords):
                raise Declined(f"a wrapper that calls {operation} in another way", Scope.STORING)
        case ast.Call():
            raise Declined(
                f"a wrapper that calls {getattr(node.func, 'attr', getattr(node.func, 'id', ''))[:60]}", Scope.STORING
            )
        case ast.Name(name) if name not in values:
            raise Declined(f"a wrapper that uses {name[:60]}", Scope.STORING)
        case ast.Constant(value) if type(value) not in (int, float, bool, type(None)):
            raise Declined(f"a wrapper with a literal of type {type(value).__name__}", Scope.STORING)
        case _ if not isinstance(node, _STATEMENTS + _EXPRESSIONS + _CONTEXTS):
            raise Declined(f"a wrapper with {type(node).__name__}", Scope.STORING)


def define(code: CodeType, kernels: Mapping[str, Any]) -> Run:
    """Makes the function that a checked text defines.

    It holds no state, and neither do kernels, so threads may call it at the same time. Autograd and autocast act on
    operations that are dispatched: where there are any in it, both are off.
    """
    import torch

    guards = torch._C._dynamo.guards
    names = {name: getattr(guards, theirs) for name, theirs in TORCH_FUNCTIONS.items()}
    operations = SimpleNamespace(**{name: getattr(torch, name) for name in OPERATIONS})
    names |= {"__builtins__": {}, "torch": torch, EXTERNAL: operations, **kernels}
    exec(code, names)
    run = names["call"]
    if EXTERNAL not in run.__code__.co_names:
        return run

    def run_as_it_is(args: Sequence[Any]) -> Sequence[Any]:
        with torch.no_grad(), torch._C._DisableAutocast():
            return run(args)

    return run_as_it_is
