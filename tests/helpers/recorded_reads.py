"""Records Thunder's reads while it interprets a function, and compares them with the values at a later time."""

import contextlib
from unittest import mock

import thunder

from fusioncache.accelerators.programs.describe import Describer
from fusioncache.accelerators.programs.recorder import Recorder
from fusioncache.accelerators.programs.text import find_difference


class Interpreted(BaseException):
    """Raised once Thunder has interpreted the function, as its passes are not needed."""


def describe_key(function):
    """Returns a describer that has walked a function, as for the key of its program."""
    describer = Describer()
    list(describer.walk("model", function))
    return describer


def record(function, *args):
    """Returns the recorder that was active while a call was traced."""
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
    """Returns kind and name of the first read whose value differs now; None if none does."""
    found = find_difference(reads, describe_key(function))
    return None if found is None else f"{found.read.kind} {found.read.name}"
