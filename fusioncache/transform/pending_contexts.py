"""Passes the context of a forward trace to its backward trace.

Thunder 0.2.6 calls a transform with the forward trace and later with the backward trace, and no argument connects the
two calls. However, the two traces share one object: ``trace.names``, the set of the names in use, which each derived
trace inherits. So a backward trace is recognized by it, despite compilations in between on any thread. A
foreign transform may have given its traces other sets. Then the forward trace is the last of the current compilation.

A context lives as long as Thunder holds the forward trace. So nothing is left over if the backward trace never comes,
because the function has no gradients or a failure came in between.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from fusioncache.process import forks
from fusioncache.transform.passes import TraceContext
from fusioncache.transform.provenance.source import current_forward_trace


class PendingContexts:
    """The contexts of forward traces whose backward traces have not come yet."""

    def __init__(self) -> None:
        self._contexts: WeakKeyDictionary[Any, TraceContext] = WeakKeyDictionary()
        self._lock = forks.lock()

    def put(self, forward_trace: Any, context: TraceContext) -> None:
        """Stores the context of a forward trace, as Thunder will receive it, for its backward trace."""
        with self._lock:
            self._contexts[forward_trace] = context

    def take(self, backward_trace: Any) -> TraceContext | None:
        """Removes and returns the context of the forward trace of a backward trace; None if not known."""
        with self._lock:
            for forward_trace in list(self._contexts):
                if forward_trace.names is backward_trace.names:
                    return self._contexts.pop(forward_trace)
            last = current_forward_trace()
            return None if last is None else self._contexts.pop(last, None)
