"""Thunder's first traces of a program, before any pass, and the same with other sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fusioncache.accelerators.sizes.arguments import ArgumentSizes, Place


@dataclass(frozen=True, slots=True)
class FirstTraces:
    """What the interpreter made of a program.

    Attributes:
        prologue: checks the arguments and what else is read, and finds the inputs.
        computation: computes.
        epilogue: returns, and stores what lasts.
    """

    prologue: Any
    computation: Any
    epilogue: Any

    @classmethod
    def of(cls, results: Any) -> FirstTraces:
        """Returns the traces of Thunder's ``TraceResults``."""
        return cls(results.prologue_trace, results.computation_trace, results.epilogue_trace)

    def results(self) -> Any:
        """Returns them as Thunder's interpreter does, with an empty log."""
        from fusioncache.thunder_adapter.accelerator_api import TraceResults

        return TraceResults(self.prologue, self.computation, self.epilogue, [])

    def describe(self) -> tuple[Any, ...]:
        """Returns all of them that passes go by, to be compared: the text of each, and what no text says.

        What operations consist of is left out, as passes change that in place, and whether parameters have gradients,
        as they have from the second step on: an operation that reads one has its name in the text.
        """
        return tuple(map(_describe, (self.prologue, self.computation, self.epilogue)))

    def copy(self) -> FirstTraces:
        """Returns the same in traces of their own, which stay as they are whatever passes do to the others."""
        return FirstTraces(*map(_copy, (self.prologue, self.computation, self.epilogue)))

    def isolate(self) -> FirstTraces:
        """Returns the same with inputs of their own: Thunder's transforms that share a model write into these."""
        from fusioncache.thunder_adapter.api import TraceCtx, tracectx, variableify

        inputs = {proxy.name: proxy for proxy in (*self.prologue.output[0], *self.computation.args)}
        with tracectx(TraceCtx()):
            own = {variableify(proxy): proxy.replace() for proxy in inputs.values()}
        return FirstTraces(*(_exchange(trace, own) for trace in (self.prologue, self.computation, self.epilogue)))

    def find_names(self) -> Mapping[Place, str]:
        """Returns the name of each value that is an argument by itself, and that the program has asked for.

        Raises:
            ValueError: if one has two names.
        """
        unpacked = [(place, proxy.name) for place, proxy in self._list_arguments()]
        if len(dict(unpacked)) < len(unpacked):
            raise ValueError("an argument is unpacked twice")
        return dict(unpacked)

    def _list_arguments(self) -> Iterator[tuple[Place, Any]]:
        """Yields the place and the proxy of each argument that has sizes, as the prologue unpacks them."""
        from fusioncache.thunder_adapter.api import IntegerProxy, PrimIDs, TensorProxy

        ways: dict[str, tuple[int | str, ...]] = {"args": (), "kwargs": ()}
        for bound in self.prologue.bound_symbols:
            if bound.sym.id is PrimIDs.UNPACK_GETITEM and bound.args[0].name in ways:
                way = ways[bound.output.name] = (*ways[bound.args[0].name], bound.args[1])
                if isinstance(bound.output, TensorProxy | IntegerProxy):
                    yield way if len(way) > 1 else way[0], bound.output

    def inputs(self) -> tuple[Any, ...]:
        """Returns the proxies that the computation is given."""
        return tuple(self.computation.args)

    def with_computation(self, computation: Any, sizes: ArgumentSizes) -> FirstTraces:
        """Returns them for another computation, which differs from this one in sizes only.

        The prologue checks the inputs for their new shapes, integers for their new values, and all else as it did.

        Args:
            computation: the other one.
            sizes: of the arguments, of which those are read that are integers, or that the computation does without.
        """
        from fusioncache.thunder_adapter.api import IntegerProxy, TensorProxy, TraceCtx, tracectx, variableify

        arguments = [(place, proxy) for place, proxy in self._list_arguments() if place in sizes]
        inputs = {variableify(each): each for each in computation.args}
        with tracectx(TraceCtx()):
            integers = {
                variableify(proxy): proxy.replace(value=sizes[place][0])
                for place, proxy in arguments
                if isinstance(proxy, IntegerProxy)
            }
            # Thunder checks each argument, whether or not anything is computed of it.
            unused = {
                variableify(proxy): proxy.replace(shape=sizes[place])
                for place, proxy in arguments
                if isinstance(proxy, TensorProxy) and variableify(proxy) not in inputs
            }
        returned = {variableify(each): each for each in computation.bound_symbols[-1].args[0]}
        prologue = _exchange(self.prologue, {**inputs, **unused, **integers})
        epilogue = _exchange(self.epilogue, {**inputs, **unused, **returned})
        _check_sizes(prologue, {**inputs, **unused}, integers)
        return FirstTraces(prologue, computation, epilogue)


def _describe(trace: Any) -> tuple[Any, ...]:
    from fusioncache.accelerators.layers.stamping import describe_value

    proxies = {
        each.name: each for bound in trace.bound_symbols for each in (*bound.flat_proxy_args, *bound.flat_proxy_outs)
    }
    unprinted = _copy(trace)
    # Thunder gives objects without a text new names each time that it prints a copy of their trace.
    unprinted.obj_name_ctr, unprinted.names = 0, set()
    return (
        str(unprinted.python(print_depth=1)),
        [(bound.sym.id, bound.sym.name, frozenset(bound.tags), bound.source_filename) for bound in trace.bound_symbols],
        {name: describe_value(proxy, has_gradient=False) for name, proxy in proxies.items()},
    )


def _copy(trace: Any) -> Any:
    from fusioncache.thunder_adapter.api import from_trace

    new = from_trace(trace)
    new.bound_symbols = list(trace.bound_symbols)
    return new


def _exchange(trace: Any, proxies: Mapping[Any, Any]) -> Any:
    """Returns a copy of a trace with other proxies in place of those of the same names."""
    from fusioncache.thunder_adapter.accelerator_api import _apply_trace_proxy_rename

    return _apply_trace_proxy_rename(trace, dict(proxies))


def _check_sizes(prologue: Any, tensors: Mapping[Any, Any], integers: Mapping[Any, Any]) -> None:
    """Has a prologue check the shapes and the values that its proxies have."""
    from fusioncache.thunder_adapter.api import PrimIDs, variableify

    for position, bound in enumerate(prologue.bound_symbols):
        if bound.sym.id is PrimIDs.CHECK_TENSOR_SHAPE_AND_METADATA and variableify(bound.args[0]) in tensors:
            proxy, _, *others = bound.args
            prologue.bound_symbols[position] = bound.from_bsym(args=(proxy, tuple(proxy.shape), *others))
        if bound.sym.id is PrimIDs.CHECK_NUMBER_TYPE_AND_VALUE and variableify(bound.args[0]) in integers:
            proxy, _, *others = bound.args
            prologue.bound_symbols[position] = bound.from_bsym(args=(proxy, proxy.value, *others))
