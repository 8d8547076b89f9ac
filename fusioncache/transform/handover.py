"""What a forward trace hands over to its backward trace.

Thunder 0.2.6 gives a transform the forward trace and, once that is done, the backward trace, in two calls with no
argument that leads from one to the other. The two traces share one object, however: ``trace.names``, the set of the
names in use, which every trace that is derived from another one takes over. So a backward trace is recognized by that
set, whatever else is compiled meanwhile, on this thread or on another one. A foreign transform may have
given its traces sets of their own: then the forward trace is the last one of the compilation that is going on.

A state is kept for as long as Thunder keeps the forward trace. Nothing stays behind of a forward trace whose backward
trace never comes, because there is none or because something failed in between.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from fusioncache.cache.generals import Generation
from fusioncache.process import forks
from fusioncache.transform.provenance.source import current_forward_trace
from fusioncache.transform.provenance.trace_notes import TraceNotes


@dataclass(frozen=True, slots=True)
class ForwardState:
    """What is known of a forward trace when its backward trace comes.

    Attributes:
        noted: the forward trace's number, compilation and sources.
        generation: the program that both traces are of, if that is known.
        left: what the passes of the forward trace left, by the name of the pass.
    """

    noted: TraceNotes
    generation: Generation | None = None
    left: Mapping[str, Any] = field(default_factory=dict)


class Handover:
    """The states of the forward traces whose backward traces are still to come."""

    def __init__(self) -> None:
        self._states: WeakKeyDictionary[Any, ForwardState] = WeakKeyDictionary()
        self._lock = forks.lock()

    def put(self, forward_trace: Any, state: ForwardState) -> None:
        """Keeps a state for the backward trace of a forward trace, which Thunder is about to be given."""
        with self._lock:
            self._states[forward_trace] = state

    def take(self, backward_trace: Any) -> ForwardState | None:
        """Returns what the forward trace of this backward trace left, once; None if that is not known."""
        with self._lock:
            for forward_trace in list(self._states):
                if forward_trace.names is backward_trace.names:
                    return self._states.pop(forward_trace)
            last = current_forward_trace()
            return None if last is None else self._states.pop(last, None)
