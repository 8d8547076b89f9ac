"""Recorder of the outside values that Thunder reads while it interprets a model, for comparison in other processes.

    with Recorder(describer).observing() as recorder:      # the describer has described the key
        ...                                                # Thunder traces
    reads = recorder.reads()                               # or Declined is raised, with the reason

Interpreted code can access outside values in a few ways, and each of them is observed:

- The arguments and the traced function, with all objects reachable from them: described in the key.
- A global or a builtin: a read. Its description covers all that is reachable from it, except through modules.
- An attribute of a module, present or missing: a read.
- An attribute of an object or a class: part of the description of the object and of its class, on any path. Each class
  with an accessed instance is described in the key, in a read, or in a read of its own. If a value without a
  description was accessed, the program is not stored.
- A call that is not interpreted: allowed only if ``checks`` lists the function. Then its result depends on its
  arguments, on the key, or on a read that it adds: an environment variable, or a query of torch's state.
- Access to everything at once (the globals of a function, the module table, the whole environment, frames): the program
  is not stored.

So two derivations from equal keys and equal reads take the same steps. In addition, every function whose code ran must
be part of some description. One that is not must be found under its name, and becomes a read.

During the trace, values are noted once, by identity, and kept alive. They are described at the end, and must be
unchanged then. A side effect that outlasts the trace (an attribute set, a list that grew) is refused, unless Thunder
repeats it in each call.
"""

from __future__ import annotations

import builtins
import os
import sys
import types
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any, Self

import numpy
import torch

from fusioncache.accelerators.programs import introspection, native
from fusioncache.accelerators.programs.checks import CallChecker, CreatedObjects
from fusioncache.accelerators.programs.containers import HOOKS, has_hooks
from fusioncache.accelerators.programs.describe import Describer
from fusioncache.accelerators.programs.introspection import ABSENT, find_in_class, find_tagging, is_static
from fusioncache.accelerators.programs.native import (
    find_user_frame,
    is_canonical,
    is_internal,
    is_thunders_class,
    iterate_user_frames,
    name_of,
)
from fusioncache.accelerators.programs.text import KINDS, Read, describe_found
from fusioncache.ir import Declined, Scope
from fusioncache.thunder_adapter import hooks
from fusioncache.thunder_adapter.accelerator_api import interpreter, jit_ext
from fusioncache.thunder_adapter.hooks import name_instruction
from fusioncache.thunder_adapter.installation import is_in_place


@dataclass(slots=True)
class Notes:
    """The values that a trace accessed, by identity. Everything is kept alive, so that no id is reused.

    Attributes:
        functions: a function for each code object that was interpreted, by the code object's id.
        globals: namespace and value of each global name that was looked up, by the namespace's id and the name.
        attributes: module and value of each module attribute that was accessed, by the module's id and the name.
        classes: each class with an attribute that was accessed, on itself or on an instance.
        names: of all attributes that were accessed.
        variables: names of environment variables that were read.
        queries: results of torch's queries, by function name and arguments.
        imports: names of modules that were imported.
        texts: for each global and module attribute: a label, its value, its name, and its description at that moment.
    """

    functions: dict[int, types.FunctionType] = field(default_factory=dict)
    globals: dict[tuple[int, str], tuple[dict[str, Any], Any]] = field(default_factory=dict)
    attributes: dict[tuple[int, str], tuple[types.ModuleType, Any]] = field(default_factory=dict)
    classes: dict[int, type] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    variables: set[str] = field(default_factory=set)
    queries: Mapping[tuple[str, tuple[Any, ...]], Any] = field(default_factory=dict)
    imports: set[str] = field(default_factory=set)
    texts: list[tuple[str, Any, str, str]] = field(default_factory=list)

    def size(self) -> int:
        """Returns the number of notes. Notes are never removed."""
        return sum(len(getattr(self, each.name)) for each in fields(self))


