"""The texts of values that are nothing but what they say: numbers, strings, dtypes, and names of all kinds.

Two such values have equal texts if and only if they are of one type and equal to the last bit: 1, 1.0 and True differ,
and so do 0.0 and -0.0; NaN equals itself. Only exact types are here, so that no code of a subclass runs. Which strings
are written out, ``process/secrets.py`` decides.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch

from fusioncache.accelerators.programs.introspection import by_identity
from fusioncache.process.secrets import TextKind, write_text

_PLAIN_NAME = re.compile(r"[\w.<>\-]+")


def digest(text: str) -> str:
    """Returns the hash of a text that stands for it."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def write_name(name: object) -> str:
    """Returns a name of a class, a function or a module as it is if it is a plain one, else as a text."""
    if type(name) is str and _PLAIN_NAME.fullmatch(name):
        return name
    return write_text(name, TextKind.NAME) if type(name) is str else "(unnamed)"


_module_of = type.__dict__["__module__"].__get__
_qualified_name_of = type.__dict__["__qualname__"].__get__


def write_class_name(cls: type) -> str:
    """Returns module and qualified name of a class, without asking its metaclass."""
    return f"{write_name(_module_of(cls))}.{write_name(_qualified_name_of(cls))}"


def is_of_module(cls: type, module: str) -> bool:
    """Returns whether a class says that it is of a module or of one below it."""
    return write_class_name(cls).startswith(f"{module}.")


def _write_integer(value: int) -> str:
    return repr(value) if value.bit_length() <= 1024 else hex(value)  # Python refuses very long ones in decimal


def _write_complex(value: complex) -> str:
    return f"complex({value.real!r}, {value.imag!r})"


WRITERS: Mapping[type, Callable[[Any], str]] = {
    type(None): repr,
    bool: repr,
    int: _write_integer,
    float: repr,
    complex: _write_complex,
    str: write_text,
    bytes: write_text,
    type(Ellipsis): repr,
    type(NotImplemented): repr,
    torch.dtype: repr,
    torch.device: repr,
    torch.layout: repr,
    torch.memory_format: repr,
    torch.qscheme: repr,
}
"""What writes a value, by its type."""

LITERALS = by_identity(*WRITERS.items())
"""The same, by the identity of the type: the hash of a type may be code of its metaclass."""
