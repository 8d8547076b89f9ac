"""Where code and classes are defined, and who wrote them: what is named by its place has its sources in each key."""

from __future__ import annotations

import marshal
import os
import sys
import sysconfig
import zlib
from functools import cache
from types import CodeType
from typing import Any

LIBRARIES = ("einops", "lightning_utilities", "looseversion", "networkx", "numpy", "optree")
"""Packages whose code Thunder runs, or has for base classes, while it derives a program. It imports einops if that is
installed."""

_PACKAGES = frozenset({"thunder", "torch", "fusioncache", "nvfuser", "nvfuser_direct", *LIBRARIES})
"""Those of which the versions are in each key, beside Python's own modules."""


def place_of(value: Any) -> str:
    """Returns module and name of a class or of a function written in C."""
    owner = getattr(value, "__objclass__", None)
    module = getattr(owner or value, "__module__", None)
    return f"{module}.{value.__qualname__}"


def is_known(module: str) -> bool:
    """Tells whether a module is one of those packages' or of Python's own."""
    package = module.partition(".")[0]
    return package in _PACKAGES or package in sys.stdlib_module_names


def has_only_attributes(kind: type) -> bool:
    """Tells whether all that there is to an object of a class is in its ``__dict__``, where only Thunder put it."""
    bases = [base for base in kind.__mro__ if base is not object]
    own = all(base.__module__.startswith("thunder.") and not vars(base).get("__slots__") for base in bases)
    return own and kind.__dictoffset__ != 0


def is_generated(file: str, module: str | None) -> bool:
    """Tells whether Python itself made a function: for a dataclass or a named tuple, or from a source in its core."""
    has_module = module is not None and (is_known(module) or module.startswith("namedtuple_"))
    return file.startswith("<frozen ") or (file == "<string>" and has_module)


def shorten_file(file: str) -> str:
    """Returns the path of a source from where its package begins; empty if it is in none of those."""
    folders = _list_folders()
    return next((f"{name}/{file[len(folder) :]}" for name, folder in folders if file.startswith(folder)), "")


@cache
def _list_folders() -> tuple[tuple[str, str], ...]:
    """Returns the folder of each package, and those of Python's own modules. Packages may lie in a folder of those."""
    # The module that stands for nvFuser's old name is in no file.
    packages = [(name, getattr(sys.modules[name], "__file__", None)) for name in sorted(_PACKAGES & sys.modules.keys())]
    library = sysconfig.get_path("stdlib")
    own = [(f"python/{name}", os.path.join(library, name)) for name in sorted(sys.stdlib_module_names)]
    return (
        *((name, os.path.dirname(file) + os.sep) for name, file in packages if file),
        *((name, path + os.sep) for name, path in own if os.path.isdir(path)),
        *((name, path + ".py") for name, path in own),
    )


def sum_code(code: CodeType) -> int:
    """Returns a checksum of a code object: instructions, names and constants, also of those that are nested in it.

    It tells it from one that was put in its place, and a lambda from another one in the same line. To digest all that
    there is to a code object, as is done for those of others, would take ten times as long.

    Raises:
        ValueError: if there is an object among its constants that code does not come with.
    """
    constants = [sum_code(each) if type(each) is CodeType else each for each in code.co_consts]
    # Of this version equal constants have equal bytes: nothing is said of what is shared, and sets are sorted.
    return zlib.crc32(marshal.dumps((code.co_code, code.co_names, constants), 2))
