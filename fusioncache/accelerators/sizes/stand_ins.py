"""What stands in for functions of Thunder's while its passes go over a program with symbols for sizes.

All of it is taken out when they are through, and serves other threads meanwhile as Thunder's own does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial, wraps
from types import ModuleType
from typing import Any, Protocol

from fusioncache.accelerators.sizes.sizes import SYMBOLIC, SymbolicFraction, SymbolicSize, to_float
from fusioncache.process import forks
from fusioncache.thunder_adapter.installation import find_replacements
from fusioncache.thunder_adapter.patches import Importers


class Listener(Protocol):
    """Whoever is told of decisions."""

    def decide(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Has something decided for plain sizes, and notes what was decided."""


LISTENER: ContextVar[Listener | None] = ContextVar("fusioncache_passes", default=None)
"""Who is told of the passes that go over a program here."""

_ONE_AT_A_TIME = forks.lock()

# Whoever asks a function for its annotations makes a dictionary of them, once, in the function: that would pass for a
# change where it is watched, and all names would be made anew for the next key.
_wraps = partial(wraps, assigned=("__module__", "__name__", "__qualname__", "__doc__"))


@contextmanager
def know_symbols() -> Iterator[None]:
    """Has functions that passes call know of symbols, as long as its body runs. All others are served as ever."""
    replacements = find_replacements("symbolic passes")
    with _ONE_AT_A_TIME:
        swapped = [(each, old := each.get(), each.make(old)) for each in replacements]
        exchanged = [value for _, *values in swapped for value in values]
        importers = Importers(exchanged)
        for each, old, new in swapped:
            each.swap(old, new, importers)
        try:
            yield
        finally:
            importers = Importers(exchanged)  # a module that was being imported may have taken a stand-in meanwhile
            for each, old, new in swapped:
                each.swap(new, old, importers)


def keep_symbols(original: Callable[..., Any]) -> Callable[..., Any]:
    """Has what is converted to integers stay a symbol, as ``int`` may return nothing but integers."""

    @_wraps(original)
    def tree_map(func: Callable[..., Any], tree: Any, /, *rests: Any, **options: Any) -> Any:
        is_converting = func is int and LISTENER.get() is not None
        return original(_to_integer if is_converting else func, tree, *rests, **options)

    return tree_map


def flatten_symbols(original: Callable[..., Any]) -> Callable[..., Any]:
    """Has a symbol be a tree of one leaf, as a number is that an operation returned."""

    @_wraps(original)
    def tree_flatten(args: Any, **options: Any) -> Any:
        if type(args) not in SYMBOLIC:
            return original(args, **options)
        _, spec = original(0, **options)
        return [args], spec

    return tree_flatten


def _to_integer(value: Any) -> Any:
    return value if isinstance(value, SymbolicSize) else int(value)


def note_decision(original: Callable[..., Any]) -> Callable[..., Any]:
    """Has a decision that depends on sizes noted, so that it is asked for again at others."""

    @_wraps(original)
    def decide(*args: Any, **kwargs: Any) -> Any:
        listener = LISTENER.get()
        if listener is None or kwargs:
            return original(*args, **kwargs)
        return listener.decide(original, args)

    return decide


def count_symbols(original: Callable[..., Any]) -> Callable[..., Any]:
    """Has the number of elements of a tensor be a symbol, which Thunder makes a kind of integer of."""

    @_wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if isinstance(self._numel, SymbolicSize):
            self.numel = self._numel

    return __init__


def know_their_type(original: Callable[..., Any]) -> Callable[..., Any]:
    """Has a symbol be a number where Thunder asks of which class a number is."""

    @_wraps(original)
    def find_type(cls: type) -> Any:
        return original(int if cls is SymbolicSize else float if cls is SymbolicFraction else cls)

    return find_type


def convert_symbols(original: Callable[..., Any]) -> Callable[..., Any]:
    """Has what is converted to a number with a point stay a symbol, as ``float`` may return nothing but floats."""
    from fusioncache.thunder_adapter.accelerator_api import dtype_to_numbertype

    @_wraps(original)
    def maybe_convert_to_dtype(a: Any, dtype: Any, **options: Any) -> Any:
        if type(a) in SYMBOLIC and dtype_to_numbertype(dtype) is float:
            return to_float(a)
        return original(a, dtype, **options)

    return maybe_convert_to_dtype


def ask_no_symbol(original: ModuleType) -> ModuleType:
    """Has no symbol asked whether it is finite."""
    copy = ModuleType(original.__name__, original.__doc__)
    vars(copy).update(vars(original))
    vars(copy)["isfinite"] = lambda value: type(value) in SYMBOLIC or original.isfinite(value)
    return copy
