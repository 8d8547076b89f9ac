"""What a forward trace hands over to its backward trace.

Thunder 0.2.6 gives a transform the forward trace and, once that is done, the backward trace, in two calls with no
argument that leads from one to the other. The two traces share one object, however: ``trace.names``, the set of the
names in use, which every trace that is derived from another one takes over. So a backward trace is recognized by that
set, whatever else is compiled meanwhile, on this thread or on another one. A foreign transform may have
given its traces sets of their own: then the forward trace is the last one of the compilation that is going on.

A context is kept for as long as Thunder keeps the forward trace. Nothing stays behind of a forward trace whose backward
trace never comes, because there is none or because something failed in between.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from fusioncache.process import forks
from fusioncache.transform.passes import TraceContext
from fusioncache.transform.provenance.source import current_forward_trace


class Handover:
    """The contexts of the forward traces whose backward traces are still to come."""

    def __init__(self) -> None:
        self._contexts: WeakKeyDictionary[Any, TraceContext] = WeakKeyDictionary()
        self._lock = forks.lock()

    def put(self, forward_trace: Any, context: TraceContext) -> None:
        """Keeps the context of a forward trace, which Thunder is about to be given, for its backward trace."""
        with self._lock:
            self._contexts[forward_trace] = context

    def take(self, backward_trace: Any) -> TraceContext | None:
        """Returns the context of the forward trace of this backward trace, once; None if that is not known."""
        with self._lock:
            for forward_trace in list(self._contexts):
                if forward_trace.names is backward_trace.names:
                    return self._contexts.pop(forward_trace)
            last = current_forward_trace()
            return None if last is None else self._contexts.pop(last, None)
