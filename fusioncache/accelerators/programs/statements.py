"""The statements in the text of a trace, as Thunder's bound symbols."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from operator import itemgetter
from types import MappingProxyType
from typing import Any

from fusioncache.accelerators.programs.accesses import bind_access
from fusioncache.accelerators.programs.proxies import make_proxy, read_types, type_outputs
from fusioncache.accelerators.programs.references import (
    CudaGraphReference,
    Reference,
    SymbolReference,
    TemplateReference,
    TraceText,
)


class StatementReader:
    """Reads the text of one trace.

    Args:
        trace: the text.
        context: what the names in it stand for.
        types: of values that come from elsewhere, in Thunder's words.

    Attributes:
        args: the values that the trace takes, those in collections in lists; None where it takes any number.
        proxies: all values by their names.
        bound_symbols: one for each argument and each statement.
    """

    def __init__(self, trace: TraceText, context: Mapping[str, Any], types: Mapping[str, str] = MappingProxyType({})):
        from fusioncache.thunder_adapter.api import TraceCtx, tracectx

        self._trace = trace
        self._context = context
        self._lines = trace.source.split("\n")
        self._types = {**types, **read_types(trace.source)}
        self.proxies: dict[str, Any] = {}
        self._symbols = _printed_symbols()
        function = next(node for node in ast.parse(trace.source).body if isinstance(node, ast.FunctionDef))
        self._signature = function.args
        self._collections = dict(_find_unpacked(function))
        self._types.update(_find_annotated(function))
        self._parts = {name: self._read_part(part) for name, part in trace.context.items() if _is_captured(part)}
        with tracectx(TraceCtx(None)):
            proxies = [self._proxy(arg.arg) for arg in self._signature.args]
            varying = [self._proxy(arg.arg) for arg in (self._signature.vararg, self._signature.kwarg) if arg]
            statements = [(node.lineno, self._read(node)) for node in function.body]
            arguments = [(self._find_comment(proxy), _bind_argument(proxy)) for proxy in [*proxies, *varying]]
        self.bound_symbols = [symbol for _, symbol in sorted([*arguments, *statements], key=itemgetter(0))]
        self.args = None if varying else tuple(map(_contents, proxies))

    def _find_comment(self, proxy: Any) -> int:
        """Returns the line that tells the type of an argument. In a prologue each one's stands before its check."""
        comment = f"  # {proxy.name}: "
        return next((number for number, line in enumerate(self._lines, 1) if line.startswith(comment)), 0)

    def _read_part(self, reference: Any) -> list[Any]:
        """Returns the operations of a part that is captured. It names values as the trace does, and types them."""
        from fusioncache.thunder_adapter.api import prims

        part = StatementReader(reference.trace, {}, self._types)
        self._types.update((name, proxy.type_string()) for name, proxy in part.proxies.items())
        ends = (prims.PrimIDs.UNPACK_TRIVIAL, prims.PrimIDs.RETURN)
        return [symbol for symbol in part.bound_symbols if symbol.sym.id not in ends]

    def signature(self) -> Any:
        """Returns the signature of the trace's function, as Thunder's traces have it."""
        from fusioncache.thunder_adapter.accelerator_api import SigInfo

        signature = SigInfo(self._trace.name)
        signature.args = [(arg.arg, None) for arg in self._signature.args]
        signature.varargs = (self._signature.vararg.arg, None) if self._signature.vararg else None
        signature.varkwargs = (self._signature.kwarg.arg, None) if self._signature.kwarg else None
        return signature

    def _proxy(self, name: str, type_: str | None = None) -> Any:
        from fusioncache.thunder_adapter.api import CollectionProxy

        if name not in self.proxies:
            if name in self._collections or self._types.get(name) == "Collection":
                items = [None if item == "_" else self._proxy(item) for item in self._collections.get(name, ())]
                self.proxies[name] = CollectionProxy(items, name=name)
            else:
                self.proxies[name] = make_proxy(name, self._types.get(name, type_))
        return self.proxies[name]

    def _read(self, node: ast.stmt) -> Any:
        try:
            return self._bind_statement(node) or self._bind_as_written(node)
        except Exception:  # a literal that cannot be evaluated: what is looked at need not be understood
            return self._bind_as_written(node)

    def _bind_statement(self, node: ast.stmt) -> Any:
        """Returns the bound symbol of an operation; None for any other statement."""
        from fusioncache.thunder_adapter.api import prims

        match node:
            case ast.Delete(targets):
                return prims.python_del.bind(*map(self._value, targets), output=None)
            case ast.Return(value):
                return prims.python_return.bind(*self._returned(value), output=None)
            case ast.Assign([target], ast.Name(name)) if name in self._collections:
                results = self._collections[name]
                output = [None if item == "_" else self._proxy(item) for item in results]
                return prims.unpack_sequence.bind(self._proxy(name), len(results), output=output)
            case ast.Assign([target], ast.Call() as call) if (symbol := self._find_symbol(call)) is not None:
                return self._bind(symbol, call, target)
            case ast.Expr(ast.Call() as call) if (symbol := self._find_symbol(call)) is not None:
                return self._bind(symbol, call, None)
        return bind_access(node, self._value)

    def _find_symbol(self, call: ast.Call) -> Any:
        """Returns the symbol of what is called; None if it is none that a trace's operations have."""
        from fusioncache.thunder_adapter.api import Symbol, get_executor

        name = ast.unparse(call.func)
        reference = self._trace.context.get(name)
        if isinstance(reference, CudaGraphReference):
            return Symbol(name, meta=None, is_fusion=True)
        if isinstance(reference, TemplateReference):
            executor = get_executor(reference.uses[0].executor) if reference.uses else None
            return Symbol(name, meta=None, is_fusion=True, executor=executor)
        if isinstance(reference, SymbolReference):
            return get_executor(reference.executor).opmap[reference.symbol]
        if reference is not None:
            return Symbol(name, meta=None)
        module, _, function = name.rpartition(".")
        # What was registered under the same name again is not among the operations any more.
        known = sys.modules.get(module)
        return self._symbols.get(name) or (known and Symbol(function, meta=None, id=function, _module=known))

    def _bind(self, symbol: Any, call: ast.Call, target: ast.expr | None) -> Any:
        from fusioncache.thunder_adapter.api import BoundSymbol

        args = tuple(map(self._value, call.args))
        kwargs = {keyword.arg: self._value(keyword.value) for keyword in call.keywords if keyword.arg}
        output = None if target is None else self._output(symbol, target, args, kwargs)
        functions = {symbol.name: self._context[symbol.name]} if symbol.name in self._context else None
        return BoundSymbol(symbol, args, kwargs, output, self._parts.get(symbol.name, ()), _call_ctx=functions)

    def _output(self, symbol: Any, target: ast.expr, args: Any, kwargs: Mapping[str, Any]) -> Any:
        names = [node.id for node in ast.walk(target) if isinstance(node, ast.Name)]
        if not all(name in self._types or name in self.proxies or name == "_" for name in names):
            for name, type_ in zip(names, self._infer(symbol, args, kwargs), strict=False):
                self._proxy(name, type_)
        return self._define(target)

    def _infer(self, symbol: Any, args: Any, kwargs: Mapping[str, Any]) -> Iterator[str | None]:
        """Yields the types of results that no comment tells: a template's, or what the operation says itself."""
        from fusioncache.thunder_adapter.api import Proxy, TraceCtx, tracectx, tree_flatten

        reference = self._trace.context.get(symbol.name)
        if isinstance(reference, TemplateReference):
            yield from type_outputs(reference, args)
        elif symbol.meta is not None:
            try:
                with tracectx(TraceCtx(None)):
                    results, _ = tree_flatten(symbol.meta(*args, **kwargs))
            except Exception:  # the operation's own code: a value without a type is still a value
                return
            yield from (result.type_string() if isinstance(result, Proxy) else None for result in results)

    def _define(self, target: ast.expr) -> Any:
        match target:
            case ast.Name(name):
                return None if name == "_" else self._proxy(name)
            case ast.List(items):
                return [self._define(item) for item in items]
            case ast.Tuple(items):
                return tuple(self._define(item) for item in items)
        return None

    def _value(self, node: ast.expr) -> Any:
        """Returns an argument: a value of the trace, a literal, or several of them."""
        match node:
            case ast.Name(name) if name in self.proxies or name in self._types:
                return self._proxy(name)
            case ast.Tuple(items):
                return tuple(map(self._value, items))
            case ast.List(items):
                return list(map(self._value, items))
            case ast.Dict(keys, values):
                return {self._value(key): self._value(value) for key, value in zip(keys, values, strict=True) if key}
        return eval(compile(ast.Expression(node), self._trace.name, "eval"), dict(self._names()))

    def _names(self) -> Iterator[tuple[str, Any]]:
        import torch

        from fusioncache.thunder_adapter.accelerator_api import thunder

        yield from {"torch": torch, "thunder": thunder, **self._context, **self.proxies}.items()

    def _returned(self, value: ast.expr | None) -> list[Any]:
        """Returns the arguments of the return. One tuple is not the same as several values without parentheses."""
        if isinstance(value, ast.Tuple) and value.elts and value.col_offset == value.elts[0].col_offset:
            return list(map(self._value, value.elts))
        return [] if value is None else [self._value(value)]

    def _bind_as_written(self, node: ast.stmt) -> Any:
        """Returns a bound symbol for a statement that is no operation: prologues and epilogues consist of such."""
        from fusioncache.thunder_adapter.api import BoundSymbol, Symbol

        text = "\n".join(self._lines[node.lineno - 1 : node.end_lineno]).strip()
        value = getattr(node, "value", None)
        target = getattr(node, "target", None) or next(iter(getattr(node, "targets", ())), None)
        names = [each.id for each in ast.walk(value) if isinstance(each, ast.Name)] if value else []
        args = tuple(self.proxies[name] for name in names if name in self.proxies)
        output = self._define(target) if isinstance(target, ast.Name) else None
        return BoundSymbol(
            Symbol("statement", meta=None, python_printer=lambda *_: text), args, {}, output, _call_ctx={}
        )


