"""Traces processed operation by operation, each new one copied once, and proxies to be exchanged found by their names.

Thunder copies each new operation, with all that it consists of, to exchange proxies, and then once more to say where in
the source it comes from. It makes a variable of each proxy to ask whether it is to be exchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from itertools import islice
from typing import Any

from fusioncache.tracing.passes.symbols import make_swap
from fusioncache.tracing.replacement import Replacement, is_known

_SWAP = "141fed327baf5ac4"
"""The source of the method that exchanges proxies."""


def replacements() -> tuple[Replacement, ...]:
    """Returns what this group of shortcuts replaces: nothing if proxies are exchanged in another way than the known."""
    from thunder.core.symbol import BoundSymbol
    from thunder.core.trace_interpreter import TraceSubstitutionProcessor

    own = BoundSymbol.from_bsym_swap_proxies
    if not is_known(getattr(own, "__wrapped__", own), _SWAP):
        return ()
    return (Replacement(TraceSubstitutionProcessor, "__call__", "7e8bd578c80eb8ce", shorten_processing),)


class _Names:
    """The names of the variables in a map to which more and more are added."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._map: Any = None
        self._count = 0

    def read(self, swap_map: Any) -> set[str]:
        """Returns the names of the variables that are in the map now."""
        if swap_map is not self._map or len(swap_map) < self._count:
            self._names, self._map, self._count = set(), swap_map, 0
        if len(swap_map) > self._count:
            added = islice(reversed(swap_map), len(swap_map) - self._count)
            self._names.update([each.proxy.name for each in added])
            self._count = len(swap_map)
        return self._names


def shorten_processing(original: Callable[..., Any]) -> Callable[..., Any]:
    """Goes through a trace as Thunder does, with one copy of each new operation."""
    from thunder.core import trace_interpreter
    from thunder.core.baseutils import sequencify
    from thunder.core.pytree import tree_map
    from thunder.core.trace import tracectx

    copy = _make_copy()

    @wraps(original)
    def __call__(self: Any) -> Any:
        names = _Names()
        with tracectx(self.new_trace):
            self.unprocessed_bsyms = self.trace.bound_symbols[:]
            self.swap_map = {}
            while self.unprocessed_bsyms:
                bsym = self.unprocessed_bsyms.pop(0)
                if self.have_processed_args and bsym.sym.id in trace_interpreter.trace_interpreter_skip_list:
                    self.new_trace.bound_symbols.append(bsym.from_bsym())
                    continue
                self.replacement_result, self.new_bsyms = self.NULL, []
                self.process_bsym(bsym)
                if self.replacement_result is not self.NULL:
                    replace(self, bsym, names)
                else:
                    assert not self.new_bsyms, "Need to call set_result if producing new bsyms"
        return self.new_trace, tree_map(self.read, self.trace.output)

    def replace(self: Any, bsym: Any, names: _Names) -> None:
        old, new = sequencify(bsym.output), sequencify(self.replacement_result)
        if bsym.output is not self.replacement_result:  # or nothing is to be exchanged
            pair = (old, new) if self.new_bsyms else (new, old)
            trace_interpreter.safe_map_flat(self.add_to_swap_map, *map(list, pair))
        for each in self.new_bsyms:
            self.new_trace.bound_symbols.append(copy(each, bsym, self.swap_map, names.read(self.swap_map)))
        result = sequencify(tree_map(self.do_swap, self.replacement_result))
        trace_interpreter.safe_map_flat(self.write, list(old), list(result))

    return __call__


def _make_copy() -> Callable[[Any, Any, Any, set[str]], Any]:
    from thunder.core.symbol import BoundSymbol

    swap = make_swap()

    def copy(new: Any, old: Any, swap_map: Any, names: set[str]) -> Any:
        """Returns a new operation with other proxies, and the place in the source of that which it stands in for."""
        place = {"source_filename": old.source_filename, "source_positions": old.source_positions}
        if type(new) is not BoundSymbol or new.sym._bind_postprocess:
            return new.from_bsym_swap_proxies(swap_map).from_bsym(**place)
        return exchange(new, swap_map, names, place) if swap_map else new.from_bsym(**place)

    def exchange(bsym: Any, swap_map: Any, names: set[str], place: dict[str, Any]) -> Any:
        if type(bsym) is not BoundSymbol:
            return bsym.from_bsym_swap_proxies(swap_map)
        return bsym.from_bsym(
            args=swap(bsym.args, swap_map, names),
            kwargs=swap(bsym.kwargs, swap_map, names),
            output=swap(bsym.output, swap_map, names),
            subsymbols=[exchange(each, swap_map, names, {}) for each in bsym.subsymbols],
            **place,
        )

    return copy
