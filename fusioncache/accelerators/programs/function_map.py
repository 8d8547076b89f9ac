"""The ingredient ``function map``: what Thunder makes of each function of torch, and all else that its modules hold.

Thunder runs its own functions as they are: nothing records what they look up. So its modules are looked over whole:
tables of functions, lookasides and rules of differentiation, flags, and each function and class. Whatever others put
there or took away changes the text, but for names that Dynamo adds. How an entry is named, and which
programs are refused because of what others put there, is told in ``definitions.py``.

Of a few modules next to nothing runs: only that is looked at. Of Thunder's other executors of operations, such as that
for cuDNN, what they do with each operation is an option (``options.py``). What these functions call in their modules is
not looked at: the sources are in the key, but not what is put in their place.

What a process knows of Thunder's functions: it is described once, and again when a table holds another object.

Thunder's functions, and those of torch that it refers to, are taken as they were when they were first described. To
change one in place, such as its ``__code__``, is not noticed. To put another one in its place, in a module, in a class
or in a table, is. Classes and functions of others that Thunder's tables hold are compared like the classes of a model.

All compiled functions of a process use the same descriptions, as Thunder is the same for all of them.
"""

from __future__ import annotations

import importlib
import sys
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from types import ModuleType
from typing import Any

from fusioncache.accelerators.programs.definitions import Definitions, Foreign, KnownNames
from fusioncache.accelerators.programs.fingerprint import Fingerprint, KnownClass, KnownClasses, take_fingerprint
from fusioncache.accelerators.programs.introspection import are_same, is_added
from fusioncache.accelerators.programs.literals import digest
from fusioncache.accelerators.programs.writer import Record
from fusioncache.ir.keys import NamedValue, write_lines
from fusioncache.process.collector import without_collector

MODULES = (
    "thunder",
    "thunder.clang",
    "thunder.clang.langctx",
    "thunder.clang.utils",
    "thunder.common",
    "thunder.core.baseutils",
    "thunder.core.codeutils",
    "thunder.core.compile_data",
    "thunder.core.devices",
    "thunder.core.dtypes",
    "thunder.core.interpreter",
    "thunder.core.jit_ext",
    "thunder.core.langctxs",
    "thunder.core.module",
    "thunder.core.options",
    "thunder.core.patterns",
    "thunder.core.prims",
    "thunder.core.profile",
    "thunder.core.proxies",
    "thunder.core.pytree",
    "thunder.core.rematerialization",
    "thunder.core.symbol",
    "thunder.core.trace",
    "thunder.core.trace_interpreter",
    "thunder.core.transform_common",
    "thunder.core.transforms",
    "thunder.core.update_aliases",
    "thunder.core.utils",
    "thunder.core.vjp_utils",
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
    "thunder.torch.custom_op",
    "thunder.torch.default_torch_ops",
    "thunder.torch.experimental.dtensor_proxy",
    "thunder.torch.experimental.dtensor_torch_and_prims",
    "thunder.torch.experimental.dtensor_utils",
    "thunder.torch.langctx",
    "thunder.transforms.autocast",
    "thunder.transforms.autodiff",
)
"""Those whose code takes part in deriving a program, whichever executors it is for. All are imported by then."""

_NOT_EVERYWHERE = ("thunder.executors.custom_op_ex", "thunder.executors.transformer_engine_v1ex")
"""Modules that one of the supported versions lacks. Thunder imports those that it has."""

_PARTS: Mapping[str, tuple[str, ...]] = {
    "thunder.distributed": ("get_skip_data_parallel_grad_sync", "skip_data_parallel_grad_sync"),
    "thunder.distributed.transforms.ddp": ("apply_bucketing_to_grad_allreduce", "get_skip_data_parallel_grad_sync"),
    "thunder.executors.transformer_engine_v1ex": (
        "_is_te_linear_enabled",
        "transformer_engine_v1_bwd_fp8_meta_sync",
    ),
}
"""Modules of which only these functions take part, and what they look up there. They find that they have nothing to do
with a model that is in one process, and whose executor is not requested."""

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
"""What changes while Thunder traces, or is elsewhere: counters, caches of what is derived again, devices that it met;
executors, which are options; Python's builtins, which are reads."""


