"""The ingredient ``function map``: Thunder's replacement of each torch function, and the contents of its modules.

Thunder does not interpret its own functions, so nothing records their reads. So its modules are described as a whole:
tables of functions, lookasides and rules of differentiation, flags, and each function and class. Anything that other
code adds or removes there changes the text, except for names that Dynamo adds. ``definitions.py`` explains how an entry
is named, and when foreign entries prevent programs from being stored.

Of a few modules only some functions run, and only these are described. Thunder's other operator executors, such as that
for cuDNN, are described operation by operation among the options (``options.py``). The functions that these call in
their modules are not described: the key contains the sources, but not replacements at run time.

A process describes the map once, and again when a table holds another object. Thunder's functions, and the torch
functions that it references, are assumed not to change in place. Assigning to ``__code__``, for example, is not
noticed. Replacing a function in a module, a class or a table is. Foreign classes and functions in Thunder's tables are
described again for each key, and compared.

All compiled functions with the same executors share the descriptions, and the names of the values in the executors'
tables.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from importlib import import_module
from itertools import chain
from pkgutil import iter_modules
from types import CodeType, ModuleType
from typing import Any

from fusioncache.accelerators.programs.definitions import Definitions, Fingerprint, Foreign, KnownNames, find_unrelated
from fusioncache.accelerators.programs.describe import Describer
from fusioncache.accelerators.programs.introspection import is_added
from fusioncache.accelerators.programs.options import is_shared, read_executor
from fusioncache.accelerators.programs.writer import Memory, digest
from fusioncache.ir import Declined, Scope
from fusioncache.ir.keys import NamedValue, write_lines
from fusioncache.thunder_adapter.api import ltorch

_MOST_MAPS = 16
"""Lists of executors whose function maps are held."""
_MOST_CODES = 20_000
"""Code objects whose digests are held. A model has some hundreds."""


def _list_modules(package: str) -> list[str]:
    """Returns the names of a package's modules, except for Thunder's ``recipe``, which takes part in no derivation."""
    names = sorted(each.name for each in iter_modules(import_module(package).__path__) if not each.ispkg)
    return [f"{package}.{name}" for name in names if name != "recipe"]


MODULES = (
    "thunder",
    "thunder.clang",
    "thunder.common",
    "thunder.distributed.prims",
    "thunder.distributed.utils",
    "thunder.executors.data_dependent_partition",
    "thunder.executors.nvfuserex",
    "thunder.executors.passes",
    "thunder.executors.pythonex",
    "thunder.executors.sdpaex",
    "thunder.executors.torch_autograd",
    "thunder.executors.torch_compile",
    "thunder.executors.torchex",
    "thunder.executors.utils",
    "thunder.extend",
    "thunder.torch",
    "thunder.transforms.autocast",
    "thunder.transforms.autodiff",
    *_list_modules("thunder.clang"),
    *_list_modules("thunder.core"),
    *_list_modules("thunder.torch"),
    *_list_modules("thunder.torch.experimental"),
)
"""Modules whose code takes part in deriving a program for any executors. All are imported before a derivation."""

_NOT_EVERYWHERE = ("thunder.executors.custom_op_ex", "thunder.executors.transformer_engine_v1ex")
"""Modules that one of the supported versions of Thunder lacks. Thunder imports those that it has."""

_PARTS: Mapping[str, tuple[str, ...]] = {
    "thunder.distributed": ("get_skip_data_parallel_grad_sync", "skip_data_parallel_grad_sync"),
    "thunder.distributed.transforms.ddp": ("apply_bucketing_to_grad_allreduce", "get_skip_data_parallel_grad_sync"),
    "thunder.executors.transformer_engine_v1ex": (
        "_is_te_linear_enabled",
        "transformer_engine_v1_bwd_fp8_meta_sync",
    ),
}
"""Modules of which only these functions, and the names that they look up there, take part. The functions do nothing for
a model in one process whose executors do not include the module's."""

_CHANGING = frozenset(
    {
        ("thunder.core.baseutils", "_exec_ctr"),
        ("thunder.core.devices", "Device._cache"),
        ("thunder.core.interpreter", "builtins_dict"),
        ("thunder.core.vjp_utils", "_cache"),
        ("thunder.torch.custom_op", "_CUSTOM_OP_TO_TORCHFN_AND_SYMBOL"),
        ("thunder.extend", "_executor_map"),
        ("thunder.extend", "_default_executors"),
        ("thunder.extend", "_always_executors"),
    }
)
"""Entries that change while Thunder traces, or are described elsewhere: counters, caches of derived values, devices in
use; executors, which are options; Python's builtins, which are reads."""


_SKIPPED = frozenset(
    {"__annotations__", "__builtins__", "__cached__", "__doc__", "__file__", "__loader__", "__path__", "__spec__"}
    | {"__warningregistry__"}
)
_SKIPPED_IN_CLASSES = frozenset(
    {"__annotations__", "__dataclass_fields__", "__dataclass_params__", "__dict__", "__doc__", "__module__"}
    | {"__orig_bases__", "__parameters__", "__slotnames__", "__weakref__", "_abc_impl"}
    | {"__firstlineno__", "__static_attributes__"}  # since Python 3.13
)
"""Names that no derivation reads, or whose content is described elsewhere: for dataclasses by the generated methods."""


