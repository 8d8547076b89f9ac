"""Whether two blocks that were both interpreted came out alike: whether the second is what the first foretells."""

from __future__ import annotations

import re
from typing import Any

from fusioncache.accelerators.layers import origins
from fusioncache.accelerators.layers.likeness import Likeness
from fusioncache.accelerators.layers.recording import Recording
from fusioncache.accelerators.layers.stamping import describe_value, find_reads, is_proxy, pair_all
from fusioncache.ir.errors import Declined, Scope

_COUNTED = re.compile(r"(\D+)(\d+)")


class Agreement:
    """Compares what happened for two blocks, and keeps which names and which origins correspond."""

    def __init__(self, one: Recording, other: Recording) -> None:
        """Takes what was interpreted first, and what came after it."""
        self._one, self._other = one, other
        self._shift = other.start.names - one.start.names
        self._names: dict[str, str] = {}
        self._origins: dict[int, Any] = {id(one.root): other.root}
        for mine, theirs in pair_all(one.args, other.args):
            self._origins[id(mine.provenance)] = theirs.provenance
            if is_proxy(mine.value):
                self._names[mine.value.name] = theirs.value.name

    def check(self, likeness: Likeness) -> None:
        """Checks everything.

        Raises:
            Declined: if something is not what it should be.
        """
        one, other = self._one, self._other
        if one.counts != other.counts or len(one.reads) != len(other.reads) or one.source != other.source:
            raise Declined("two similar blocks were interpreted differently", Scope.BLOCK)
        values = find_reads(one, other.module, likeness)
        for mine, theirs, value in zip(one.reads, other.reads, values, strict=True):
            same = value is theirs.value or (type(value) is type(theirs.value) and repr(value) == repr(theirs.value))
            if not same or (mine.symbols, mine.names) != (theirs.symbols, theirs.names):
                raise Declined("two similar blocks were read in another order", Scope.BLOCK)
            self._compare_origins(mine.origin, theirs.origin)
            self._compare_new(mine.proxy, theirs.proxy, named=True)
        for mine, theirs in zip(one.symbols, other.symbols, strict=True):
            self._compare_symbols(mine, theirs)
        self._compare_results(one.result, other.result)

    def _compare_origins(self, one: Any, other: Any) -> None:
        pending = [(one, other)]
        while pending:
            mine, theirs = pending.pop()
            if id(mine) in self._origins:
                if self._origins[id(mine)] is not theirs:
                    raise Declined("two similar blocks were read in different ways", Scope.BLOCK)
                continue
            self._origins[id(mine)] = theirs
            if mine is theirs:
                continue
            if _describe_origin(mine) != _describe_origin(theirs) or len(mine.inputs) != len(theirs.inputs):
                raise Declined("two similar blocks were read in different ways", Scope.BLOCK)
            pending.extend(zip(mine.inputs, theirs.inputs, strict=True))

    def _compare_symbols(self, one: Any, other: Any) -> None:
        if one.sym is not other.sym or one.header != other.header or one.tags != other.tags:
            raise Declined("two similar blocks called other symbols", Scope.BLOCK)
        if (one.source_filename, one.source_positions) != (other.source_filename, other.source_positions):
            raise Declined("two similar blocks called symbols in other lines", Scope.BLOCK)
        self._compare_values((one.args, one.kwargs), (other.args, other.kwargs), new=False)
        if len(one.subsymbols) != len(other.subsymbols):
            raise Declined("two similar blocks called other symbols", Scope.BLOCK)
        for mine, theirs in zip(one.subsymbols, other.subsymbols, strict=True):
            self._compare_symbols(mine, theirs)
        self._compare_values(one.output, other.output, new=True)

    def _compare_values(self, one: Any, other: Any, *, new: bool) -> None:
        from fusioncache.thunder_adapter.api import Proxy, tree_flatten

        (ones, one_spec), (others, other_spec) = tree_flatten(one), tree_flatten(other)
        if one_spec != other_spec:
            raise Declined("two similar blocks called symbols with other values", Scope.BLOCK)
        for mine, theirs in zip(ones, others, strict=True):
            if describe_value(mine) != describe_value(theirs):
                raise Declined("two similar blocks called symbols with other values", Scope.BLOCK)
            if isinstance(mine, Proxy) and new:
                self._compare_new(mine, theirs)
            elif isinstance(mine, Proxy) and self._names.get(mine.name, mine.name) != theirs.name:
                raise Declined("two similar blocks called symbols with other values", Scope.BLOCK)

    def _compare_new(self, one: Any, other: Any, *, named: bool = False) -> None:
        if one.name in self._names:
            if self._names[one.name] != other.name:
                raise Declined("two similar blocks gave other names", Scope.BLOCK)
            return
        counted, theirs = _COUNTED.fullmatch(one.name), _COUNTED.fullmatch(other.name)
        if counted and theirs:
            if (counted[1], int(counted[2]) + self._shift) != (theirs[1], int(theirs[2])):
                raise Declined("two similar blocks gave other names", Scope.BLOCK)
        elif not named:
            raise Declined("two similar blocks gave other names", Scope.BLOCK)
        self._names[one.name] = other.name

    def _compare_results(self, one: Any, other: Any) -> None:
        if type(one.value) is not type(other.value) or one.has_item_tracking != other.has_item_tracking:
            raise Declined("two similar blocks returned something else", Scope.BLOCK)
        self._compare_origins(one.provenance, other.provenance)
        if type(one.value) is tuple:
            for mine, theirs in zip(one.item_wrappers, other.item_wrappers, strict=True):
                self._compare_results(mine, theirs)
        else:
            self._compare_values(one.value, other.value, new=False)


def _describe_origin(origin: Any) -> tuple[Any, ...]:
    value = origin.value
    if not isinstance(value, int | float | str | None):
        value = id(value)
    shown = (type(value), repr(value)) if origins.name_of(origin.inst) == "CONSTANT" else ()
    return origins.name_of(origin.inst), origin.output_idx, repr(origin.output_key), origin.ext_flag, shown