_SKIPPED = frozenset(
    {"__annotations__", "__builtins__", "__cached__", "__doc__", "__file__", "__loader__", "__path__", "__spec__"}
    | {"__warningregistry__"}
)
_SKIPPED_IN_CLASSES = frozenset(
    {"__annotations__", "__dataclass_fields__", "__dataclass_params__", "__dict__", "__doc__", "__module__"}
    | {"__orig_bases__", "__parameters__", "__slotnames__", "__weakref__", "_abc_impl"}
    | {"__firstlineno__", "__static_attributes__"}  # since Python 3.13
)
"""What no derivation of a program asks, or is said elsewhere: of dataclasses by the methods made for them."""


WriteThunder = Callable[[Definitions, Iterable[Any]], str]


def write_thunder(definitions: Definitions, executors: Iterable[Any]) -> str:
    """Returns the lines of all that is Thunder's: what was written by others, then a digest of each entry and module.

    Args:
        definitions: names what is found.
        executors: those that a program is derived for.

    Raises:
        Declined: if something that was put there cannot be described.
    """
    return "\n".join(write_lines(_read_thunder(definitions, executors)))


def write_function_map(
    definitions: Definitions, executors: Iterable[Any], write: WriteThunder = write_thunder
) -> Iterator[str]:
    """Yields the lines of all that is Thunder's, which are one text, then whose code Thunder runs.

    Args:
        definitions: as in ``write_thunder``.
        executors: as in ``write_thunder``.
        write: writes all that is Thunder's.

    Raises:
        Declined: as ``write_thunder`` does.
    """
    yield write(definitions, executors)
    # Executors were named before: these are all that are not trusted.
    yield from write_lines((f"foreign.{place}", "is run by Thunder") for place in definitions.foreign)


def _read_thunder(definitions: Definitions, executors: Iterable[Any]) -> Iterator[NamedValue]:
    digests: list[NamedValue] = []
    for module in _list_modules(executors):
        content, foreign = _read_module(definitions, module)
        digests.append((module.__name__, content))
        yield from foreign
    yield from _read_entries(definitions)
    yield from digests
    yield from _read_parts(definitions)
    yield from _read_pytrees(definitions)


def list_tables(modules: Iterable[str]) -> Iterator[Iterable[Any]]:
    """Yields the names and the values of all tables that are read by ``write_thunder``, but for what always changes.

    Args:
        modules: as ``list_names`` returns them.
    """
    from fusioncache.thunder_adapter.api import ltorch

    entries = ltorch._torch_to_thunder_function_map
    yield from (entries.keys(), entries.values())
    for module in map(_find_module, modules):
        yield from _list_sides(module.__name__, "", vars(module))
        for name, value in list(vars(module).items()):
            if (module.__name__, name) not in _CHANGING and _is_own_class(module, value):
                yield from _list_sides(module.__name__, f"{name}.", vars(value))


def _list_sides(module: str, place: str, table: Mapping[str, Any]) -> tuple[Iterable[Any], Iterable[Any]]:
    changing = {name.removeprefix(place) for each, name in _CHANGING if each == module and name.startswith(place)}
    return table.keys(), _Lasting(table, changing) if changing else table.values()


@dataclass(frozen=True, slots=True, eq=False)
class _Lasting:
    """The values of a table but for those that always change."""

    table: Mapping[str, Any]
    changing: Collection[str]

    def __iter__(self) -> Iterator[Any]:
        return (value for key, value in self.table.items() if key not in self.changing)


def list_others(modules: Iterable[str]) -> Iterator[Any]:
    """Yields what else is read: the modules, single functions, and what is registered.

    Args:
        modules: as ``list_names`` returns them.
    """
    yield from map(vars, map(_find_module, modules))
    for module, names in _list_parts():
        yield from map(vars(module).get, names)
    for cls, entry in _list_pytrees():
        yield from (cls, entry.flatten_func, entry.unflatten_func)


def _list_modules(executors: Iterable[Any]) -> list[ModuleType]:
    return [_find_module(name) for name in list_names(executors)]


def list_names(executors: Iterable[Any]) -> list[str]:
    """Returns the names of the modules that are looked over whole for a program that these executors take part in."""
    more = [name for name in _NOT_EVERYWHERE if name in sys.modules and name not in _PARTS]
    return list(dict.fromkeys((*MODULES, *more, *_modules_of(executors))))