def write_thunder(definitions: Definitions, modules: Iterable[str]) -> str:
    """Returns the lines of Thunder's state: foreign definitions, then a digest of each entry and module.

    Args:
        definitions: names the values.
        modules: as ``list_names`` returns them.

    Raises:
        Declined: if a foreign value cannot be described.
    """
    return "\n".join(write_lines(_read_thunder(definitions, modules)))


def _read_thunder(definitions: Definitions, modules: Iterable[str]) -> Iterator[NamedValue]:
    digests: list[NamedValue] = []
    for module in map(import_module, modules):
        content, foreign = _read_module(definitions, module)
        digests.append((module.__name__, content))
        yield from foreign
    yield from _read_entries(definitions)
    yield from digests
    yield from _read_parts(definitions)
    yield from _read_pytrees(definitions)


def _list_others() -> Iterator[Any]:
    for module, names in _list_parts():
        yield from map(vars(module).get, names)
    for cls, entry in _list_pytrees():
        yield from (cls, entry.flatten_func, entry.unflatten_func)
    yield from find_unrelated()


def list_tables(modules: Iterable[str]) -> Iterator[Iterable[Any]]:
    """Yields tables with all objects that ``write_thunder`` describes, and the functions that take no part in it.

    Args:
        modules: as ``list_names`` returns them.
    """
    yield chain.from_iterable(ltorch._torch_to_thunder_function_map.items())
    yield _list_others()
    for module in list(map(import_module, modules)):  # the import of one adds a name to the package that has it
        yield (module,)
        known = dict(vars(module))
        for name in _list_left_out(module):
            known.pop(name, None)
        for table in (known, *(vars(each) for each in known.values() if _is_own_class(module, each))):
            yield from (table.keys(), table.values())


def list_names(executors: Iterable[Any]) -> list[str]:
    """Returns the names of the modules that are described as a whole for a program with these executors."""
    more = [name for name in _NOT_EVERYWHERE if name in sys.modules and name not in _PARTS]
    classes = (cls for executor in executors for cls in type(executor).__mro__)  # nvFuser's has a module of its own
    own = (cls.__module__ for cls in classes if cls.__module__.startswith("thunder."))
    return list(dict.fromkeys((*MODULES, *more, *own)))


def _list_parts() -> Iterator[tuple[ModuleType, tuple[str, ...]]]:
    """Yields the modules of which only some functions take part, with the names of these functions."""
    for name, names in _PARTS.items():
        if name in sys.modules or name not in _NOT_EVERYWHERE:
            yield import_module(name), names


def _read_module(definitions: Definitions, module: ModuleType) -> tuple[str, list[NamedValue]]:
    """Returns a digest of the contents of a module, and a line for each foreign function or class in it."""
    found = {f"{owner}.{name}" if owner else name: value for owner, name, value in _iterate_definitions(module)}
    texts = {name: definitions.name(value) for name, value in found.items()}
    foreign: list[NamedValue] = [
        (f"{module.__name__}.{name}", texts[name]) for name in found if definitions.is_foreign(found[name])
    ]
    return digest("\n".join(sorted(f"{name} {text}" for name, text in texts.items()))), foreign


def _read_parts(definitions: Definitions) -> Iterator[NamedValue]:
    for module, names in _list_parts():
        known = vars(module)
        yield from ((f"{module.__name__}.{name}", definitions.name(known.get(name))) for name in names)


def _read_pytrees(definitions: Definitions) -> Iterator[NamedValue]:
    """Yields how optree flattens and unflattens each registered class: Thunder sees the parts of its instances."""
    for cls, entry in _list_pytrees():
        functions = (entry.flatten_func, entry.unflatten_func)
        yield f"pytree.{write_callable(cls)}", " ".join(map(definitions.name, functions))


def _list_pytrees() -> Iterator[tuple[type, Any]]:
    from optree import PyTreeKind, register_pytree_node

    from fusioncache.thunder_adapter.accelerator_api import OPTREE_NAMESPACE

    registry: Any = register_pytree_node  # annotated for one class, not for all
    for cls, entry in registry.get(namespace=OPTREE_NAMESPACE).items():
        if not cls.__module__.startswith("optree") and entry.kind is PyTreeKind.CUSTOM:
            yield cls, entry


def _iterate_definitions(module: ModuleType) -> Iterator[tuple[str, str, Any]]:
    """Yields the contents of a module and of its own classes: class name (empty outside a class), name and value."""
    left_out = _list_left_out(module)
    for name, value in list(vars(module).items()):
        if name in left_out or is_added(name) or _is_own_module(module, name, value):
            continue
        yield "", name, value
        if _is_own_class(module, value):
            for key, each in vars(value).items():
                if key not in _SKIPPED_IN_CLASSES and f"{name}.{key}" not in left_out:
                    yield name, key, each


