"""The texts of values that are nothing but what they say: numbers, strings, dtypes, and names of all kinds.

Two such values have equal texts if and only if they are of one type and equal to the last bit: 1, 1.0 and True differ,
and so do 0.0 and -0.0; NaN equals itself. Only exact types are here, so that no code of a subclass runs.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from typing import Any

import torch

from fusioncache.program.introspection import by_identity

LONGEST = 200
"""Characters of the longest string that is written out. A longer one is written as its hash."""

_PLAIN_NAME = re.compile(r"[\w.<>\-]+")
_SECRET = re.compile(r"(?i)secret|passw|credential|api_?key|access_?key|private_?key|auth|(^|_)token($|_)|(^|_)key$")


def digest(text: str) -> str:
    """Returns the hash of a text that stands for it."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def write_name(name: object) -> str:
    """Returns a name of a class, a function or a module as it is if it is a plain one, else quoted."""
    if type(name) is str and _PLAIN_NAME.fullmatch(name):
        return name
    return write_string(name) if type(name) is str else "(unnamed)"


_module_of = type.__dict__["__module__"].__get__
_qualified_name_of = type.__dict__["__qualname__"].__get__


def write_class_name(cls: type) -> str:
    """Returns module and qualified name of a class, without asking its metaclass."""
    return f"{write_name(_module_of(cls))}.{write_name(_qualified_name_of(cls))}"


def is_of_module(cls: type, module: str) -> bool:
    """Returns whether a class says that it is of a module or of one below it."""
    return write_class_name(cls).startswith(f"{module}.")


def may_be_secret(name: str) -> bool:
    """Returns whether the string that goes by a name may be one that is not to be written out."""
    return _SECRET.search(name) is not None


def hash_string(value: str) -> str:
    """Returns what stands for a string that is long or may be secret."""
    return f"str of {len(value)} characters, hash {digest(value)}"


def write_string(value: str) -> str:
    """Returns a string in quotes, or its hash if it is long."""
    return repr(value) if len(value) <= LONGEST else hash_string(value)


def _write_bytes(value: bytes) -> str:
    if len(value) <= LONGEST:
        return repr(value)
    return f"bytes of {len(value)}, hash {hashlib.sha256(value).hexdigest()[:32]}"


def _write_integer(value: int) -> str:
    return repr(value) if value.bit_length() <= 1024 else hex(value)  # Python refuses very long ones in decimal


def _write_complex(value: complex) -> str:
    return f"complex({value.real!r}, {value.imag!r})"


LITERALS: dict[int, Callable[[Any], str]] = by_identity(
    (type(None), repr),
    (bool, repr),
    (int, _write_integer),
    (float, repr),
    (complex, _write_complex),
    (str, write_string),
    (bytes, _write_bytes),
    (type(Ellipsis), repr),
    (type(NotImplemented), repr),
    (torch.dtype, repr),
    (torch.device, repr),
    (torch.layout, repr),
    (torch.memory_format, repr),
    (torch.qscheme, repr),
)
"""What writes a value, by the identity of its type."""
