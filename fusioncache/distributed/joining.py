"""Joins a gather with the column layers behind it, and a row layer with the scatter behind it.

This goes through what ranks do before Thunder differentiates it: there each exchange and each layer is one symbol, and
gradients follow from those of the joined ones. What stays as it is has a reason, and so do all ranks, as it is a matter
of the trace alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fusioncache.distributed.cut_rules import operation_name
from fusioncache.distributed.joined_symbols import multiply_gathered, scatter_product

_LINEAR = ("torch.linear", "prims.linear")


@dataclass(frozen=True, slots=True)
class Joined:
    """What is computed at once.

    Attributes:
        exchange: the bound symbol of a gather or a scatter.
        layers: those of the linear layers that take what was gathered, or of the one that gives what is scattered.
    """

    exchange: Any
    layers: tuple[Any, ...]


def join_products(trace: Any, report_left: Callable[[str], None]) -> Any:
    """Returns a trace in which exchanges and the products beside them are one symbol; the same one if there is none.

    Args:
        trace: what ranks do, in which layers are cut.
        report_left: is told why an exchange of a column or a row layer stays by itself.
    """
    from fusioncache.thunder_adapter.api import TraceProvenance, from_trace, tracectx

    uses = _Uses(trace)
    found = [joined for symbol in trace.bound_symbols if (joined := uses.find(symbol, report_left))]
    if not found:
        return trace
    new = from_trace(trace)
    walk = _Walk(new, found)
    with tracectx(new):
        for symbol in trace.bound_symbols:
            new.set_current_source_location(symbol.source_filename, symbol.source_positions)
            walk.visit(symbol)
    new.set_current_source_location(None, None)
    new.set_provenance(TraceProvenance("Products joined with exchanges by fusioncache"))
    return new


class _Uses:
    """What of a trace may be joined.

    Args:
        trace: it.
    """

    def __init__(self, trace: Any):
        self._takers: dict[str, list[Any]] = defaultdict(list)
        self._makers: dict[str, tuple[int, Any]] = {}
        self._places: dict[int, int] = {}
        for place, symbol in enumerate(trace.bound_symbols):
            self._places[id(symbol)] = place
            for name in dict.fromkeys(value.name for value in symbol.flat_proxy_args):
                self._takers[name].append(symbol)
            for value in symbol.flat_proxy_outs:
                self._makers.setdefault(value.name, (place, symbol))

    def find(self, symbol: Any, report_left: Callable[[str], None]) -> Joined | None:
        """Returns what is computed together with an exchange; None if this is none, or it stays as it is."""
        name = operation_name(symbol)
        if name == "fusioncache.gather_for_parts":
            layers = tuple(self._takers[symbol.output.name])
            reason = next(filter(None, (self._explain_alone(layer, symbol) for layer in layers)), "")
            what = "a gather in front of column layers"
        elif name == "fusioncache.sum_into_parts" and self._is_of_layer(symbol):
            _, layer = self._makers[symbol.args[0].name]
            layers, what = (layer,), "a scatter behind a row layer"
            reason = _explain_unlike(layer)
            if layer.args[2] is not None or len(self._takers[layer.output.name]) > 1:
                reason = "what is scattered is used otherwise as well"
        else:
            return None
        if symbol.args[2] >= symbol.args[0].ndim - 1:
            reason = "it is along the features"
        if reason:
            report_left(f"{what} is not joined: {reason}")
        return None if reason or not layers else Joined(symbol, layers)

    def _is_of_layer(self, scatter: Any) -> bool:
        """Tells whether a linear layer gives what is scattered. Else it is what an embedding found."""
        maker = self._makers.get(scatter.args[0].name)
        return maker is not None and operation_name(maker[1]) in _LINEAR

    def _explain_alone(self, layer: Any, gather: Any) -> str:
        """Returns why something that takes what was gathered keeps that from being joined."""
        if operation_name(layer) not in _LINEAR:
            return f"{operation_name(layer).rpartition('.')[2]} takes what was gathered as well"
        weight = layer.args[1]
        made, _ = self._makers.get(weight.name, (-1, None))
        if layer.args[0].name != gather.output.name or made > self._places[id(gather)]:
            return "a weight is computed only behind it"
        return _explain_unlike(layer)


def _explain_unlike(layer: Any) -> str:
    """Returns what else a linear layer does than to multiply by its weight."""
    (taken, weight), inner = layer.args[:2], [each for each in layer.subsymbols if each.flat_proxy_outs]
    direct = operation_name(layer) == "prims.linear" or (
        [operation_name(each) for each in inner] == ["prims.linear"]
        and [each.name for each in inner[0].args[:2]] == [taken.name, weight.name]
    )
    if not direct or weight.ndim != 2 or weight.dtype != taken.dtype:
        return "a layer converts what it takes"
    return ""


class _Walk:
    """Goes through a trace and writes the new one."""

    def __init__(self, trace: Any, found: Sequence[Joined]):
        self._trace = trace
        self._now: dict[Any, Any] = {}
        self._gathers = {id(joined.exchange): joined for joined in found if _gathers(joined)}
        self._scatters = {id(joined.exchange): joined for joined in found if not _gathers(joined)}
        self._behind = {id(layer) for joined in self._gathers.values() for layer in joined.layers}
        self._before = {id(layer) for joined in self._scatters.values() for layer in joined.layers}

    def visit(self, symbol: Any) -> None:
        """Writes what is done in the place of a bound symbol."""
        if (joined := self._gathers.get(id(symbol))) is not None:
            self._gather(joined)
        elif (joined := self._scatters.get(id(symbol))) is not None:
            self._scatter(joined)
        elif id(symbol) in self._behind:
            self._add_bias(symbol)
        elif id(symbol) not in self._before:
            self._trace.scopes[-1].append(symbol.from_bsym_swap_proxies(self._now))

    def _gather(self, joined: Joined) -> None:
        rows, group, dim = joined.exchange.args
        weights = [self._find(layer.args[1]) for layer in joined.layers]
        products = multiply_gathered()(self._find(rows), weights, group, dim)
        for layer, product in zip(joined.layers, products, strict=True):
            self._put(layer.output, product)

    def _add_bias(self, layer: Any) -> None:
        from fusioncache.thunder_adapter.api import ltorch

        bias = layer.args[2]
        if bias is not None:
            self._put(layer.output, ltorch.add(self._find(layer.output), self._find(bias)))

    def _scatter(self, joined: Joined) -> None:
        (layer,), (_, group, dim) = joined.layers, joined.exchange.args
        features, weight = (self._find(each) for each in layer.args[:2])
        self._put(joined.exchange.output, scatter_product()(features, weight, group, dim))

    def _find(self, value: Any) -> Any:
        from fusioncache.thunder_adapter.api import variableify

        return self._now.get(variableify(value), value)

    def _put(self, value: Any, now: Any) -> None:
        from fusioncache.thunder_adapter.api import variableify

        # Such as that it was made where no gradient is wanted.
        now.tags.update(value.tags)
        self._now[variableify(value)] = now


def _gathers(joined: Joined) -> bool:
    return operation_name(joined.exchange) == "fusioncache.gather_for_parts"
