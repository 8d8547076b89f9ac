"""What was noted of a trace, described: the reads of a program, or why it has none that could be compared."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from fusioncache.accelerators.programs import introspection
from fusioncache.accelerators.programs.describe import Describer
from fusioncache.accelerators.programs.introspection import ABSENT, is_static
from fusioncache.accelerators.programs.native import is_internal, is_thunders_class, name_of
from fusioncache.accelerators.programs.text import Read, describe_found
from fusioncache.ir import Declined, Scope


@dataclass(slots=True)
class Notes:
    """What a trace looked at, by identity. Everything is kept alive, so that no identity is given away again.

    Attributes:
        functions: a function for each code object that was interpreted.
        globals: each namespace and name that was looked up, with what was found in the namespace.
        attributes: each module and name, with what was found.
        classes: each class that was looked into, or an object of it.
        names: of all attributes that were asked for.
        variables: of the environment.
        queries: what torch was asked, by name and arguments, and what it said.
        texts: each global and attribute that was noted, what was found, its name, and its description at that moment.
    """

    functions: dict[int, types.FunctionType] = field(default_factory=dict)
    globals: dict[tuple[int, str], tuple[dict[str, Any], Any]] = field(default_factory=dict)
    attributes: dict[tuple[int, str], tuple[types.ModuleType, Any]] = field(default_factory=dict)
    classes: dict[int, type] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    variables: set[str] = field(default_factory=set)
    queries: Mapping[tuple[str, tuple[Any, ...]], Any] = field(default_factory=dict)
    texts: list[tuple[str, Any, str, str]] = field(default_factory=list)

    def size(self) -> int:
        """Returns how much was noted. Nothing that was noted is taken back."""
        return sum(len(getattr(self, each.name)) for each in fields(self))


@dataclass(frozen=True, slots=True)
class Account:
    """Describes notes.

    Attributes:
        notes: of a trace.
        describer: has described what the program's key is made of.
        again: a copy of it, as it was then.
    """

    notes: Notes
    describer: Describer
    again: Describer

    def reads(self) -> tuple[Read, ...]:
        """Returns what was read, in the order in which it is to be compared.

        Raises:
            Declined: if something has no value, has changed, or cannot be found again.
        """
        self._check_texts()
        reads = [Read("variable", name, introspection.describe_variable(name)) for name in sorted(self.notes.variables)]
        reads += self._describe_answers()
        reads += self._describe_globals()
        reads += self._describe_attributes()
        reads += self._describe_functions()
        reads += self._describe_classes()
        self._check_unknown()
        return tuple(reads)

    def _check_texts(self) -> None:
        """Refuses what is not as it was when it was noted: the trace saw that, and it is unknown when it changed."""
        for what, value, name, text in self.notes.texts:
            if describe(value, what, self.again, name) != text:
                raise Declined(f"{what} changed while it was used", Scope.PROGRAM)

    def _describe(self, value: Any, what: str, name: str | None = None) -> str:
        return describe(value, what, self.describer, name)

    def _describe_answers(self) -> list[Read]:
        return [
            Read("query", introspection.write_question(name, args), self._describe(answer, f"what {name} says"))
            for (name, args), answer in self.notes.queries.items()
        ]

    def _describe_globals(self) -> list[Read]:
        builtin: list[Read] = []
        found: list[Read] = []
        for (_, name), (namespace, value) in self.notes.globals.items():
            module = self._find_module(namespace, name)
            if module is None:
                continue
            if namespace.get(name, ABSENT) is not value:
                raise Declined(f"the global {module}.{name} changed while it was used", Scope.PROGRAM)
            current = introspection.find_global(module, name)
            kind = "builtin" if value is ABSENT else "global"
            text = self._describe(current, f"the global {module}.{name}", name if kind == "global" else None)
            (builtin if value is ABSENT else found).append(Read(kind, f"{module}.{name}", text))
        return builtin + found

    def _find_module(self, namespace: dict[str, Any], name: str) -> str | None:
        """Returns the module whose names these are; None if they are those of a function that brings them along."""
        module = introspection.find_module_name(namespace)
        if module is not None and "." not in name:
            try:
                introspection.find_builtins(namespace)
            except LookupError as error:
                raise Declined(f"{error}: {module}", Scope.PROGRAM) from error
            return module
        if self.describer.covers_global(namespace, name):
            return None
        raise Declined(f"the global {name} is looked up in a namespace that is not a module's", Scope.PROGRAM)

    def _describe_attributes(self) -> list[Read]:
        found = []
        for (_, name), (module, value) in self.notes.attributes.items():
            owner = vars(module).get("__name__")
            if not _is_found(owner, module) or "." in name:
                raise Declined(
                    f"{name} is looked up in a module that is not found under its name, {owner}", Scope.PROGRAM
                )
            if vars(module).get(name, ABSENT) is not value:
                raise Declined(f"{owner}.{name} changed while it was used", Scope.PROGRAM)
            found.append(Read("attribute", f"{owner}.{name}", self._describe(value, f"{owner}.{name}", name)))
        return found

    def _describe_functions(self) -> list[Read]:
        """Describes the functions whose code ran and that no other description covers."""
        found = []
        for function in self.notes.functions.values():
            code = function.__code__
            if is_internal(function.__globals__) or self.describer.covers(code):
                continue
            name, value = _find_again("function", function)
            text = self._describe(value, f"the function {name}")
            if not self.describer.covers(code):
                raise Declined(f"the function {name} is not the object found under its name", Scope.PROGRAM)
            found.append(Read("function", name, text))
        return found

    def _describe_classes(self) -> list[Read]:
        """Describes the classes of what was looked into, as far as no other description has done so."""
        found = []
        for cls in self.notes.classes.values():
            if is_static(cls) or self.describer.names(cls) or is_thunders_class(cls):
                continue
            name, value = _find_again("class", cls)
            if value is not cls:
                raise Declined(f"the class {name} is not the object found under its name", Scope.PROGRAM)
            found.append(Read("class", name, self._describe(cls, f"the class {name}")))
        return found

    def _check_unknown(self) -> None:
        """Refuses an attribute of a class that has no value and was looked for."""
        names = {attribute for _, attribute in self.describer.unknown} & self.notes.names
        for cls in self.notes.classes.values() if names else ():
            for name in sorted(names):
                reason = self.describer.find_unknown(cls, name)
                if reason is not None:
                    raise Declined(f"{name} of {name_of(cls)} has no value to compare: {reason}", Scope.PROGRAM)


def describe(value: Any, what: str, describer: Describer, name: str | None = None) -> str:
    """Returns the text of something that was read.

    Args:
        value: what was found.
        what: what people call it.
        describer: what describes it.
        name: that it goes by, if it may be a text.

    Raises:
        Declined: if it has no value.
    """
    try:
        return describe_found(value, describer, name)
    except Declined as reason:
        reason.require(Scope.VALUE, Scope.AMOUNT)
        raise Declined(f"{what} has no value to compare: {reason}", Scope.PROGRAM) from reason


def _find_again(kind: str, definition: Any) -> tuple[str, Any]:
    """Returns the name of a function or a class in a read, and what is found under it.

    Raises:
        Declined: if nothing is.
    """
    name = f"{definition.__module__}:{definition.__qualname__}"
    try:
        return name, introspection.find_qualified(definition.__module__, definition.__qualname__)
    except LookupError as error:
        raise Declined(f"the {kind} {name} cannot be found again: {error}", Scope.PROGRAM) from error


def _is_found(name: Any, module: types.ModuleType) -> bool:
    """True if a module is the one that is found under a name."""
    try:
        return introspection.find_module(name) is vars(module)
    except LookupError:
        return False
