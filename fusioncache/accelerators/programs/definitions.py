"""Names values by the place of their definition: fast, and equal in all processes with the same sources.

Thunder's tables hold thousands of functions. Digesting the code of each would take longer than the rest of a key, and
would add little to the digest of Thunder's sources (``key.py``). So a code object from one of these sources is named by
file, line and name, and a checksum detects that it was changed. Names also cover what other code could have set: the
defaults, the closure and the attributes of each function. Foreign functions, which are defined elsewhere, are named by
their code.

Thunder calls the functions in its tables without interpreting them, so nothing records their reads. While a table
contains foreign code, no program is stored. Code of an executor or a transform with a ``cache_key()``, which returns
its dependencies, is an exception.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import Enum
from inspect import unwrap
from itertools import chain
from operator import attrgetter, is_
from types import CellType, CodeType, FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any

from fusioncache.accelerators.programs.describe import Describer
from fusioncache.accelerators.programs.introspection import (
    DESCRIPTORS,
    find_attribute,
    has_only_attributes,
    is_dictionary,
    is_generated,
    is_known,
    place_of,
    shorten_file,
    sum_code,
)
from fusioncache.accelerators.programs.writer import WRITERS, digest
from fusioncache.ir import Declined, Scope
from fusioncache.process.secrets import TextKind, find_kind

LONGEST_NAME = 200
"""Characters of the longest name that is written in full."""


_known: dict[int, tuple[CodeType, str]] = {}
"""The place of each code object that was asked for, by the identity of the object."""


def find_place(code: CodeType) -> str:
    """Returns file, line, name and checksum of a code object; empty if it is foreign."""
    known = _known.get(id(code))
    if known is None:
        known = _known[id(code)] = code, _compute_place(code)
    return known[1]


def find_places(codes: Sequence[CodeType]) -> str:
    """Returns the places of the code of functions, each of which wraps the next; empty if one is foreign."""
    places = list(map(find_place, codes))
    text = " of ".join(places) if all(places) else ""
    return text if len(text) <= LONGEST_NAME else f"{places[-1]} {digest(text)}"


def _compute_place(code: CodeType) -> str:
    file = shorten_file(code.co_filename)
    if not file:
        return ""
    try:
        return f"{file}:{code.co_firstlineno}:{code.co_qualname} {sum_code(code):x}"
    except ValueError:  # a constant that no compiler makes: the code is not from the sources
        return ""


_MARK = (object(),)
"""Follows each table, so that an item that moves from the end of one to the start of the next is noticed."""


class Fingerprint:
    """A snapshot of the objects in tables. It keeps them alive, so that no identity is reused.

    Args:
        list_tables: returns the tables, or views of them, now and at each comparison.
    """

    def __init__(self, list_tables: Callable[[], Iterable[Iterable[Any]]]):
        self._list_tables = list_tables
        self._objects = [*self._read()]

    def holds(self) -> bool:
        """True if all objects are the same now; False if they cannot be read any more."""
        end = (object(),)
        try:
            return all(map(is_, chain(self._read(), end), chain(self._objects, end)))
        except Exception:  # a module that was removed, a dict that another thread changes
            return False

    def _read(self) -> Iterator[Any]:
        marked = ((table, _MARK) for table in self._list_tables())
        return chain.from_iterable(chain.from_iterable(marked))


type Foreign = Mapping[int, Any]
"""Foreign functions and classes, by identity."""
_NOTHING: Foreign = MappingProxyType({})

_MAY_BE_SECRET = frozenset({str, bytes, list, tuple, set, frozenset, dict})
_MOST_WRAPPERS = 30
_BEGINNING = 60
_UNRELATED = {
    "torch.compile": "a model that calls it Thunder refuses, and what an executor makes with it only steps call",
}
"""Functions that Thunder references but that take no part in deriving a program, by name, with the reason. Other code
may have wrapped one, as Lightning does and ``thunderfx`` undoes. Then it is described by its code, but does not count
as foreign code that Thunder runs."""


@dataclass(frozen=True, slots=True, eq=False)
class KnownNames:
    """Names of Thunder's functions and of the values that they reference, computed once in a process.

    Attributes:
        names: by the identity of the value, or by the function itself.
        met: the foreign functions and classes in each value, by its key in ``names``.
        held: the values, kept alive so that their identities stay valid.
        fingerprints: of the tables among the values, and of the tables that contain the values.
        described: the foreign values, each with its own name and its description.
    """

    names: Mapping[int | FunctionType, str] = field(default_factory=dict)
    met: Mapping[int | FunctionType, Foreign] = field(default_factory=dict)
    held: tuple[Any, ...] = ()
    fingerprints: tuple[Fingerprint, ...] = ()
    described: tuple[tuple[Any, object, str], ...] = ()

    def hold(self) -> bool:
        """True if naming the values again would give the same names."""
        if not all(each.holds() for each in self.fingerprints):
            return False
        describer = Describer()
        try:
            return all(describer.forget_values().describe(value, name) == text for value, name, text in self.described)
        except Declined as declined:
            declined.require(Scope.VALUE, Scope.AMOUNT)
            return False


def find_unrelated() -> tuple[Any, ...]:
    """Returns the functions that take no part in deriving a program, although Thunder references them."""
    return tuple(unwrap(find_attribute(*name.rsplit(".", 1))) for name in _UNRELATED)


_NOT_NAMED = frozenset({"__wrapped__", "__dynamo_disable"})
"""Attributes of a function that its name covers otherwise, or that torch sets on the first call."""


class Definitions:
    """Computes the names of values, each once. It keeps the values alive, because ids of freed objects are reused.

    Args:
        describer: describes foreign definitions.
        earlier: names that the same process computed before.
        met: foreign functions and classes that take part, regardless of the values named here.
        is_lasting: whether later keys use the names, so that they must not depend on earlier descriptions.

    Attributes:
        describer: describes foreign definitions.
        met: the foreign functions and classes that were named, or that take part regardless.
    """

    def __init__(
        self,
        describer: Describer,
        earlier: KnownNames | None = None,
        met: Foreign = _NOTHING,
        *,
        is_lasting: bool = False,
    ):
        from fusioncache.thunder_adapter.accelerator_api import default_python_printer

        self.describer = describer
        self._earlier = earlier if earlier is not None else KnownNames()
        self._is_lasting = is_lasting
        self._names = dict(self._earlier.names)
        self._met_in = dict(self._earlier.met)
        self._held: list[Any] = []
        self._attributes: list[Mapping[str, Any]] = []
        self._described: list[tuple[Any, object, str]] = []
        self.met = dict(met)
        self._trusted: dict[int, Any] = {}
        self._unrelated = find_unrelated()
        self._makers = self._list_makers()
        self._usual_printer = default_python_printer

    def learn(self, found_in: Fingerprint) -> KnownNames:
        """Returns all names, for use in later keys.

        Args:
            found_in: fingerprint of the tables that contain the values.
        """
        known = self._earlier
        return KnownNames(
            self._names,
            self._met_in,
            (*known.held, *self._held),
            (*known.fingerprints, found_in, self._take_fingerprint()),
            (*known.described, *self._described),
        )

    def _take_fingerprint(self) -> Fingerprint:
        """Returns the fingerprint of the containers among the values, and of the attributes of objects."""
        tables: list[Iterable[Any]] = [each.values() for each in self._attributes]
        for each in self._held:
            if type(each) in (list, set):
                tables.append(each)
            elif is_dictionary(type(each)):
                tables += (dict.keys(each), dict.values(each))
            elif type(each) is functools.partial:
                tables.append(each.keywords.values())
        return Fingerprint(lambda: tables)

    def name(self, value: Any) -> str:
        """Returns the name of a value, a line of text.

        Raises:
            Declined: if the value is foreign and cannot be described.
        """
        kind = type(value)
        literal = WRITERS.get(kind)
        if literal is not None:
            return literal(value)
        # Each call of ``id`` raises an audit event, so functions are keys themselves.
        key = value if kind is FunctionType else id(value)
        known = self._names.get(key)
        if known is not None:
            self.met.update(self._met_in.get(key, ()))
            return known
        # A reference back to a value that is being named is written as the value's class.
        self._names[key] = f"^{kind.__name__}"
        self._held.append(value)
        maker = self._makers.get(kind)
        if maker is None:
            maker = self._makers[kind] = self._find_maker(kind)
        outer, self.met = self.met, {}
        try:
            name = maker(value)
        finally:
            if self.met:
                self._met_in[key] = self.met
                outer.update(self.met)
            self.met = outer
        if len(name) > LONGEST_NAME:
            name = f"{name[:_BEGINNING]}...{digest(name)}"
        self._names[key] = name
        return name

    @property
    def foreign(self) -> list[str]:
        """The sorted places of untrusted foreign functions and classes that were named. Thunder may run their code."""
        return sorted({place_of(value) for identity, value in self.met.items() if identity not in self._trusted})

    def refuse_foreign(self) -> None:
        """Raises ``Declined`` if Thunder may run foreign code for the program.

        Raises:
            Declined: if untrusted foreign code was named.
        """
        if self.foreign:
            what = f"Thunder may run {self.foreign[0]}, and nothing records what that reads"
            raise Declined(f"{what}; give the executor a method cache_key() that returns its settings", Scope.PROGRAM)

    @contextmanager
    def trusting(self) -> Iterator[None]:
        """Trusts foreign code that is named inside the block, because a ``cache_key()`` returns its dependencies."""
        outer, self.met = self.met, {}
        try:
            yield
            self._trusted.update(self.met)
        finally:
            self.met = outer

    def is_foreign(self, value: Any) -> bool:
        """True if a value is a function or a class from outside Python and the packages with versions in the key."""
        if isinstance(value, FunctionType):
            return not find_place(value.__code__)
        return isinstance(value, type) and not is_known(value.__module__)

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
            functools.cached_property: self._name_cached,
            functools.partial: self._name_partial,
            types.BuiltinFunctionType: self._name_builtin,
            types.UnionType: lambda value: "union" + self._name_all("(", value.__args__),
            types.GenericAlias: lambda value: self.name(value.__origin__) + self._name_all("[", value.__args__),
            **dict.fromkeys(DESCRIPTORS, place_of),
            **dict.fromkeys((tuple, list), lambda value: type(value).__name__ + self._name_all("(", value)),
            **dict.fromkeys(
                (set, frozenset), lambda value: f"{type(value).__name__}({', '.join(sorted(map(self.name, value)))})"
            ),
        }

    def _find_maker(self, kind: type) -> Callable[[Any], str]:
        """Returns the function that names the instances of a class without an entry in ``_list_makers``."""
        from fusioncache.thunder_adapter.api import Executor, Symbol

        if issubclass(kind, type):
            return self._name_class
        if issubclass(kind, Executor):
            # Its operations are among the options of a program that uses it.
            return lambda value: f"executor {place_of(kind)}"
        if issubclass(kind, Symbol):
            return self._name_symbol
        if issubclass(kind, Enum):
            return lambda value: f"{place_of(kind)}.{value.name}"
        if issubclass(kind, dict):
            return self._name_mapping
        if kind.__module__ == "typing":
            return repr
        return self._name_own_object if has_only_attributes(kind) else self._name_object

    def _name_function(self, function: FunctionType) -> str:
        """Returns the place of a function and the name of the function that it wraps, or else of what it closes over.

        The other closure cells of a wrapper hold arguments of its decorator, which are in the sources.
        """
        outer, codes, beside = function, [], ""
        for _ in range(_MOST_WRAPPERS):
            code, defaults, keyword_defaults, attributes, rest = _read_function(function)
            codes.append(code)
            inner = attributes.get("__wrapped__") if attributes else None
            if defaults or keyword_defaults or (attributes and not attributes.keys() <= _NOT_NAMED):
                beside += self._name_defaults(function)
            if inner is None and rest is not None and len(rest) == 1:
                inner = _content_of(rest[0])
            if type(inner) is not FunctionType:
                break
            function = inner
        text = find_places(codes)
        if not text:
            return self._describe_foreign(outer, codes)
        text += beside
        if inner is not None:
            return f"{text} of {self.name(inner)}"
        return text if rest is None else text + self._name_all(" ^", map(_content_of, rest))

    def _describe_foreign(self, function: FunctionType, codes: Sequence[CodeType]) -> str:
        """Returns a function's place and a digest of its description. Records it if any of ``codes`` is foreign."""
        is_own = all(find_place(code) or is_generated(code.co_filename, function.__module__) for code in codes)
        if not is_own and not any(unwrap(function) is each for each in self._unrelated):
            self.met[id(function)] = function
        return f"{place_of(function)} {digest(self._describe(function, is_compared=not is_own))}"

    def _name_defaults(self, function: FunctionType) -> str:
        """Returns the names of a function's defaults and attributes, which its place does not cover."""
        attributes = {key: value for key, value in function.__dict__.items() if key not in _NOT_NAMED}
        given = self._name_all(" =", function.__defaults__ or ()) + self._name_items("=", function.__kwdefaults__ or {})
        return given + self._name_items("@", attributes)

    def _describe(self, value: Any, name: object = None, *, is_compared: bool = True) -> str:
        """Returns the description of a value that its place does not identify.

        Args:
            value: to describe.
            name: of the value, if it has one.
            is_compared: whether each key that uses the name compares the description again.
        """
        if not self._is_lasting:
            return self.describer.describe(value, name)
        text = self.describer.forget_values().describe(value, name)
        if is_compared:
            self._described.append((value, name, text))
        return text

    def _name_class(self, value: type) -> str:
        if not self.is_foreign(value):
            return place_of(value)
        self.met[id(value)] = value
        return self._describe(value)

    def _name_symbol(self, symbol: Any) -> str:
        """Returns the name of a symbol, including those of the functions that define its effect in a trace."""
        identity, name, meta, printer, after, tags, executor, own, module, *flags = _read_symbol(symbol)
        text = f"symbol {identity if type(identity) is str else self.name(identity)} {name} {flags}"
        for part in (tags, executor, own, module):
            if part is not None:
                text += f" {self.name(part)}"
        if printer is not self._usual_printer:
            text += self.name(printer)
        if after is not None:
            text += self._name_binding(after)
        if type(meta) is FunctionType:
            return f"{text} {self._name_function(meta)}"
        return text if meta is None else f"{text} {self.name(meta)}"

    def _name_binding(self, function: Any) -> str:
        """Returns the name of a symbol's ``_bind_postprocess``, without the implementation that it binds to each call.

        The implementation is resolved by its name when a program is loaded.
        """
        if type(function) is not FunctionType or function.__code__.co_freevars != _OF_BINDING:
            return self.name(function)
        text = find_place(function.__code__)
        inner = _content_of(function.__closure__[0]) if function.__closure__ else None
        return self.name(function) if not text else text if inner is None else f"{text} ^{self.name(inner)}"

    def _name_cached(self, value: functools.cached_property[Any]) -> str:
        self._attributes.append(value.__dict__)
        return f"cached {self.name(value.func)}"

    def _name_partial(self, value: functools.partial[Any]) -> str:
        given = self._name_all("(", value.args) + self._name_items("*", value.keywords)
        return f"partial {self.name(value.func)}{given}"

    def _name_builtin(self, value: types.BuiltinFunctionType) -> str:
        owner = value.__self__
        if owner is None or isinstance(owner, ModuleType) or type(owner).__module__.startswith("pybind11"):
            return f"{value.__module__}.{value.__qualname__.rpartition('.')[2]}" if owner else place_of(value)
        return f"{value.__qualname__} of {self.name(owner)}"

    def _name_mapping(self, value: Mapping[Any, Any]) -> str:
        name = self.name
        pairs = sorted([f"{name(key)}: {self._name_item(key, item)}" for key, item in list(value.items())])
        return f"{place_of(type(value))} of {len(pairs)} ({', '.join(pairs)})"

    def _name_object(self, value: Any) -> str:
        if self.is_foreign(type(value)):
            self.met[id(type(value))] = type(value)
        try:
            return self._describe(value)
        except Declined as declined:
            declined.require(Scope.VALUE, Scope.AMOUNT)
            if place_of(type(value)) in _STATELESS:
                return place_of(type(value))
            raise

    def _name_own_object(self, value: Any) -> str:
        """Returns the name of an instance of a Thunder class: the class, and its attributes with their values' names.

        The describer takes twenty times as long, and Thunder has many such objects.
        """
        attributes = value.__dict__
        self._attributes.append(attributes)
        return place_of(type(value)) + self._name_items("@", attributes)

    def _name_all(self, sign: str, values: Iterable[Any]) -> str:
        return f"{sign}({', '.join(map(self.name, values))})"

    def _name_item(self, name: object, value: Any) -> str:
        """Returns the name of a value under a key or an attribute name, which may mark texts as secret."""
        if type(value) not in _MAY_BE_SECRET or type(name) is not str or find_kind(name) is not TextKind.SECRET:
            return self.name(value)
        return self._describe(value, name)

    def _name_items(self, sign: str, values: Mapping[str, Any]) -> str:
        # The hash that a symbol caches differs between processes.
        named = [f"{key}={self._name_item(key, item)}" for key, item in values.items() if key != "_hash"]
        return f"{sign}({', '.join(named)})"


_read_function = attrgetter("__code__", "__defaults__", "__kwdefaults__", "__dict__", "__closure__")
_read_symbol = attrgetter(
    "id", "name", "meta", "python_printer", "_bind_postprocess", "tags", "executor", "python_impl", "_module",
    "is_prim", "is_fusion", "_print_as_impl",
)  # fmt: skip
_OF_BINDING = ("bind_postprocess", "call_ctx")

_STATELESS = frozenset({"_abc._abc_data", "collections._tuplegetter"})
"""Classes written in C whose instances have no relevant state, or only state that is described elsewhere."""


def _content_of(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return NotImplemented
