"""Names things by where they are defined: the same text in each process with the same sources, and quick to write.

Thunder's tables hold thousands of functions. To digest the code of each would take longer than all else in a key, and
would say nothing that the digest of Thunder's sources does not say (``versions.py``): a code object that comes from one
of those sources is named by file, line and name. What could have been put there since is named as well: the defaults,
the closure and the attributes of each function, and by its code what was written elsewhere.
"""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
import types
import zlib
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from enum import Enum
from functools import cache
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fusioncache.program.describe import Describer

_PACKAGES = frozenset({"thunder", "torch", "fusioncache", "nvfuser", "nvfuser_direct", "networkx", "numpy", "optree"})
"""Those of which the versions are in each key, beside Python's own modules."""

_PLAIN = frozenset({type(None), bool, int, float, complex, bytes, type(...), type(NotImplemented)})
_LONGEST_TEXT = 200


class Definitions:
    """Names of values, each made once. The values are kept alive with them, as an id may be given away again.

    Args:
        describer: describes what was written by somebody else.
    """

    def __init__(self, describer: Describer):
        self._describer = describer
        self._names: dict[int, tuple[Any, str]] = {}
        self._files: dict[str, str] = {}
        self._places: dict[int, str] = {}
        self._makers = self._list_makers()

    def name(self, value: Any) -> str:
        """Returns the name of a value: a line of text.

        Raises:
            NoValue: if it is of somebody else, and cannot be described.
        """
        known = self._names.get(id(value))
        if known is not None:
            return known[1]
        kind = type(value)
        if kind in _PLAIN:
            return f"{kind.__name__}:{value!r}"
        if kind is str:
            return repr(value) if len(value) <= _LONGEST_TEXT else self._describer.describe(value)
        # What leads back to a value, on the way to its name, names it by its class.
        self._names[id(value)] = value, f"^{kind.__name__}"
        name = (self._makers.get(kind) or self._find_maker(kind))(value)
        self._names[id(value)] = value, name
        return name

    def is_foreign(self, value: Any) -> bool:
        """Tells whether a function or a class was written by somebody else."""
        if isinstance(value, FunctionType):
            return not self._place_code(value.__code__)
        return isinstance(value, type) and not _is_ours(value.__module__)

    def _list_makers(self) -> dict[type, Callable[[Any], str]]:
        return {
            FunctionType: self._name_function,
            MethodType: lambda value: f"{self.name(value.__func__)} of {self.name(value.__self__)}",
            ModuleType: lambda value: f"module {value.__name__}",
            CellType: lambda value: self.name(_content_of(value)),
            ContextVar: lambda value: f"variable {value.name}",
            staticmethod: lambda value: f"static {self.name(value.__func__)}",
            classmethod: lambda value: f"class {self.name(value.__func__)}",
            property: lambda value: "property" + self._name_all("(", (value.fget, value.fset, value.fdel)),
            functools.cached_property: lambda value: f"cached {self.name(value.func)}",
            functools.partial: self._name_partial,
            types.BuiltinFunctionType: self._name_builtin,
            **dict.fromkeys(_DESCRIPTORS, _place_of),
            **dict.fromkeys((tuple, list), self._name_sequence),
            **dict.fromkeys((set, frozenset), self._name_set),
        }

    def _find_maker(self, kind: type) -> Callable[[Any], str]:
        """Returns what names a value of a class that is in no list."""
        from thunder.core.symbol import Symbol
        from thunder.extend import Executor

        if issubclass(kind, type):
            return self._name_class
        if issubclass(kind, Executor):
            # What it can do is in the options of a program that uses it.
            return lambda value: f"executor {_place_of(kind)}"
        if issubclass(kind, Symbol):
            return self._name_symbol
        if issubclass(kind, Enum):
            return lambda value: f"{_place_of(kind)}.{value.name}"
        if issubclass(kind, dict):
            return self._name_mapping
        return self._name_object

    def _name_function(self, function: FunctionType) -> str:
        names: list[str] = []
        wrapped: Any = function
        while type(wrapped) is FunctionType:
            code = wrapped.__code__
            place = self._places.get(id(code)) or self._place_code(code)
            if not place:
                return " of ".join([*names, self._describer.describe_function(wrapped)])
            if wrapped.__defaults__:
                place += self._name_all(" =", wrapped.__defaults__)
            if wrapped.__kwdefaults__:
                place += self._name_items(" =", wrapped.__kwdefaults__)
            names.append(place)
            function, wrapped = wrapped, wrapped.__dict__ and wrapped.__dict__.get("__wrapped__")
        if wrapped:
            names.append(self.name(wrapped))
        elif function.__closure__:
            names[-1] += self._name_all(" ^", map(_content_of, function.__closure__))
        return " of ".join(names)

    def _place_code(self, code: CodeType) -> str:
        """Returns where a code object stands in the sources; empty if that is somebody else's."""
        file = self._files.get(code.co_filename)
        if file is None:
            file = self._files[code.co_filename] = _shorten_file(code.co_filename)
        text = f"{file}:{code.co_firstlineno}:{code.co_qualname}" if file else ""
        if file and code.co_name == "<lambda>":
            # There may be another one in the same line.
            text += f" {zlib.crc32(code.co_code):x} {' '.join(code.co_names)}"
        self._places[id(code)] = text
        return text

    def _name_class(self, value: type) -> str:
        return self._describer.describe_class(value) if self.is_foreign(value) else _place_of(value)

    def _name_symbol(self, symbol: Any) -> str:
        """Returns the name of a symbol: what it is called, and the functions that say what it does in a trace."""
        place = getattr(symbol._module, "__name__", None)
        plain = f"{symbol.name} {symbol.is_prim} {symbol.is_fusion} {symbol._print_as_impl} {place}"
        parts = (symbol.id, symbol.tags, symbol.executor, symbol.meta, symbol.python_printer, symbol.python_impl)
        return f"symbol {plain} {' '.join([self.name(part) for part in parts if part is not None])}"

    def _name_partial(self, value: functools.partial[Any]) -> str:
        given = self._name_all("(", value.args) + self._name_items("*", value.keywords)
        return f"partial {self.name(value.func)}{given}"

    def _name_builtin(self, value: types.BuiltinFunctionType) -> str:
        owner = value.__self__
        if owner is None or isinstance(owner, ModuleType) or type(owner).__module__.startswith("pybind11"):
            return f"{value.__module__}.{value.__qualname__.rpartition('.')[2]}" if owner else _place_of(value)
        return f"{value.__qualname__} of {self.name(owner)}"

    def _name_sequence(self, value: Iterable[Any]) -> str:
        return type(value).__name__ + self._name_all("(", value)

    def _name_set(self, value: Iterable[Any]) -> str:
        return f"{type(value).__name__}({', '.join(sorted(map(self.name, value)))})"

    def _name_mapping(self, value: Mapping[Any, Any]) -> str:
        pairs = sorted(f"{self.name(key)}: {self.name(item)}" for key, item in list(value.items()))
        return f"{_place_of(type(value))}({', '.join(pairs)})"

    def _name_object(self, value: Any) -> str:
        """Returns the name of an object of a known class: the class, and the attributes that Python code gave it."""
        kind = type(value)
        if not _is_ours(kind.__module__):
            return self._describer.describe(value)
        own = getattr(value, "__dict__", None)
        return _place_of(kind) + (self._name_items("@", own) if isinstance(own, dict) else "")

    def _name_all(self, sign: str, values: Iterable[Any]) -> str:
        return f"{sign}({', '.join(map(self.name, values))})"

    def _name_items(self, sign: str, values: Mapping[str, Any]) -> str:
        # The hash that a symbol remembers is another one in each process.
        return f"{sign}({', '.join([f'{key}={self.name(item)}' for key, item in values.items() if key != '_hash'])})"


