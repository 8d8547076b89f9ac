"""What each rank does of what one process would do, where layers are cut among ranks.

A trace tells what a whole model does. Here it is gone through once: what takes whole tensors stays as it is, and what
takes a cut one computes a part. Of each operation it is known what it does to a cut, or else it is refused: a program
is the same computation, or there is none. So neither numbers of heads nor shapes in a model's code need to change.

Where a whole tensor is used by something that computes a part, each rank has a summand of its gradient. These are added
up: that is the collective in front of column layers, one for all that read the same tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fusioncache.distributed.cuts import RULES, Cut, CutError, CutValues, align_right, is_elementwise, operation_name


def partition_trace(trace: Any, values: CutValues) -> Any:
    """Returns what each rank does of what a trace does.

    Args:
        trace: a computation as Thunder's interpreter found it, of a whole model.
        values: which of its inputs are cut.

    Raises:
        CutError: if it does something with a tensor that is cut of which it is not known how, with the layer.
    """
    from fusioncache.thunder_adapter.api import TraceProvenance, from_trace, tracectx

    new = from_trace(trace)
    values.starts(trace.args)
    new.args = tuple(values.now(value) for value in trace.args)
    walk = _Partitioner(values, new)
    with tracectx(new):
        for symbol in trace.bound_symbols:
            new.set_current_source_location(symbol.source_filename, symbol.source_positions)
            walk.visit(symbol)
    new.set_current_source_location(None, None)
    new.set_provenance(TraceProvenance("Layers cut among ranks by fusioncache"))
    return new


class _Partitioner:
    """Goes through a trace and writes the new one."""

    def __init__(self, values: CutValues, trace: Any):
        self._values = values
        self._trace = trace
        self._line = ""

    def visit(self, symbol: Any) -> None:
        """Writes what is done in the place of a bound symbol, which may be a part of another one."""
        from fusioncache.thunder_adapter.api import PrimIDs

        if symbol.sym.id == PrimIDs.RETURN:
            self._return(symbol)
            return
        self._line = _line_of(symbol) or self._line
        if symbol.sym.id != PrimIDs.UNPACK_TRIVIAL and any(map(self._values.cut_of, symbol.flat_proxy_args)):
            self._cut(symbol)
        else:
            self._keep(symbol, {})
        self._values.train(symbol.flat_proxy_args, symbol.flat_proxy_outs)

    def _cut(self, symbol: Any) -> None:
        name = operation_name(symbol)
        rule = RULES.get(name)
        if rule is not None and rule(self._values, symbol):
            return
        if is_elementwise(symbol) and self._compute_elements(symbol):
            return
        taken = {value.name for value in symbol.flat_proxy_args}
        if symbol.subsymbols:
            for inner in symbol.subsymbols:
                self.visit(inner)
        elif any(value.name not in taken for value in symbol.flat_proxy_outs):
            self._gather_rows(symbol, name)
        # Else it gives numbers, or what it takes.

    def _compute_elements(self, symbol: Any) -> bool:
        """Computes a part element by element; tells whether that is possible."""
        (given,) = symbol.flat_proxy_outs
        cuts = [(value, cut) for value in symbol.flat_proxy_args if (cut := self._values.cut_of(value))]
        dims = {align_right(cut.dim, value.ndim, given.ndim) for value, cut in cuts}
        if len(dims) > 1:
            return False
        (dim,), (_, cut) = dims, cuts[0]
        now = {value.name: self._part(value, dim, given) for value in symbol.flat_proxy_args}
        return self._values.compute(symbol, now, cut.moved(dim))

    def _part(self, value: Any, dim: int, given: Any) -> Any:
        """Returns what takes part of a value in a result of which this rank has the part along a dimension."""
        if self._values.cut_of(value) or not hasattr(value, "ndim"):
            return self._values.now(value)
        own = align_right(dim, given.ndim, value.ndim)
        if own < 0 or value.shape[own] == 1:
            return self._values.enter(value)
        return self._values.own_part(value, own)

    def _gather_rows(self, symbol: Any, name: str) -> None:
        """Has an operation take whole tensors where only the residual stream is cut.

        Raises:
            CutError: if a layer's features are.
        """
        gathered: dict[str, Any] = {}
        for value in symbol.flat_proxy_args:
            cut = self._values.cut_of(value)
            if cut is None:
                continue
            if not cut.of_rows:
                raise CutError(_explain(symbol, name, value, cut, self._line))
            gathered[value.name] = self._values.gather(value, partial=False)
        self._keep(symbol, gathered)

    def _keep(self, symbol: Any, instead: Mapping[str, Any]) -> None:
        """Writes a bound symbol as it is, with what stands for the values that it takes."""
        from fusioncache.thunder_adapter.api import variableify

        now = {value.name: instead.get(value.name, self._values.now(value)) for value in symbol.flat_proxy_args}
        changed = {variableify(value): now[value.name] for value in symbol.flat_proxy_args}
        changed = {variable: new for variable, new in changed.items() if variable.proxy is not new}
        self._trace.scopes[-1].append(symbol.from_bsym_swap_proxies(changed, skip_output=bool(instead)))

    def _return(self, symbol: Any) -> None:
        """Returns whole tensors.

        Raises:
            CutError: if a layer's features are cut.
        """
        from fusioncache.thunder_adapter.api import tree_map

        (returned,) = symbol.args
        outputs = tree_map(self._whole, returned["output"])
        arguments = [self._values.now(value) for value in returned["flat_args"]]
        new = {**returned, "output": outputs, "flat_args": arguments}
        self._trace.scopes[-1].append(symbol.from_bsym(args=(new,)))

    def _whole(self, value: Any) -> Any:
        cut = self._values.cut_of(value)
        if cut is None:
            return self._values.now(value)
        if not cut.of_rows:
            raise CutError(
                f"the model returns what {cut.layer} gives, of which each rank has a part; name {cut.layer} among the "
                "gathered layers, or the layer that takes this among the row layers"
            )
        return self._values.gather(value, partial=False)


def _line_of(symbol: Any) -> str:
    if symbol.source_filename is None or symbol.source_positions is None:
        return ""
    return f"{symbol.source_filename}:{symbol.source_positions.lineno}"


def _explain(symbol: Any, name: str, value: Any, cut: Cut, line: str) -> str:
    """Returns why an operation cannot be computed in parts."""
    where = f" in {line}" if line else ""
    start = f"{cut.layer} is cut, and each rank has a part of dimension {cut.dim} of {tuple(value.shape)}"
    if name == "prims.slice_prim":
        return (
            f"{start}, of which a part is taken{where} that lies on some ranks only. A layer that gives several things "
            "at once, such as queries, keys and values, cannot be cut: give each a layer of its own"
        )
    if name == "prims.reshape":
        return f"{start}, which gets the shape {tuple(symbol.flat_proxy_outs[0].shape)}{where}, that they cannot share"
    return f"{start}, which {name.rpartition('.')[2]}{where} cannot take in parts"
