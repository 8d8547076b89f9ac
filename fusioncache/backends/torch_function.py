"""Thunder's bound symbols as a plain function of torch operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


def torch_function(bound_symbols: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Callable[..., Any]:
    """A function that runs the bound symbols one by one through Thunder's executors for torch and for plain Python.

    Args:
        bound_symbols: in dependency order.
        inputs: the proxies that become the function's parameters.
        outputs: the proxies that it returns, as a list.
    """
    from thunder.core import prims
    from thunder.core.codeutils import SigInfo
    from thunder.core.trace import TraceCtx, tracectx
    from thunder.executors.passes import transform_for_execution
    from thunder.executors.pythonex import ex as python_executor
    from thunder.executors.torchex import ex as torch_executor

    trace = TraceCtx(None)
    trace.args, trace.kwargs = list(inputs), {}
    trace.names = {proxy.name for proxy in inputs}
    with tracectx(trace):
        for proxy in inputs:
            prims.unpack_trivial(proxy, name=proxy.name)
    for bound_symbol in bound_symbols:
        _reserve_names(bound_symbol, trace.names)
    trace.bound_symbols += [*bound_symbols, prims.python_return.bind(list(outputs), output=None)]
    trace._siginfo = SigInfo("region")
    trace._siginfo.args = [(proxy.name, None) for proxy in inputs]
    trace = transform_for_execution(trace, executors_list=(torch_executor, python_executor))
    return trace.python_callable(include_decorators=False)


def _reserve_names(bound_symbol: Any, names: set[str]) -> None:
    names.update(proxy.name for proxy in bound_symbol.flat_proxy_outs)
    for inner in bound_symbol.subsymbols:
        _reserve_names(inner, names)