def _list_parts() -> Iterator[tuple[ModuleType, tuple[str, ...]]]:
    """Yields the modules of which only some functions take part, with the names of these."""
    for name, names in _PARTS.items():
        if name in sys.modules or name not in _NOT_EVERYWHERE:
            yield _find_module(name), names


def _find_module(name: str) -> ModuleType:
    """Returns a module. Most were imported before, and to have Python say so takes longer than to see it."""
    module = sys.modules.get(name)
    return importlib.import_module(name) if module is None else module


def _read_module(definitions: Definitions, module: ModuleType) -> tuple[str, list[NamedValue]]:
    """Returns a digest of what a module holds, and each thing in it that was written by others."""
    found = dict(_iterate_definitions(module))
    texts = {name: definitions.name(value) for name, value in found.items()}
    foreign: list[NamedValue] = [
        (f"{module.__name__}.{name}", texts[name]) for name in found if definitions.is_foreign(found[name])
    ]
    return digest("\n".join(sorted(f"{name} {text}" for name, text in texts.items()))), foreign


def _modules_of(executors: Iterable[Any]) -> Iterator[str]:
    """Yields the modules that executors of Thunder's come from, where their classes do: that of nvFuser is one."""
    for executor in executors:
        yield from (cls.__module__ for cls in type(executor).__mro__ if cls.__module__.startswith("thunder."))


def _read_parts(definitions: Definitions) -> Iterator[NamedValue]:
    for module, names in _list_parts():
        known = vars(module)
        yield from ((f"{module.__name__}.{name}", definitions.name(known.get(name))) for name in names)


def _read_pytrees(definitions: Definitions) -> Iterator[NamedValue]:
    """Yields how values are taken apart whose class is registered with optree: Thunder sees their parts then."""
    for cls, entry in _list_pytrees():
        functions = (entry.flatten_func, entry.unflatten_func)
        yield f"pytree.{write_callable(cls)}", " ".join(map(definitions.name, functions))


def _list_pytrees() -> Iterator[tuple[type, Any]]:
    from optree import PyTreeKind, register_pytree_node

    from fusioncache.thunder_adapter.accelerator_api import OPTREE_NAMESPACE

    registry: Any = register_pytree_node  # whose types speak of one class, not of all
    for cls, entry in registry.get(namespace=OPTREE_NAMESPACE).items():
        if not cls.__module__.startswith("optree") and entry.kind is PyTreeKind.CUSTOM:
            yield cls, entry