@dataclass(frozen=True, slots=True)
class NoteConverter:
    """Converts notes to reads.

    Attributes:
        notes: of a trace.
        describer: has described the program's key.
        key_describer: a copy of it, from when it had described only the key.
    """

    notes: Notes
    describer: Describer
    key_describer: Describer

    def reads(self) -> tuple[Read, ...]:
        """Returns the reads in the order in which they are compared.

        Raises:
            Declined: if something has no value, has changed, or cannot be found again.
        """
        self._check_texts()
        reads = [Read("variable", name, introspection.describe_variable(name)) for name in sorted(self.notes.variables)]
        reads += [Read("import", name, self._describe(sys.modules[name], name)) for name in sorted(self.notes.imports)]
        reads += self._describe_answers()
        reads += self._describe_globals()
        reads += self._describe_attributes()
        reads += self._describe_functions()
        reads += self._describe_classes()
        self._check_unknown()
        return tuple(sorted(reads, key=lambda read: KINDS.index(read.kind)))

    def _check_texts(self) -> None:
        """Raises ``Declined`` if a value has changed since it was noted: it is unknown which state the trace used."""
        for what, value, name, text in self.notes.texts:
            if describe(value, what, self.key_describer, name) != text:
                raise Declined(f"{what} changed while it was used", Scope.PROGRAM)

    def _describe(self, value: Any, what: str, name: str | None = None) -> str:
        return describe(value, what, self.describer, name)

    def _describe_answers(self) -> list[Read]:
        return [
            Read("query", introspection.write_query(name, args), self._describe(answer, f"what {name} says"))
            for (name, args), answer in self.notes.queries.items()
        ]

    def _describe_globals(self) -> Iterator[Read]:
        for (_, name), (namespace, value) in self.notes.globals.items():
            module = self._find_module(namespace, name)
            if module is None:
                continue
            if namespace.get(name, ABSENT) is not value:
                raise Declined(f"the global {module}.{name} changed while it was used", Scope.PROGRAM)
            current = introspection.find_global(module, name)
            kind = "builtin" if value is ABSENT else "global"
            text = self._describe(current, f"the global {module}.{name}", name if kind == "global" else None)
            yield Read(kind, f"{module}.{name}", text)

    def _find_module(self, namespace: dict[str, Any], name: str) -> str | None:
        """Returns the module with this namespace; None if it is described with the function that uses it.

        Raises:
            Declined: if it is neither, or has nonstandard builtins.
        """
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

    def _describe_attributes(self) -> Iterator[Read]:
        for (_, name), (module, value) in self.notes.attributes.items():
            owner = vars(module).get("__name__")
            if not introspection.is_found(owner, module) or "." in name:
                raise Declined(
                    f"{name} is looked up in a module that is not found under its name, {owner}", Scope.PROGRAM
                )
            if vars(module).get(name, ABSENT) is not value:
                raise Declined(f"{owner}.{name} changed while it was used", Scope.PROGRAM)
            yield Read("attribute", f"{owner}.{name}", self._describe(value, f"{owner}.{name}", name))

    def _describe_functions(self) -> Iterator[Read]:
        """Yields reads for the functions whose code ran and that no other description covers."""
        for function in self.notes.functions.values():
            code = function.__code__
            if is_internal(function.__globals__) or self.describer.covers(code):
                continue
            name, value = _find_again("function", function)
            text = self._describe(value, f"the function {name}")
            if not self.describer.covers(code):
                raise Declined(f"the function {name} is not the object found under its name", Scope.PROGRAM)
            yield Read("function", name, text)

    def _describe_classes(self) -> Iterator[Read]:
        """Yields reads for the accessed classes that no other description covers."""
        for cls in self.notes.classes.values():
            if is_static(cls) or self.describer.names(cls) or is_thunders_class(cls):
                continue
            name, value = _find_again("class", cls)
            if value is not cls:
                raise Declined(f"the class {name} is not the object found under its name", Scope.PROGRAM)
            yield Read("class", name, self._describe(cls, f"the class {name}"))

    def _check_unknown(self) -> None:
        """Raises ``Declined`` if an attribute was accessed that has no description in one of the accessed classes."""
        for cls in self.notes.classes.values():
            unknown = self.describer.list_unknown(cls)
            for name in sorted(unknown.keys() & self.notes.names):
                raise Declined(f"{name} of {name_of(cls)} has no value to compare: {unknown[name]}", Scope.PROGRAM)


