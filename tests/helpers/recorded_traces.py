"""Checks that a trace that would be reused is the one that Thunder would make: the same, to the letter."""

import contextlib
from collections import Counter
from unittest import mock

import thunder
import torch

from fusioncache.program.describe import Describer
from fusioncache.program.reads import find_difference
from fusioncache.program.recorder import Recorder
from fusioncache.program.refusal import NotKept, NoValue


class Watch:
    """Records every trace, and compares it with all earlier ones that it might have been.

    Attributes:
        outcomes: how many traces were kept, reused, and refused for which reason.
        wrong: what would have been reused, although Thunder made something else.
    """

    def __init__(self):
        self.outcomes = Counter()
        self.wrong = []
        self._kept = {}
        self._own = thunder.thunder_general_jit

    @contextlib.contextmanager
    def watching(self):
        """Watches what Thunder traces meanwhile."""
        with mock.patch.object(thunder, "thunder_general_jit", self._trace):
            yield self

    def _trace(self, function, args, kwargs, /, **options):
        key, describer = describe_call(function, args, kwargs)
        found = [earlier for reads, earlier in self._kept.get(key, ()) if fits(reads, function, args, kwargs)]
        with Recorder(describer) as recorder:
            made = self._own(function, args, kwargs, **options)
        # Only those that are compared are printed: Thunder counts on when it prints the name of an object.
        pairs = [(print_traces(earlier), print_traces(made)) for earlier in found]
        self.wrong += [(one, other) for one, other in pairs if one != other]
        self.outcomes["reused" if found else "not reused"] += 1
        try:
            if key is None:
                raise NotKept("the key has no value")
            self._kept.setdefault(key, []).append((recorder.reads(), made))
            self.outcomes["kept"] += 1
        except NotKept as reason:
            self.outcomes[str(reason)] += 1
        return made


def print_traces(made):
    """Returns all that Thunder made, as text."""
    return "\n".join(map(str, (made.prologue_trace, made.computation_trace, made.epilogue_trace)))


def describe_call(function, args, kwargs):
    """Returns what must be equal before reads are compared, and what has described it; None if it has no value."""
    describer = Describer()
    state = (
        torch.get_default_dtype(), torch.get_default_device(), torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"),
    )  # fmt: skip
    options = vars(thunder.core.compile_data.get_compile_data())
    try:
        lines = [*describer.walk("model", function), *describer.walk("args", args), *describer.walk("kwargs", kwargs)]
    except NoValue:
        return None, describer
    return (*lines, *describer.classes.items(), repr(state), repr(options["cache_option"])), describer


def fits(reads, function, args, kwargs):
    """Tells whether everything that was read is so still."""
    return find_difference(reads, describe_call(function, args, kwargs)[1]) is None
