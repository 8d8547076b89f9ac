"""Checks of calls that Thunder does not interpret: the list of reviewed functions, each with its check.

Thunder interprets Python code, so these are calls of functions written in C and of functions that have a lookaside. A
call is allowed if its function is on the list and ``native`` confirms that the arguments run no code of their own.
Calls of Thunder's operations are allowed too, because the key's function map covers them. After any other call the
program is not stored. A check gets the trace's ``CallChecker``, the function, and the arguments in the interpreter's
wrappers. It returns why the call must not be made.

Mutating an object has no lasting effect if the object was created in the same trace, or if Thunder repeats the mutation
at the end of each call. Thunder's interpreter records the provenance of each value: an instruction that builds a
container, the call of a class, or anything else. An object whose provenance does not show that it is new counts as one
that existed before the trace.
"""

from __future__ import annotations

import builtins
import collections
import functools
import math
import operator
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any

import torch

from fusioncache.accelerators.programs import native
from fusioncache.accelerators.programs.introspection import QUERIES, find_query
from fusioncache.accelerators.programs.native import is_internal_call, name_of
from fusioncache.thunder_adapter.accelerator_api import interpreter, jit_ext
from fusioncache.thunder_adapter.api import NumberProxy, TensorProxy
from fusioncache.thunder_adapter.hooks import MUTATING, WITH_KEY, name_instruction

_BUILDING = frozenset({
    "BUILD_LIST", "BUILD_MAP", "BUILD_CONST_KEY_MAP", "BUILD_SET", "BUILD_TUPLE", "BUILD_DICT", "NEW", "BINARY_ADD",
    "LIST_TO_TUPLE",
})  # fmt: skip
_GROWING = frozenset({"LIST_APPEND", "LIST_EXTEND"})
"""Instructions that replace the provenance of a list when it grows."""

_OTHER, _CALLED, _EMPTY, _FILLED, _EXTENDED = range(5)
"""Steps of a call of ``list``, the only class whose new instances cannot be recognized by their provenance.

Thunder fills a new list from a temporary list, which is extended first.
"""


class CreatedObjects:
    """The objects that were created in one trace, recorded as they are asked for."""

    def __init__(self) -> None:
        self._made: dict[int, Any] = {}
        self._step = _OTHER

    def has(self, wrapped: Any) -> bool:
        """True if an object was created in this trace, or is immutable."""
        value = wrapped.value
        if id(value) in self._made:
            return True
        provenance = _trace_back(wrapped.provenance)
        if name_instruction(provenance.inst) not in _BUILDING and not _is_made_by_new(provenance):
            return False
        self.note(value)
        return True

    def knows(self, value: Any) -> bool:
        """True if an object is already recorded as created in this trace."""
        return id(value) in self._made

    def note(self, value: Any) -> None:
        """Records an object as created in this trace."""
        self._made[id(value)] = value

    def follow(self, step: int, wrapped: Any = None) -> None:
        """Records a step of a call of ``list`` that begins or directly continues the sequence; otherwise resets it.

        Args:
            step: one of the numbers above.
            wrapped: a list that may have just been created.
        """
        is_next, self._step = step == _CALLED or step == self._step + 1, _OTHER
        if is_next and (wrapped is None or self._note_fresh(wrapped)):
            self._step = step

    def _note_fresh(self, wrapped: Any) -> bool:
        value = wrapped.value
        if type(value) is not list or value or name_instruction(wrapped.provenance.inst) != "CONSTANT":
            return False
        self.note(value)
        return True


def _trace_back(provenance: Any) -> Any:
    """Returns the provenance of an object from before it grew or was moved on the stack."""
    while True:
        name = name_instruction(provenance.inst)
        if name in _GROWING or name == "COPY":
            provenance = provenance.inputs[0]
        elif name == "SWAP" and len(provenance.inputs) == 2:  # the top of the stack, and the value that moves there
            provenance = provenance.inputs[1 - provenance.output_idx]
        else:
            return provenance


