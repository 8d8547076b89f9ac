"""Records Thunder's reads while it interprets a function, and compares them with the values at a later time."""

from same_traces import stop_at_first

from fusioncache.accelerators.programs.describe import Describer
from fusioncache.accelerators.programs.recorder import Recorder
from fusioncache.accelerators.programs.text import find_difference


def describe_key(function):
    """Returns a describer that has walked a function, as for the key of its program."""
    describer = Describer()
    list(describer.walk("model", function))
    return describer


def record(function, *args):
    """Returns the recorder that was active while a call was traced."""
    recorder = Recorder(describe_key(function))

    def interpret(own, *given):
        with recorder.observing():
            own(*given)

    stop_at_first(interpret, function, *args)
    return recorder


def compare(reads, function):
    """Returns kind and name of the first read whose value differs now; None if none does."""
    found = find_difference(reads, describe_key(function))
    return None if found is None else f"{found.read.kind} {found.read.name}"
