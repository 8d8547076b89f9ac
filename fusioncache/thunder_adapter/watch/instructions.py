"""What an instruction or a method is about to change, to hash or to compare."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

MUTATING = frozenset({
    "__setitem__", "__delitem__", "append", "clear", "extend", "__iadd__", "__imul__", "insert", "pop", "remove",
    "reverse", "sort", "__init__", "__ior__", "popitem", "setdefault", "update", "move_to_end",
})  # fmt: skip
"""Methods of containers that change them."""

HASHING = frozenset({"BUILD_SET", "BUILD_MAP", "SET_ADD", "MAP_ADD", "SET_UPDATE", "DICT_UPDATE", "DICT_MERGE"})
"""Instructions that let objects answer questions without the interpreter, as to their hash."""

COMPARISONS = frozenset({"IS_OP", "COMPARE_OP"})
"""Instructions that tell one object from another."""

_ITERATED_BY_PYTHON = (list, tuple, set, frozenset, dict, OrderedDict)
_KEYS = (str, int, float, bool, complex, bytes, type(None))


def is_own_cell(name: str, inst: Any, code: Any) -> bool:
    """Tells whether an instruction changes a variable of a closure that belongs to the function itself."""
    return name.endswith("_DEREF") and inst.argval in code.co_cellvars


def find_hashed(name: str, count: int, stack: Any) -> list[Any]:
    """Returns what an instruction is about to take from the stack and to use as a key, or the keys of it."""
    if name in ("BUILD_SET", "BUILD_MAP"):
        step = 1 if name == "BUILD_SET" else 2
        return [stack.getitem_wrapped(-step * (place + 1)).value for place in range(count)]
    if name in ("SET_ADD", "MAP_ADD"):
        return [stack.getitem_wrapped(-1 if name == "SET_ADD" else -2).value]
    taken = stack.getitem_wrapped(-1).value
    return list(taken) if has_type(taken, _ITERATED_BY_PYTHON) else [object()]


def has_type(value: Any, kinds: Iterable[type]) -> bool:
    """Tells whether the very class of a value is one of these: its metaclass may say that it is equal to any."""
    own = type(value)
    return any(own is kind for kind in kinds)


def is_hashed_alone(value: Any) -> bool:
    """Tells whether a key is one of Python's constants, which asks nothing else for a hash."""
    # The hash of a class is that of its metaclass, which Python has in C where it is not overridden.
    if isinstance(value, type):
        return type(value).__hash__ is type.__hash__
    return has_type(value, _KEYS) or (type(value) is tuple and all(map(is_hashed_alone, value)))