def _is_made_by_new(provenance: Any) -> bool:
    if name_instruction(provenance.inst) != "OPAQUE":
        return False
    called = provenance.inputs[0]
    # As in ``super().__new__(cls)``: it is written in C, as it is not interpreted.
    if name_instruction(called.inst) == "LOAD_ATTR":
        return called.inputs[1].value == "__new__"
    fn = called.value
    return fn is types.CellType or (
        isinstance(fn, types.BuiltinFunctionType) and fn.__name__ == "__new__" and isinstance(fn.__self__, type)
    )


def is_interpreted(value: Any) -> bool:
    """True if a value is the interpreter's replacement of a generator, which interprets the generator's code."""
    return type(value) is types.GeneratorType and value.gi_code.co_name == "thunder_interpreter_generator"


type Check = Callable[[CallChecker, Any, tuple[Any, ...], Mapping[str, Any]], str | None]
"""Returns why a call must not be made if the program is to be stored; None if it is allowed."""

_CONTAINERS = (tuple, list, dict, collections.OrderedDict)
_OF_VALUES = (abs, round, divmod, pow, min, max, sum, all, sorted, ord, chr, format, repr, ascii, torch.finfo)
_OPERATORS = (
    "abs", "add", "and_", "concat", "contains", "eq", "floordiv", "ge", "gt", "index", "inv", "invert", "le", "lshift",
    "lt", "matmul", "mod", "mul", "ne", "neg", "not_", "or_", "pos", "pow", "rshift", "sub", "truediv", "truth", "xor",
)  # fmt: skip
_BINARY = frozenset(
    f"__{reflected}{name}__"
    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "divmod")
    for reflected in ("", "r")
) | {"__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"}


def explain_arguments(
    fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], is_fine: Callable[[Any], bool]
) -> str | None:
    """Returns why a function must not be called with one of the arguments; None if all are fine."""
    for each in (*args, *kwargs.values()):
        if not is_fine(each.value):
            return f"calls {name_of(fn)} with a {name_of(type(each.value))}"
    return None