def describe(value: Any, what: str, describer: Describer, name: str | None = None) -> str:
    """Returns the description of a value that was read.

    Args:
        value: the value.
        what: its label for messages.
        describer: to use.
        name: under which it was found, if strings in it may be secret by that name.

    Raises:
        Declined: if it cannot be described.
    """
    try:
        return describe_found(value, describer, name)
    except Declined as reason:
        reason.require(Scope.VALUE, Scope.AMOUNT)
        raise Declined(f"{what} has no value to compare: {reason}", Scope.PROGRAM) from reason


def _find_again(kind: str, definition: Any) -> tuple[str, Any]:
    """Returns the name of a function or a class in a read, and the object that is found under it.

    Raises:
        Declined: if it does not exist.
    """
    name = f"{definition.__module__}:{definition.__qualname__}"
    try:
        return name, introspection.find_qualified(definition.__module__, definition.__qualname__)
    except LookupError as error:
        raise Declined(f"the {kind} {name} cannot be found again: {error}", Scope.PROGRAM) from error


_EVERYTHING = frozenset(
    {"__globals__", "__builtins__", "__subclasses__", "f_globals", "f_locals", "f_back", "gi_frame"}
)
"""Attributes through which code can reach objects that were not passed to it."""
_NOT_READ = {("sys", "modules"), ("sys", "path"), ("sys", "argv"), ("posix", "environ"), ("os", "environb")}
"""Attributes of modules that differ from process to process."""
_NOT_DESCRIBED = frozenset({
    "__annotations__", "__type_params__", "__doc__", "__code__", "__bound__", "__constraints__", "__default__",
    "co_filename", "co_firstlineno", "co_lines", "co_linetable", "co_lnotab", "co_positions", "__firstlineno__",
    "__static_attributes__",
})  # fmt: skip
"""Attributes of functions, classes and code objects that descriptions omit or cover only in part."""


_OF_ARRAYS = frozenset({"base", "ctypes", "data", "metadata", "flags", "__array_interface__", "__array_struct__"})
"""Attributes of numpy's arrays and dtypes that descriptions omit."""

_WITH_HOOKS = frozenset({*HOOKS, "__dict__"})
"""Attributes of modules with tables of hooks."""
_OF_HOOKS = "torch.nn.modules.module"
"""The module of torch that calls hooks, and looks parameters up in ``__dict__``."""


