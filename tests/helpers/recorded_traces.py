"""Checks that a trace that would be reused is the one that Thunder would make: the same, to the letter."""

import contextlib
from unittest import mock

import thunder

from benchmarks.equality.traces import describe_call, trace_recorded
from fusioncache.accelerators.programs.text import find_difference
from fusioncache.ir.errors import Declined


class Watch:
    """Records every trace, and compares it with all earlier ones that it might have been.

    Attributes:
        wrong: what would have been reused, although Thunder made something else.
    """

    def __init__(self):
        self.wrong = []
        self._kept = {}
        self._own = thunder.thunder_general_jit

    @contextlib.contextmanager
    def watching(self):
        """Watches what Thunder traces meanwhile."""
        with mock.patch.object(thunder, "thunder_general_jit", self._trace):
            yield self

    def _trace(self, function, args, kwargs, /, **options):
        key, _ = describe_call(function, args, kwargs)
        found = [earlier for reads, earlier in self._kept.get(key, ()) if fits(reads, function, args, kwargs)]
        made, recorder = trace_recorded(self._own, function, args, kwargs, **options)
        # Only those that are compared are printed: Thunder counts on when it prints the name of an object.
        pairs = [(print_traces(earlier), print_traces(made)) for earlier in found]
        self.wrong += [(one, other) for one, other in pairs if one != other]
        if recorder is not None:  # else the key has no value
            with contextlib.suppress(Declined):
                self._kept.setdefault(key, []).append((recorder.reads(), made))
        return made


def print_traces(made):
    """Returns all that Thunder made, as text."""
    return "\n".join(map(str, (made.prologue_trace, made.computation_trace, made.epilogue_trace)))


def fits(reads, function, args, kwargs):
    """True if everything that was read is so still."""
    return find_difference(reads, describe_call(function, args, kwargs)[1]) is None