def _iterate_definitions(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """Yields what a module holds, and what its own classes hold, by name."""
    for name, value in list(vars(module).items()):
        is_skipped = name in _SKIPPED or is_added(name) or (module.__name__, name) in _CHANGING
        if is_skipped or _is_own_module(module, name, value):
            continue
        yield name, value
        if _is_own_class(module, value):
            members = ((f"{name}.{key}", each) for key, each in vars(value).items() if key not in _SKIPPED_IN_CLASSES)
            yield from (each for each in members if (module.__name__, each[0]) not in _CHANGING)


def _is_own_class(module: ModuleType, value: Any) -> bool:
    return isinstance(value, type) and value.__module__ == module.__name__


def _is_own_module(package: ModuleType, name: str, value: Any) -> bool:
    """True if a package holds one of its modules, which it does from the first import of that on."""
    return isinstance(value, ModuleType) and value.__name__ == f"{package.__name__}.{name}"


def _read_entries(definitions: Definitions) -> list[NamedValue]:
    """Returns each function of torch's that Thunder has one for."""
    from fusioncache.thunder_adapter.api import ltorch

    lines = []
    for key, value in list(ltorch._torch_to_thunder_function_map.items()):
        text = definitions.name(value)
        # Several functions may be called the same. Whether keys are equal the digests of the modules decide.
        checksum = f"{zlib.crc32(f'{definitions.name(key)} {text}'.encode()):08x}"
        lines.append(f"map.{write_callable(key)} {f'{text} {checksum}' if definitions.is_foreign(value) else checksum}")
    return [(name, text) for name, _, text in (line.partition(" ") for line in sorted(lines))]


def write_callable(function: Any) -> str:
    """Returns what people call a function of torch: module and name, without spaces."""
    owner = getattr(function, "__objclass__", None) or getattr(function, "__self__", None)
    name = getattr(function, "__qualname__", None) or str(getattr(function, "__name__", type(function).__qualname__))
    place = getattr(owner if isinstance(owner, type) else function, "__module__", None) or "torch"
    return f"{place}.{name.removeprefix('_VariableFunctionsClass.')}".replace(" ", "_")


_MOST = 8
"""For how many lists of modules a function map is remembered."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class KnownMap:
    """A function map, and what it was made of.

    Attributes:
        text: all that is Thunder's.
        foreign: what others wrote, as ``Definitions.foreign`` has it.
        record: what the describer learned.
        names: those that were known before.
        bystanders: as ``Definitions`` had them.
        fingerprints: of Thunder's tables, of what was named, and of what was described.
        classes: those of which the text has the digests.
    """

    text: str
    foreign: Foreign
    record: Record
    names: KnownNames
    bystanders: tuple[Any, ...]
    fingerprints: tuple[Fingerprint, ...]
    classes: Mapping[int, KnownClass]

    def is_told_by(self, definitions: Definitions, classes: KnownClasses) -> bool:
        """Returns whether it would be written again as it is. The describer then learned what it would have."""
        return (
            definitions.earlier is self.names
            and are_same(definitions.bystanders, self.bystanders)
            and all(each.holds() for each in self.fingerprints)
            and classes.are_unchanged(self.classes)
            and definitions.describer.learn(self.record)
        )


@dataclass(slots=True, eq=False, repr=False)
class MapWriter:
    """Writes the function map for one key.

    Attributes:
        known: it, as it was written for an earlier key; None if that is not known.
        classes: those of the key.
        is_learning: whether it is remembered for a later key.
        found: it, if it is.
    """

    known: KnownMap | None
    classes: KnownClasses
    is_learning: bool
    found: KnownMap | None = None

    def write(self, definitions: Definitions, executors: Iterable[Any]) -> str:
        """Returns what ``write_thunder`` does."""
        if self.known is not None and self.known.is_told_by(definitions, self.classes):
            self.found = self.known
            definitions.meet(self.known.foreign)
            return self.known.text
        names, modules = definitions.earlier, list_names(executors)
        if not self.is_learning or names is None:
            return write_thunder(definitions, executors)
        tables = Fingerprint(tables=list_tables(modules), read=lambda: list_others(modules))
        with definitions.noting() as noted:
            text = write_thunder(definitions, executors)
        definitions.describer.list_classes()  # which looks at those that were met
        record = noted.record
        classes = self.classes.list_reached(record) if record is not None else None
        described = take_fingerprint(record) if record is not None else None
        if record is not None and classes is not None and described is not None:
            fingerprints = tables, noted.fingerprint, described
            bystanders = definitions.bystanders
            self.found = KnownMap(text, noted.foreign, record, names, bystanders, fingerprints, classes)
        return text


@dataclass(slots=True, eq=False)
class Epoch:
    """What is known of Thunder's functions.

    Attributes:
        names: of Thunder's functions; None if they are not known.
        maps: the function map for each list of modules, as executors bring modules of their own.
        made: how many keys were made.
        compiled: how many modules were compiled, which have a key each.
    """

    names: KnownNames | None = None
    maps: dict[tuple[str, ...], KnownMap] = field(default_factory=dict)
    made: int = 0
    compiled: int = 0

    def find_map(self, executors: Iterable[object]) -> KnownMap | None:
        """Returns the function map for these executors; None if it is not known."""
        return self.maps.get(tuple(list_names(executors)))

    def learn_map(self, executors: Iterable[object], found: KnownMap | None) -> None:
        """Remembers the function map of a key for these executors, in place of the one before."""
        modules = tuple(list_names(executors))
        self.maps.pop(modules, None)
        if found is not None:
            self.maps[modules] = found
        for each in list(self.maps)[:-_MOST]:
            self.maps.pop(each, None)

    def learn_names(self, definitions: Definitions) -> None:
        """Remembers the names of a key, so that they serve the next one."""
        with without_collector():
            self.names = definitions.learn()

    def expects_more(self) -> bool:
        """Returns whether another key is to come. A process that loads one program makes one key."""
        return self.made > 1 or self.compiled > 1


@cache
def epoch_of_process() -> Epoch:
    """Returns what is known in this process, the same each time."""
    return Epoch()