class Recorder(hooks.Observer):
    """Observer of one trace that records its reads."""

    def __init__(self, describer: Describer) -> None:
        """Makes a recorder.

        Args:
            describer: has described the program's key, and will describe the reads.
        """
        self._describer = describer
        self._early, self._key_describer = describer.copy(), describer.copy()
        self._call_checker = CallChecker(CreatedObjects(), describer.names)
        self._reason: str | None = None
        self._notes = Notes(queries=self._call_checker.queries, imports=self._call_checker.imports)
        self._seen: set[tuple[int, str]] = set()
        self._tagging = find_tagging()
        self._covered = 0, True
        if not is_in_place("hooks"):
            self._refuse("Thunder's interpreter could not be observed")

    @contextmanager
    def observing(self) -> Iterator[Self]:
        """Observes the interpreter in this thread while the body runs. If it raises, ``reads`` raises ``Declined``."""
        try:
            with hooks.observe(self, first=True):
                yield self
        except BaseException:
            self._refuse("an exception was raised")
            raise

    def covers_trace(self) -> bool:
        """True if a program would be stored if the trace ended here: all notes can be described and are unchanged."""
        size = self._notes.size()
        if self._reason is None and self._covered[0] != size:
            self._covered = size, self._would_keep()
        return self._reason is None and self._covered[1]

    def _would_keep(self) -> bool:
        try:
            NoteConverter(self._notes, self._describer.copy(), self._key_describer.copy()).reads()
        except Exception:  # of any kind: reads() decides at the end
            return False
        return True

    # Notifications by the interpreter.

    def see_function(self, function: Any) -> None:
        """Notes a function whose code is about to be interpreted."""
        code = function.__code__
        if self._tagging.has(code) or (code is self._tagging.enter and self._is_tagged()):
            return
        if id(code) not in self._notes.functions:
            self._notes.functions[id(code)] = function
            if len(self._notes.functions) == 1:
                self._check_options()

    def see_global(self, namespace: Any, name: str) -> None:
        """Notes a name that is about to be looked up in a namespace, and then among the builtins."""
        if (id(namespace), name) in self._notes.globals or is_internal(namespace) or self._is_tagged():
            return
        found = namespace.get(name, ABSENT)
        self._notes.globals[id(namespace), name] = namespace, found
        value = found if found is not ABSENT else vars(builtins).get(name, ABSENT)
        self._note_text(f"the global {introspection.find_module_name(namespace)}.{name}", value, name)

    def see_call(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, is_opaque: bool) -> None:
        """Notes a call that is not interpreted."""
        if self._reason is not None or self._is_tagged():
            return
        try:
            reason = self._explain_access(args) if fn is getattr or (fn is hasattr and len(args) == 2) else None
            if fn is vars and len(args) == 1 and not native.is_class(args[0].value):
                given = args, args[0].value, "__dict__"
                reason = self._explain_hooks(*given) or self._explain_attribute(*given)
            elif fn is not getattr:
                reason = reason or self._call_checker.explain(fn, args, kwargs, is_opaque=is_opaque)
        except Exception as error:  # foreign objects may raise anything when they are inspected
            reason = f"{type(error).__name__} was raised when a call of {name_of(fn)} was looked at"
        self._refuse_step(reason)

    def see_instruction(self, name: str, inst: Any, state: dict[str, Any]) -> None:
        """Notes an instruction that assigns to an outer variable, compares objects, or may call their methods."""
        if self._reason is not None or self._is_tagged():
            return
        try:
            reason = self._explain_instruction(name, inst, state)
        except Exception as error:
            reason = f"{type(error).__name__} was raised when {name} was looked at"
        self._refuse_step(reason)

    def _explain_instruction(self, name: str, inst: Any, state: Mapping[str, Any]) -> str | None:
        stack = state["stack"]
        if name == "IS_OP":
            return self._explain_identity(stack.getitem_wrapped(-2), stack.getitem_wrapped(-1))
        if name == "COMPARE_OP":
            return self._explain_comparison(stack.getitem_wrapped(-2), stack.getitem_wrapped(-1))
        if name == "YIELD_VALUE":
            return self._explain_yield(state["frame"], stack.getitem_wrapped(-1).value)
        if name == "CHECK_EXC_MATCH":
            return native.explain_class_check(stack.getitem_wrapped(-1).value)
        if name == "LOAD_CLOSURE":
            if inst.argval in state["co"].co_cellvars:
                self._call_checker.created.note(state["frame"].localsplus[inst.arg].value)
            return None
        if name in hooks.HASHING:
            hashed = hooks.find_hashed(name, inst.arg, stack)
            strange = [each for each in hashed if not _is_plain_key(each)]
            return f"uses a {name_of(type(strange[0]))} as a key" if strange else None
        if name in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            return f"assigns to the global {inst.argval}"
        if not name.endswith("_DEREF") or inst.argval in state["co"].co_cellvars:
            return None  # all other instructions call a method, which see_call() observes
        if self._call_checker.created.has(state["frame"].localsplus[inst.arg]):
            return None
        return f"assigns to {inst.argval}, a variable of a function around it"

    def _explain_yield(self, frame: Any, value: Any) -> str | None:
        """Returns the reason to refuse a value that a generator yields to code that is not interpreted, or None."""
        if id(frame) not in self._call_checker.consumed or native.is_plain(value):
            return None
        return f"yields a {name_of(type(value))} to code that is not interpreted"

    def _explain_identity(self, one: Any, other: Any) -> str | None:
        for each in (one, other):
            value = each.value
            if value is None or native.is_singleton(value) or native.is_class(value) or native.is_proxy(value):
                return None
        if type(one.value) is not type(other.value) or type(one.value) is object:
            return None  # bare objects have descriptions of their own
        if any(self._call_checker.created.has(each) or self._describer.names(each.value) for each in (one, other)):
            return None
        if is_canonical(one.value) and is_canonical(other.value):
            return None
        return f"compares a {name_of(type(one.value))} and a {name_of(type(other.value))} by identity"

    def _explain_comparison(self, one: Any, other: Any) -> str | None:
        values = one.value, other.value
        if any(native.has_nan(value) for value in values):
            return "compares containers with a NaN in them"
        if all(map(native.is_plain, values)) or all(native.is_set_of(each, int, str) for each in values):
            return None
        for value in values:
            if not (native.is_plain(value) or native.is_compared_by_identity(value)):
                return f"compares a {name_of(type(value))}"
        return self._explain_identity(one, other) if not any(map(native.is_plain, values)) else None

    def _explain_access(self, args: tuple[Any, ...]) -> str | None:
        """Returns why ``getattr`` or ``hasattr`` must not be called with these arguments, or None. Notes the access."""
        if len(args) < 2 or type(args[1].value) is not str:
            return None
        value, name = args[0].value, args[1].value
        reason = self._explain_hooks(args, value, name)
        if reason is not None or (id(type(value)), name) in self._seen or (id(value), name) in self._seen:
            return reason
        self._notes.names.add(name)
        return self._explain_attribute(args, value, name)

    def _explain_attribute(self, args: tuple[Any, ...], value: Any, name: str) -> str | None:
        kind = type(value)
        if name == "grad" and (native.is_proxy(value) or issubclass(kind, torch.Tensor)):
            return "asks for the gradient of a tensor, which descriptions leave out"
        if name in _EVERYTHING or (name in _NOT_DESCRIBED and not self._is_thunders_own()):
            return f"asks for {name}"
        if name in _OF_ARRAYS and issubclass(kind, numpy.ndarray | numpy.generic | numpy.dtype):
            return f"asks for {name} of a {name_of(kind)}, which descriptions leave out"
        if introspection.is_environment(value):
            self._notes.classes.setdefault(id(kind), kind)
            return self._note_variable(args, name)
        if issubclass(kind, types.ModuleType):
            return self._note_module(args, value, name)
        if kind is super:
            return native.explain_attribute(value, name)
        if native.is_class(value):
            self._notes.classes.setdefault(id(value), value)
            self._seen.add((id(value), name))
            return native.explain_attribute(value, name)
        self._notes.classes.setdefault(id(kind), kind)
        if name == "__dict__" and self._describer.is_partly_unknown(kind):
            wanted = f"asks for all attributes of a {name_of(kind)}, not all of which have a value to compare"
            return None if _has_own_default(args) else wanted
        reason = None
        if name.startswith("__") and name.endswith("__"):  # Thunder looks these up without interpreting code
            reason = native.explain_attribute(value, name)
        if reason is None and (not name.startswith("__") or find_in_class(kind, name) is not ABSENT):
            self._seen.add((id(kind), name))
        return reason

    def _note_module(self, args: tuple[Any, ...], module: Any, name: str) -> str | None:
        if name == "__dict__":
            return None if _has_own_default(args) else f"asks for all names of the module {module.__name__}"
        if not self._is_thunders_own():
            owner, found = vars(module).get("__name__"), vars(module).get(name, ABSENT)
            if (owner, name) in _NOT_READ:
                return f"reads {owner}.{name}"
            self._notes.attributes[id(module), name] = module, found
            self._note_text(f"{owner}.{name}", found, name)
            self._seen.add((id(module), name))
        if type(module) is not types.ModuleType:
            self._notes.classes.setdefault(id(type(module)), type(module))
        return None

    def _note_text(self, what: str, value: Any, name: str) -> None:
        """Notes the description of a value at this moment. It is compared with the description after the trace."""
        if self._reason is None:
            try:
                self._notes.texts.append((what, value, name, describe(value, what, self._early, name)))
            except Exception as error:  # such as Declined, if it has no value
                self._refuse(str(error))

    def _explain_hooks(self, args: tuple[Any, ...], value: Any, name: str) -> str | None:
        if name not in _WITH_HOOKS or _has_own_default(args) or not has_hooks(value, name):
            return None
        actor = find_user_frame()
        if introspection.find_module_name(actor.globals.value) == _OF_HOOKS or not _is_accessed_by_frame(actor, name):
            return None
        return f"asks for {name}, in which hooks have numbers that count those of the process"

    def _is_tagged(self) -> bool:
        """True if the interpreter is running Dynamo's tagging of a module."""
        return self._tagging.tag is not None and self._tagging.is_running(each.code for each in iterate_user_frames())

    def _is_thunders_own(self) -> bool:
        """True if the interpreted code is Thunder's or this package's, which the versions in the key cover."""
        actor = find_user_frame()
        return actor is not None and is_internal(actor.globals.value)

    def _note_variable(self, args: tuple[Any, ...], name: str) -> str | None:
        """Notes an environment variable read by ``os.environ[...]``; returns the reason to refuse any other access."""
        if name == "__dict__" and not _has_own_default(args):
            return "reads the whole environment"
        if name != "_data":
            return None
        frame = interpreter.get_interpreterruntimectx().peek_frame_stack()
        if frame is None or frame.code is not os._Environ.__getitem__.__code__:
            return "reads the whole environment"
        self._notes.variables.add(frame.localsplus[1].value)
        return None

    def _check_options(self) -> None:
        from fusioncache.thunder_adapter.accelerator_api import SHARP_EDGES_OPTIONS

        if jit_ext.get_jit_ctx().sharp_edges is not SHARP_EDGES_OPTIONS.ALLOW:
            self._refuse("the option sharp_edges has tracing report what a stored program could not")

    def _refuse_step(self, reason: str | None) -> None:
        """Refuses the program if there is a reason, and names the innermost function outside Thunder and this package.

        Args:
            reason: what that function does; None for nothing to refuse.
        """
        if reason is not None:
            own = next((each for each in iterate_user_frames() if not is_internal(each.globals.value)), None)
            self._refuse(f"{own.qualname} {reason}" if own is not None else reason)

    def _refuse(self, reason: str) -> None:
        self._reason = self._reason or reason

    def reads(self) -> tuple[Read, ...]:
        """Returns the reads in the order in which they are compared.

        Raises:
            Declined: if the program depends on something that cannot be compared, or has a lasting side effect.
        """
        if self._reason is None and not self._notes.functions:
            self._refuse("its tracing could not be observed")
        if self._reason is not None:
            raise Declined(self._reason, Scope.PROGRAM)
        return NoteConverter(self._notes, self._describer, self._key_describer).reads()


def _is_plain_key(value: Any) -> bool:
    if native.is_class(value):
        return native.is_hashed_by_identity(value)
    return native.is_plain(value, atoms=True) and not native.is_nan(value)


def _is_accessed_by_frame(actor: Any, name: str) -> bool:
    """True if a frame's code may itself access an attribute.

    A shortcut for torch's lookup of parameters accesses ``__dict__`` while the frame loads another attribute.
    """
    return actor.inst is None or actor.inst.opname != "LOAD_ATTR" or actor.inst.argval == name


def _has_own_default(args: tuple[Any, ...]) -> bool:
    """True if Thunder looks up an attribute to find another one: it passes a bare ``object()`` as default."""
    return len(args) > 2 and type(args[2].value) is object and name_instruction(args[2].provenance.inst) == "CONSTANT"