def _list_left_out(module: ModuleType) -> set[str]:
    return {*_SKIPPED, *(name for each, name in _CHANGING if each == module.__name__)}


def _is_own_class(module: ModuleType, value: Any) -> bool:
    return isinstance(value, type) and value.__module__ == module.__name__


def _is_own_module(package: ModuleType, name: str, value: Any) -> bool:
    """True if a value is a submodule of a package, which contains it from the first import of the submodule on."""
    return isinstance(value, ModuleType) and value.__name__ == f"{package.__name__}.{name}"


def _read_entries(definitions: Definitions) -> list[NamedValue]:
    """Returns a line for each torch function that Thunder replaces."""
    lines = []
    for key, value in list(ltorch._torch_to_thunder_function_map.items()):
        text = definitions.name(value)
        # Several functions may have the same name. The digests of the modules decide whether keys are equal.
        checksum = f"{zlib.crc32(f'{definitions.name(key)} {text}'.encode()):08x}"
        lines.append(f"map.{write_callable(key)} {f'{text} {checksum}' if definitions.is_foreign(value) else checksum}")
    return [(name, text) for name, _, text in (line.partition(" ") for line in sorted(lines))]


def write_callable(function: Any) -> str:
    """Returns the readable name of a torch function: module and name, without spaces."""
    owner = getattr(function, "__objclass__", None) or getattr(function, "__self__", None)
    name = getattr(function, "__qualname__", None) or str(getattr(function, "__name__", type(function).__qualname__))
    place = getattr(owner if isinstance(owner, type) else function, "__module__", None) or "torch"
    return f"{place}.{name.removeprefix('_VariableFunctionsClass.')}".replace(" ", "_")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class KnownMap:
    """The function map for a list of executors.

    Attributes:
        executors: kept alive, because the map is found by their identities.
        text: the lines of Thunder's state.
        met: the foreign functions and classes in the text.
        names: of all values in the text, and of the values that the executors hold.
    """

    executors: tuple[Any, ...]
    text: str
    met: Foreign
    names: KnownNames


@dataclass(slots=True, eq=False)
class KeyCache:
    """The names and function maps that the keys of a process share.

    Attributes:
        names: of all values in function maps.
        maps: the function map for each list of executors, by their identities and the names of all modules.
        code_digests: the digest of each code object that was described. Code objects are immutable.
    """

    names: KnownNames = field(default_factory=KnownNames)
    maps: dict[tuple[object, ...], KnownMap] = field(default_factory=dict)
    code_digests: dict[int, tuple[CodeType, str]] = field(default_factory=dict)

    def make_describer(self) -> Describer:
        """Returns a new describer that shares the digests of code objects, and nothing else."""
        if len(self.code_digests) > _MOST_CODES:
            self.code_digests.clear()
        return Describer(Memory(code_digests=self.code_digests))

    def find_map(self, executors: Iterable[Any]) -> KnownMap:
        """Returns the function map for these executors, computed again if any object in it was replaced.

        Raises:
            Declined: if a foreign value in Thunder's modules cannot be described.
        """
        shared = tuple(filter(is_shared, executors))
        modules = tuple(list_names(shared))
        key = *map(id, shared), *modules
        known = self.maps.get(key)
        if known is not None and known.names.hold():
            return known
        if known is not None or len(self.maps) > _MOST_MAPS:
            # New names are added to earlier ones, so they would grow with each change. So all are computed again.
            self.maps.clear()
            self.names = KnownNames()
        known = self.maps[key] = self._make_map(shared, modules)
        return known

    def _make_map(self, executors: Sequence[Any], modules: Sequence[str]) -> KnownMap:
        fingerprint = Fingerprint(partial(list_tables, modules))
        names = self.names if self.names.hold() else KnownNames()
        definitions = Definitions(Describer(), names, is_lasting=True)
        try:
            text = write_thunder(definitions, modules)
        except Declined as reason:
            reason.require(Scope.VALUE, Scope.AMOUNT)
            raise Declined(f"Thunder's modules: {reason}", Scope.PROGRAM) from reason
        self.names = names = definitions.learn(fingerprint)
        return KnownMap(tuple(executors), text, definitions.met, _name_executors(names, executors))


def _name_executors(known: KnownNames, executors: Sequence[Any]) -> KnownNames:
    """Returns known names and those of the executors' values; without the latter if one cannot be described."""
    tables = [vars(executor) for executor in executors]
    fingerprint = Fingerprint(lambda: (view for table in tables for view in (table.keys(), table.values())))
    definitions = Definitions(Describer(), known, is_lasting=True)
    try:
        for executor in executors:
            for _ in read_executor(definitions, executor):
                pass  # computes a lasting name for each value
    except Declined as reason:  # the key is refused for the same reason when the options are read
        reason.require(Scope.VALUE, Scope.AMOUNT, Scope.PROGRAM)
        return known
    return definitions.learn(fingerprint)


@cache
def key_cache_of_process() -> KeyCache:
    """Returns the key cache of this process, always the same object."""
    return KeyCache()
