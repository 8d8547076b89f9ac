"""Functions of Thunder's that add to a trace, or say what a tensor is like, and that a model's code calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


def list_parts(tensor: Any) -> tuple[Any, ...]:
    """Returns the parts of a tensor that are gone through where it is unpacked, as in ``q, k, v = tensor``."""
    return tuple(tensor)


class Operations:
    """Knows them, each by what the interpreter sees called."""

    def __init__(self) -> None:
        """Takes them from Thunder."""
        from fusioncache.thunder_adapter.accelerator_api import jit_ext
        from fusioncache.thunder_adapter.api import Symbol, ltorch

        self._symbol = Symbol
        self._tensor = jit_ext.TensorProxy
        self._getter = jit_ext.TensorProxy.__getattr__
        self._known: dict[int, tuple[Any, Callable[..., Any]]] = {}
        for function in jit_ext._clang_fn_set:
            self._add(function, function)
        for function, own in ltorch._torch_to_thunder_function_map.items():
            self._add(function, own)
        for kind in (jit_ext.NumberProxy, jit_ext.TensorProxy):
            for function, own in jit_ext.get_methods_properties(kind):
                self._add(function, own)
        self._add(jit_ext.TensorProxy.__iter__, list_parts)
        for function, own in ((min, jit_ext.clang.minimum), (max, jit_ext.clang.maximum)):
            if function in jit_ext._general_jit_lookaside_map:  # from Thunder 0.2.7 on
                self._add(function, own)

    def _add(self, function: Any, own: Callable[..., Any]) -> None:
        self._known[id(function)] = function, own

    def find(self, function: Any, compiled: Any) -> Callable[..., Any] | None:
        """Returns what is called for a function if that is an operation; None if it is none.

        Args:
            function: what the interpreter sees called.
            compiled: what Thunder knows of what is traced. Its executors may have another operation for it.
        """
        replaced = [own for each, own in compiled.executor_lookasides.items() if each is function]
        if replaced:
            return replaced[0]  # type: ignore[no-any-return]
        if isinstance(function, self._symbol):
            return function  # type: ignore[return-value]
        _, own = self._known.get(id(function), (None, None))
        return own

    def only_finds(self, operation: Callable[..., Any], result: Any) -> bool:
        """Tells whether an operation did nothing but find a method of a tensor."""
        value = getattr(result, "value", None)
        return operation is self._getter and callable(value) and not isinstance(value, int)

    def adds_up(self, function: Any, values: Sequence[Any]) -> bool:
        """Tells whether Python's ``sum`` is called with tensors. It calls their additions itself, which nobody sees."""
        items = values[0] if function is sum and values else ()
        return type(items) in (list, tuple) and any(isinstance(each, self._tensor) for each in items)