def _find_unpacked(function: ast.FunctionDef) -> Iterator[tuple[str, list[str]]]:
    """Yields each collection that a function unpacks, with the names of what is in it."""
    for node in function.body:
        match node:
            case ast.Assign([ast.Tuple(items)], ast.Name(name)):
                yield name, [item.id for item in items if isinstance(item, ast.Name)]


def _is_captured(reference: Reference) -> bool:
    return isinstance(reference, CudaGraphReference)


def _find_annotated(function: ast.FunctionDef) -> Iterator[tuple[str, str]]:
    for node in function.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, str(ast.literal_eval(node.annotation))


def _contents(proxy: Any) -> Any:
    from fusioncache.thunder_adapter.api import CollectionProxy

    return list(map(_contents, proxy.coll)) if isinstance(proxy, CollectionProxy) else proxy


def _bind_argument(proxy: Any) -> Any:
    from fusioncache.thunder_adapter.api import prims

    return prims.unpack_trivial.bind(proxy, output=proxy, name=proxy.name)


def _printed_symbols() -> dict[str, Any]:
    """Returns the operations of Thunder's executors that are functions of modules, by the names that traces print."""
    from fusioncache.thunder_adapter.accelerator_api import module_shortname
    from fusioncache.thunder_adapter.api import get_all_executors

    return {
        f"{module_shortname(symbol.module.__name__)}.{symbol.name}": symbol
        for executor in reversed(get_all_executors())
        for symbol in executor.opmap.values()
        if symbol.module is not None
    }
