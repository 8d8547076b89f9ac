"""Whether two sequences hold the very same objects, told without a question to any of them.

``==`` asks objects that differ whether they are equal, which runs code of anybody. ``is`` asks nobody, but takes 20 to
50 nanoseconds for each, and a key compares 300,000 objects. CPython keeps the addresses of a list's objects in one
piece of memory. As both lists keep theirs alive, they are of the same objects if and only if these pieces are equal,
which C's ``memcmp`` tells in a twentieth of the time. Nothing is read from the objects, or written to the lists.

Where lists are laid out in another way, as in a debug build, objects are compared one by one.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from operator import is_
from typing import Any


class ListLayout(ctypes.Structure):
    """How CPython lays out a list: ``PyListObject`` in its ``Include/cpython/listobject.h``."""

    _fields_ = (
        ("references", ctypes.c_ssize_t),
        ("kind", ctypes.c_void_p),
        ("length", ctypes.c_ssize_t),
        ("addresses", ctypes.c_void_p),
        ("room", ctypes.c_ssize_t),
    )


_ADDRESS = ctypes.sizeof(ctypes.c_void_p)

Compare = Callable[[Any, Any, int], int]


def are_same(some: Sequence[Any], others: Sequence[Any]) -> bool:
    """Tells whether two sequences are of the very same objects, in the same order.

    Args:
        some: a sequence; a list is compared fastest. Nobody changes it meanwhile.
        others: likewise.
    """
    if len(some) != len(others):
        return False
    if COMPARE_MEMORY is None or type(some) is not list or type(others) is not list:
        return all(map(is_, some, others))
    # Both are in this frame, and so alive.
    one, other = ListLayout.from_address(id(some)), ListLayout.from_address(id(others))
    return COMPARE_MEMORY(one.addresses, other.addresses, len(some) * _ADDRESS) == 0


def find_comparison() -> Compare | None:
    """Returns ``memcmp``; None if lists are not laid out as it is thought here, or if nobody may look at memory."""
    try:
        compare = ctypes.PyDLL(None)["memcmp"]  # which leaves Python's lock where it is: no other thread runs meanwhile
        compare.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
        is_known = sys.implementation.name == "cpython" and list.__basicsize__ == ctypes.sizeof(ListLayout)
        return compare if is_known and all(map(_is_laid_out, ([], [None], [*range(1000)]))) else None
    except Exception:  # another platform, or a hook that audits and forbids it
        return None


def _is_laid_out(known: list[Any]) -> bool:
    """Tells whether a list is laid out as it is thought here."""
    found = ListLayout.from_address(id(known))
    if (found.kind, found.length) != (id(list), len(known)) or found.room < len(known):
        return False
    addresses = (ctypes.c_void_p * len(known)).from_address(found.addresses) if known else ()
    return [*addresses] == [*map(id, known)]


COMPARE_MEMORY = find_comparison()
"""Compares two pieces of memory; None where objects are compared one by one."""