_DESCRIPTORS = (
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.ClassMethodDescriptorType,
)


def _content_of(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return NotImplemented


def _place_of(value: Any) -> str:
    """Returns module and name of a class or of a function written in C."""
    owner = getattr(value, "__objclass__", None)
    module = getattr(owner or value, "__module__", None)
    return f"{module}.{value.__qualname__}"


def _is_ours(module: str) -> bool:
    package = module.partition(".")[0]
    return package in _PACKAGES or package in sys.stdlib_module_names


def _shorten_file(file: str) -> str:
    folders = _list_folders()
    return next((f"{name}/{file[len(folder) :]}" for name, folder in folders if file.startswith(folder)), "")


@cache
def _list_folders() -> tuple[tuple[str, str], ...]:
    """Returns the folder of each package, and those of Python's own modules. Packages may lie in a folder of those."""
    packages = [(name, sys.modules[name].__file__) for name in sorted(_PACKAGES & sys.modules.keys())]
    library = sysconfig.get_path("stdlib")
    own = [(f"python/{name}", os.path.join(library, name)) for name in sorted(sys.stdlib_module_names)]
    return (
        *((name, os.path.dirname(file) + os.sep) for name, file in packages if file),
        *((name, path + os.sep) for name, path in own if os.path.isdir(path)),
        *((name, path + ".py") for name, path in own),
    )
