"""Which objects were made while a trace is made, so that to change them has no effect that lasts.

Thunder's interpreter knows of each value where it comes from: from an instruction that builds a container, from a class
that was called, or from somewhere else. Everything of which it does not say that it is new was there before.
"""

from __future__ import annotations

import types
from typing import Any

_BUILDING = frozenset({
    "BUILD_LIST", "BUILD_MAP", "BUILD_CONST_KEY_MAP", "BUILD_SET", "BUILD_TUPLE", "BUILD_DICT", "NEW", "BINARY_ADD",
    "LIST_TO_TUPLE",
})  # fmt: skip
_GROWING = frozenset({"LIST_APPEND", "LIST_EXTEND"})
"""What Thunder writes over where a list comes from when it has grown."""

_CALLED, _MADE, _FILLED = 1, 2, 3
"""How far the interpreter is with a call of ``list``, which is the only class of which it does not say what is new."""


def name_origin(provenance: Any) -> str:
    """Returns the name of what made a value: one of Python's instructions, or one of Thunder's own."""
    inst = provenance.inst
    return getattr(inst, "opname", None) or str(inst.value)


class Made:
    """The objects that were made in one trace, as far as they were asked for."""

    __slots__ = ("_made", "_step")

    def __init__(self) -> None:
        self._made: dict[int, Any] = {}
        self._step = 0

    def has(self, wrapped: Any) -> bool:
        """Tells whether an object was made in this trace, or nobody can change it."""
        value = wrapped.value
        if id(value) in self._made:
            return True
        provenance = _trace_back(wrapped.provenance)
        if name_origin(provenance) not in _BUILDING and not _is_made_by_new(provenance):
            return False
        self.note(value)
        return True

    def knows(self, value: Any) -> bool:
        """Tells whether it was asked before of an object that was made in this trace."""
        return id(value) in self._made

    def note(self, value: Any) -> None:
        """Notes an object that was made in this trace."""
        self._made[id(value)] = value

    def see_type(self, cls: Any) -> None:
        """Notes that a class is called, which makes an object of it, and fills it."""
        self._step = _CALLED if cls is list else 0

    def see_new_list(self) -> None:
        """Notes that an empty list is made."""
        self._step = _MADE if self._step == _CALLED else 0

    def see_filled_list(self, wrapped: Any, *, is_filled: bool) -> None:
        """Notes that a list that may have just been made is filled from something else, or from nothing."""
        step, self._step = self._step, 0
        if step == _MADE and self._note_fresh(wrapped) and is_filled:
            self._step = _FILLED

    def see_extended_list(self, wrapped: Any) -> None:
        """Notes that a list grows. Thunder fills a new one through another list of its own, which comes first."""
        step, self._step = self._step, 0
        if step == _FILLED:
            self._note_fresh(wrapped)

    def _note_fresh(self, wrapped: Any) -> bool:
        value = wrapped.value
        if type(value) is not list or value or name_origin(wrapped.provenance) != "CONSTANT":
            return False
        self.note(value)
        return True


def _trace_back(provenance: Any) -> Any:
    """Returns where an object is from that has grown since, or was moved on the stack."""
    while True:
        name = name_origin(provenance)
        if name in _GROWING or name == "COPY":
            provenance = provenance.inputs[0]
        elif name == "SWAP" and len(provenance.inputs) == 2:  # the one on top, and the one that comes to lie there
            provenance = provenance.inputs[1 - provenance.output_idx]
        else:
            return provenance


def _is_made_by_new(provenance: Any) -> bool:
    if name_origin(provenance) != "OPAQUE":
        return False
    called = provenance.inputs[0]
    # As in ``super().__new__(cls)``: what Python has in C, as it is not interpreted.
    if name_origin(called) == "LOAD_ATTR":
        return called.inputs[1].value == "__new__"
    fn = called.value
    return fn is types.CellType or (
        isinstance(fn, types.BuiltinFunctionType) and fn.__name__ == "__new__" and isinstance(fn.__self__, type)
    )
