"""A second program of a graph with symbols, derived before anybody asks for it.

Dynamo makes a graph with symbols where a second length comes, or where it was told that many will. What tells the
numbers of its first program apart is a second one. So Thunder derives that behind the first one, at sizes we choose,
and it is proved and kept as any other. Nothing of it is compiled or run: of the tensors that it is derived for nobody
reads a number, and a graph does nothing while it is interpreted, as a function might. The next length is filled in.

Thunder 0.2.6 may end the process where an operation raises in a graph that it interprets, as it interprets how torch.fx
then writes a message. So the operations that the first program called are called again at these sizes before that.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from fusioncache.accelerators.programs.derivation import Derivation
from fusioncache.accelerators.programs.last_key import LastKey
from fusioncache.accelerators.programs.programs import Call
from fusioncache.accelerators.sizes.graph_sizes import has_symbols, vary_sizes
from fusioncache.accelerators.sizes.lengths import Lengths, note_form
from fusioncache.ir.errors import Scope, is_declined

_IS_AHEAD: ContextVar[bool] = ContextVar("fusioncache_ahead", default=False)
_COUNTS = frozenset({"calls", "cache_hits", "cache_misses", "interpreter_cache"})
"""What Thunder counts and keeps of a function. All else that it has is about its last call."""


def is_ahead() -> bool:
    """Tells whether what is derived here is for nobody's call."""
    return _IS_AHEAD.get()


def derive_ahead(first: Derivation, lengths: Lengths, last_key: LastKey) -> None:
    """Has Thunder derive a second program of a graph with symbols, if the first one was derived just now. Never raises.

    Args:
        first: of the program that was derived.
        lengths: what is known of the programs of its function, this one included.
        last_key: what is known of the last key of its function.
    """
    if is_ahead() or not has_symbols(first.call.compile_data.fn) or not lengths.is_first(first):
        return
    try:
        other = _find_other(first, last_key)
        if other is not None:
            lengths.try_again(other)
            _derive(other.call)
    except Exception as error:  # whatever it is, the program is derived at the next length
        reason = str(error) if is_declined(error, Scope.LENGTH) else type(error).__name__
        first.keeper.refuse(f"it is not traced ahead: {reason}")


def _find_other(first: Derivation, last_key: LastKey) -> Derivation | None:
    """Returns the derivation of a program of the same form for other sizes; None if there is none."""
    compiled = first.call.compile_data
    args = None if first.call.kwargs else vary_sizes(compiled.fn, first.call.args)
    if args is None:
        return None
    call = Call(compiled, args, {})
    other = Derivation(first.keeper, call, *first.keeper.describe(call, last_key))
    return other if note_form(other) == first.form else None


def _derive(call: Call) -> None:
    compiled = call.compile_data
    stats = compiled._thunder_module_map[id(compiled.fn)]._lc_cs
    token = _IS_AHEAD.set(True)
    try:
        with _keep_last(compiled, stats):
            compiled.get_computation_and_inputs(*call.args)
    finally:
        _IS_AHEAD.reset(token)


@contextmanager
def _keep_last(compiled: Any, stats: Any) -> Iterator[None]:
    """Has what Thunder knows of a function's last call be what it was."""
    last, has_gradients = dict(vars(stats)), compiled.is_grad_enabled
    try:
        yield
    finally:
        vars(stats).update((name, value) for name, value in last.items() if name not in _COUNTS)
        compiled.is_grad_enabled = has_gradients
