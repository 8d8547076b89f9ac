"""Records what Thunder reads while it interprets a function, and compares it with what is there later."""

import contextlib
from unittest import mock

import thunder

from fusioncache.accelerators.programs.describe import Describer
from fusioncache.accelerators.programs.recorder import Recorder
from fusioncache.accelerators.programs.text import find_difference


class Interpreted(BaseException):
    """Thunder has interpreted the function; what its passes do is not needed."""


def describe_key(function):
    """Makes a describer that has described what the key of a program of this function is made of."""
    describer = Describer()
    list(describer.walk("model", function))
    return describer


def record(function, *args):
    """Returns the recorder of the trace of a call."""
    recorder = Recorder(describe_key(function))
    own = thunder.thunder_general_jit

    def interpret(*given, **named):
        with recorder:
            own(*given, **named)
        raise Interpreted

    with mock.patch.object(thunder, "thunder_general_jit", interpret), contextlib.suppress(Interpreted):
        thunder.jit(function)(*args)
    return recorder


def compare(reads, function):
    """Returns the kind and the name of the first read that differs now; None if none does."""
    found = find_difference(reads, describe_key(function))
    return None if found is None else f"{found.read.kind} {found.read.name}"