def _check_atoms(trace: CallChecker, fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    """Returns why an argument may run code of its own, or is more than a constant; None if all are constants."""
    return explain_arguments(
        fn, args, kwargs, lambda value: native.is_plain(value, atoms=True) or _is_declined(fn, value)
    )


def _is_declined(fn: Any, value: Any) -> bool:
    """True if a number's method is called with Thunder's proxy of a tensor or of another number.

    The method returns ``NotImplemented`` without running code of the proxy.
    """
    if getattr(fn, "__objclass__", None) not in (int, float, bool, complex):
        return False
    return isinstance(value, TensorProxy) or (
        isinstance(value, NumberProxy) and not isinstance(value, int | float | complex) and fn.__name__ in _BINARY
    )


def _allow(trace: CallChecker, fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    return None


def _check_values(trace: CallChecker, fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    """Checks a call that reads its argument values, including the values that a generator of the trace yields."""
    if is_internal_call(fn, fn.__name__, args):
        return None

    def is_fine(value: Any) -> bool:
        return native.is_plain(value) or trace.consume(value) or _is_asked_in_any_order(fn, value)

    return explain_arguments(fn, args, kwargs, is_fine)


def _is_asked_in_any_order(fn: Any, value: Any) -> bool:
    return (fn in (sorted, min, max) and native.is_set_of(value, int, str)) or (
        fn is sum and native.is_set_of(value, int)
    )


def _check_has_attribute(trace: CallChecker, fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    if len(args) != 2 or type(args[1].value) is not str:
        return None
    return native.explain_attribute(args[0].value, args[1].value)


def _check_instance(trace: CallChecker, fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    return native.explain_instance_check(args[0].value, args[1].value) if len(args) == 2 else None


def _check_subclass(trace: CallChecker, fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    if len(args) != 2 or not native.is_class(args[0].value):
        return f"calls {name_of(fn)}"
    return native.explain_class_check(args[1].value)


def _check_key(trace: CallChecker, fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    if len(args) < 2 or is_key(trace, args[1]) or _has_plain_hash(args[1].value):
        return None
    return f"calls {name_of(fn)} with a {name_of(type(args[1].value))}"


def is_key(trace: CallChecker, wrapped: Any) -> bool:
    """True if a value is hashed and compared without code of its own, and descriptions distinguish it from others."""
    value = wrapped.value
    if native.is_nan(value):
        return False
    if native.is_plain(value, atoms=True) or native.is_plain_member(value):
        return True
    return native.is_hashed_by_identity(value) and (trace.created.has(wrapped) or trace.names(value))


def _has_plain_hash(value: Any) -> bool:
    return isinstance(value, NumberProxy) or (native.is_class(value) and native.is_hashed_by_identity(value))


def _check_change(trace: CallChecker, fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    if not args or trace.created.has(args[0]) or _is_copy(args[0].value):
        return _check_key(trace, fn, args, kwargs) if fn.__name__ in WITH_KEY else None
    return f"calls {name_of(fn)} of an object that existed before tracing"


def _is_copy(value: Any) -> bool:
    """True if this is Thunder's copy of an object, to which it applies the copy's mutations at the end of each call."""
    return any(each.value is value for each in interpreter.get_interpreterruntimectx()._proxied_values)


def _check_item(trace: CallChecker, fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    """Checks an assignment to a dict item. Thunder repeats those to a module's attributes at the end of each call."""
    if args and args[0].provenance.ext_flag & jit_ext.EXT_FLAG_IS_MODULE_MEMBER_DICT:
        return None
    return _check_change(trace, fn, args, kwargs)


def _check_attribute(trace: CallChecker, fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    """Checks an attribute assignment. Except on new objects, Thunder turns it into one to an item of ``__dict__``."""
    if len(args) != 3 or trace.created.has(args[0]):
        return None
    value = args[0].value
    if type(value) in jit_ext._TORCH_DYNAMIC_TYPES or not hasattr(value, "__dict__"):
        return f"sets an attribute of a {name_of(type(value))} that existed before tracing"
    if not isinstance(value, torch.nn.Module) and not trace.names(value):  # another read may reach it, or an equal one
        return f"sets an attribute of a {name_of(type(value))} that existed before tracing"
    return None


def _check_type_call(trace: CallChecker, fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    if args:
        trace.created.follow(_CALLED if args[0].value is list else _OTHER)
    return None


def _check_new_list(trace: CallChecker, fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    if args and args[0].value is not list:
        return f"makes a {name_of(args[0].value)}"
    trace.created.follow(_EMPTY)
    return None


def _check_filled_list(trace: CallChecker, fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    if args:
        trace.created.follow(_FILLED, args[0])
    if len(args) < 2:  # ``list()`` has no items to start with
        trace.created.follow(_OTHER)
    return _check_change(trace, fn, args, kwargs)


def _check_extended_list(trace: CallChecker, fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    if args:
        trace.created.follow(_EXTENDED, args[0])
    return _check_change(trace, fn, args, kwargs)


def _check_new_tuple(trace: CallChecker, fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    from fusioncache.thunder_adapter.accelerator_api import is_likely_from_collections_namedtuple

    cls = args[0].value if args else tuple
    is_named = is_likely_from_collections_namedtuple(cls) and cls.__bases__ == (tuple,) and "__init__" not in vars(cls)
    return None if cls is tuple or cls is torch.Size or is_named else f"makes a {name_of(cls)}"


def _check_next(trace: CallChecker, fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    if not args or not isinstance(args[0].value, interpreter.ThunderInterpreterObject):
        return None
    if trace.created.has(args[0]) or name_instruction(args[0].provenance.inst) == "GET_ITER":
        return None
    return "advances an iterator that existed before tracing"


def _check_members(trace: CallChecker, fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    methods = (fn.__name__, fn.__name__.removeprefix("named_").rstrip("s"), "_named_members", "named_modules")
    kind = type(args[0].value)
    own = [name for name in methods if getattr(kind, name, None) is not getattr(torch.nn.Module, name, None)]
    return f"calls {own[0]} of a {name_of(kind)}" if own else None


def _check_import(trace: CallChecker, fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    """Allows an import only if its module and names are already loaded."""
    name, found = args[0].value, sys.modules.get(args[0].value)
    if found is None:
        return f"imports {name}"
    trace.imports |= {name, name.partition(".")[0]}  # the first is the result if no name is imported from the module
    missing = [each for each in kwargs["fromlist"].value or () if not hasattr(found, each)] if kwargs else []
    return f"imports {name}.{missing[0]}" if missing else None


def _check_checkpoint(trace: CallChecker, fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    strange = [name for name, each in kwargs.items() if name != "use_reentrant" and each.value is not None]
    return f"calls {name_of(fn)} with {strange[0]}, of which Thunder warns" if strange else None


def _note_query(name: str, trace: CallChecker, fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    """Notes the answer to a query; returns why it must not be asked with these arguments, or None."""
    values = tuple(each.value for each in args)
    if kwargs or not all(type(each) in (str, int, bool) for each in values):
        return f"calls {name_of(fn)}"
    if (name, values) not in trace.queries:
        trace.queries[name, values] = fn(*values)
    return None


def _list_queries() -> Iterator[tuple[Any, Check]]:
    """Yields the queries of this torch, each with its check. Of several names of a function the first comes last."""
    for name in reversed(QUERIES):
        with suppress(LookupError):  # not every version of torch has all of them
            yield find_query(name), partial(_note_query, name)


@lru_cache(maxsize=1)
def find_checks() -> Mapping[int, tuple[Any, Check]]:
    """Returns the functions on the list, each with its check, by the identity of the function."""
    return {id(fn): (fn, check) for fn, check in _list_checks()}


def _list_checks() -> tuple[tuple[Any, Check], ...]:
    """Returns the functions on the list, each with its check. A later pair overrides an earlier one."""
    found: list[tuple[Any, Check]] = [(fn, _allow) for fn in (
        getattr, setattr, any, bool, enumerate, zip, iter, len, reversed, super, type, locals, callable,
        functools.partial.__call__, functools.reduce, operator.getitem, interpreter.is_jitting, jit_ext.is_compiling,
        interpreter.is_jitting_with_raise, torch.nn.ModuleList.__getitem__, torch.autocast.__enter__,
        torch.autocast.__exit__, types.CellType.__new__, object.__init__, torch._C._log_api_usage_once,
        torch.autograd.function.Function.apply.__func__, torch.ops.higher_order.autograd_function_apply,
        *(kind.__get__ for kind in (types.FunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)),
        *(vars(kind)["__iter__"] for kind in (range, map, filter, *native.ITERATORS)),
        interpreter.MappingKeysView.__iter__, interpreter.MappingKeysView.__reversed__,
        interpreter.MappingKeysIterator.__next__,
        torch._C._has_torch_function, torch._C._has_torch_function_unary, torch._C._has_torch_function_variadic,
    )]  # fmt: skip
    found += [(fn, _check_atoms) for fn in filter(callable, vars(math).values())]
    found += [(fn, _check_values) for fn in (*_OF_VALUES, *(getattr(operator, name) for name in _OPERATORS))]
    for kind in _CONTAINERS:
        found += [(fn, _choose_check(fn)) for fn in _methods_of(kind)]
    found += [(vars(kind)["__get__"], _check_bound) for kind in (staticmethod, classmethod)]
    found += [
        (hasattr, _check_has_attribute), (isinstance, _check_instance), (issubclass, _check_subclass),
        (next, _check_next), (builtins.__import__, _check_import), (type.__call__, _check_type_call),
        (object.__setattr__, _check_attribute), (object.__delattr__, _check_change), (delattr, _check_change),
        (list.__new__, _check_new_list), (list.__init__, _check_filled_list), (list.extend, _check_extended_list),
        (tuple.__new__, _check_new_tuple), (torch.utils.checkpoint.checkpoint, _check_checkpoint),
        (torch.nn.Module.named_parameters, _check_members), (torch.nn.Module.named_buffers, _check_members),
    ]  # fmt: skip
    return (*found, *_list_queries())


def _check_bound(trace: CallChecker, fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    function = args[0].value.__func__ if args else None
    known = (types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType)
    return None if isinstance(function, known) else f"binds a {name_of(type(function))}"


def _methods_of(kind: type) -> list[Any]:
    """Returns the methods of a container that have a lookaside in the interpreter."""
    known = interpreter._default_provenance_tracking_lookaside_map
    return [each for each in known if kind in (getattr(each, "__objclass__", None), getattr(each, "__self__", None))]


def _choose_check(fn: Any) -> Check:
    if fn.__name__ == "__setitem__" and fn.__objclass__ is not list:
        return _check_item
    if fn.__name__ in MUTATING and getattr(fn, "__objclass__", None) is not tuple:
        return _check_change
    return _check_key if fn.__name__ in WITH_KEY and fn.__objclass__ in (dict, collections.OrderedDict) else _allow


_OF_ATOMS = frozenset(
    map(id, (int, float, complex, bool, str, bytes, range, slice, type(None), tuple, list, dict, set, frozenset))
)
_IN_ANY_ORDER = frozenset({
    "__contains__", "__len__", "__init__", "__and__", "__or__", "__sub__", "__xor__", "__rand__", "__ror__", "__rsub__",
    "__rxor__", "__iand__", "__ior__", "__isub__", "__ixor__", "union", "intersection", "difference", "copy", "clear",
    "symmetric_difference", "issubset", "issuperset", "isdisjoint", "__eq__", "__ne__", "__le__", "__lt__", "__ge__",
    "__gt__", "add", "discard", "remove", "update", "intersection_update", "difference_update",
    "symmetric_difference_update",
})  # fmt: skip
"""Methods of sets whose result does not depend on the order of the items."""
_CHANGING_SETS = frozenset({
    "add", "discard", "intersection_update", "difference_update", "symmetric_difference_update",
})  # fmt: skip
"""Methods that mutate a set, beside those that other containers have as well."""
_APPLIED = frozenset(map(id, (int, float, complex, bool, str, abs, round, len, ord, chr, None)))
"""Functions that ``map`` and ``filter`` may call without the interpreter if the arguments are constants."""
_HINTS = {
    "_lru_cache_wrapper.__call__": "which remembers results, and Thunder runs what is behind it unwatched",
    "map.__new__": "which Thunder runs unwatched: a comprehension is interpreted",
    "filter.__new__": "which Thunder runs unwatched: a comprehension is interpreted",
}
"""Explanations of refused calls that occur in real models."""
_EMPTY_ON_CREATION = (object, types.CellType, super, functools.partial)
_CREATED_FROM_CONSTANTS = (torch.device, torch.Size, collections.OrderedDict)


class CallChecker:
    """Decides which calls of one trace are allowed.

    Args:
        created: records which objects were created in the trace.
        names: returns whether the texts of the key and of reads distinguish an object from others.

    Attributes:
        created: as given.
        names: as it was given.
        consumed: the frames of generators whose values are read by code that is not interpreted.
        queries: torch's answers to queries, by name and arguments of the query.
        imports: names of modules that were imported.
    """

    def __init__(self, created: CreatedObjects, names: Callable[[Any], bool]) -> None:
        self.created = created
        self.names = names
        self.consumed: dict[int, Any] = {}
        self.queries: dict[tuple[str, tuple[Any, ...]], Any] = {}
        self.imports: set[str] = set()

    def consume(self, value: Any) -> bool:
        """True if a value is an unfinished interpreted generator. Its yielded values are checked from then on."""
        if not is_interpreted(value):
            return False
        frame = value.gi_frame.f_locals.get("frame") if value.gi_frame is not None else None
        if frame is None:
            return False
        self.consumed[id(frame)] = frame
        return True

    def explain(self, fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, is_opaque: bool) -> str | None:
        """Returns why a call must not be made; None if it is allowed.

        Args:
            fn: the function.
            args: the positional arguments in the interpreter's wrappers; empty if Thunder only looks up the lookaside.
            kwargs: the keyword arguments.
            is_opaque: whether the interpreter calls the function directly, without a lookaside.
        """
        listed = find_checks().get(id(fn))
        if listed is not None:
            return listed[1](self, fn, args, kwargs)
        if native.is_operation(fn):
            return explain_arguments(fn, args, kwargs, native.is_plain)
        return self._explain_opaque(fn, args, kwargs) if is_opaque else f"calls {name_of(fn)}"

    def _explain_opaque(self, fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
        name, owner = getattr(fn, "__name__", ""), getattr(fn, "__objclass__", None)
        if is_internal_call(fn, name, args):
            return None
        if name == "__new__":
            return self._explain_new(fn, args, kwargs)
        if name == "__init__" and isinstance(owner, type) and issubclass(owner, BaseException):
            return None
        if name == "__next__" and owner is types.GeneratorType:
            is_own = args and is_interpreted(args[0].value)
            return None if is_own else "advances a generator that existed before tracing"
        if (name == "__next__" and owner in (*native.ITERATORS, map, filter)) or (
            name == "__iter__" and owner is types.GeneratorType
        ):
            return None
        own = getattr(fn, "__self__", None)
        if name == "__setattr__" and isinstance(owner, type) and issubclass(owner, BaseException):
            is_new = self.created.has(args[0])
            return None if is_new else "sets an attribute of an exception that existed before tracing"
        if id(owner) in _OF_ATOMS or (isinstance(own, type) and id(own) in _OF_ATOMS):
            return self._explain_method(fn, name, args, kwargs)
        return _refuse_call(fn)

    def _explain_new(self, fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
        own = fn.__self__
        if own in _EMPTY_ON_CREATION or (isinstance(own, type) and issubclass(own, BaseException)):
            return None
        if id(own) in _OF_ATOMS or own in _CREATED_FROM_CONSTANTS:
            return _check_atoms(self, fn, args[1:], kwargs)
        if own in (map, filter) and len(args) > 2 and id(args[1].value) in _APPLIED:
            return _check_atoms(self, fn, args[2:], kwargs)
        return _refuse_call(fn)

    def _explain_method(self, fn: Any, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
        if name == "__hash__":
            return f"calls {name_of(fn)}, and the hash of a text differs from process to process"
        changes = name in MUTATING or name in _CHANGING_SETS or name.startswith("__i")
        if changes and args and not self._may_change(name, args):
            return f"calls {name_of(fn)} of an object that existed before tracing"
        if getattr(fn, "__objclass__", None) in (set, frozenset):
            if name not in _IN_ANY_ORDER and args and native.is_unordered_set(args[0].value):
                return f"calls {name_of(fn)}, and sets have no order of their own"
            if any(native.is_nan(each.value) for each in args):
                return f"calls {name_of(fn)} with a NaN"
            args = tuple(each for each in args if not is_key(self, each) and not self._holds_keys(each))
        elif name == "join" and len(args) == 2 and self.consume(args[1].value):
            args = args[:1]
        return _check_atoms(self, fn, args, kwargs)

    def _holds_keys(self, wrapped: Any) -> bool:
        """True if a value is a set, and all of its items may be keys."""
        value = wrapped.value
        if not native.is_set(value):
            return False
        return all(native.is_atom(each) or self._is_distinguishable(each) for each in value)

    def _is_distinguishable(self, value: Any) -> bool:
        return native.is_hashed_by_identity(value) and (self.created.knows(value) or self.names(value))

    def _may_change(self, name: str, args: tuple[Any, ...]) -> bool:
        value = args[0].value
        if not isinstance(value, (list, dict, set)) or name == "__iter__" or self.created.has(args[0]):
            return True  # numbers and strings are immutable: ``__index__`` and ``__int__`` mutate nothing
        if type(value) is set and name in ("add", "discard") and len(args) == 2 and native.is_atom(args[1].value):
            return (args[1].value in value) is (name == "add")  # a no-op, as when a module's buffer is assigned
        return False


def _refuse_call(fn: Any) -> str:
    name = name_of(fn)
    return f"calls {name}, {_HINTS[name]}" if name in _HINTS else f"calls {name}"
