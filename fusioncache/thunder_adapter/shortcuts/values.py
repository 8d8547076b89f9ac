"""Values of Thunder's interpreter, each in a wrapper with its origin; and shortcuts for origins and constraints.

Also checks whether every step of the interpreter is wanted, as by a history, so that shortcuts skip none.

The interpreter makes tens of thousands of provenance records, and constraints. A constraint on an input, which the
prologue checks, is compared only with constraints on the same input.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from dis import Instruction
from functools import wraps
from typing import Any
from weakref import WeakKeyDictionary

from thunder.core import interpreter, jit_ext
from thunder.core.baseutils import ProxyInterface
from thunder.core.options import SHARP_EDGES_OPTIONS


def keeps_history() -> bool:
    """True if the interpreter records a history of its calls and instructions."""
    kept: bool = interpreter.get_interpreterruntimectx()._record_history
    return kept


def needs_every_step() -> bool:
    """True if more than a trace is made: a history is recorded, or values of unknown origin are reported."""
    if interpreter.get_interpretercompilectx()._fn_lookaside is not jit_ext.general_jit_lookaside:
        return True
    return keeps_history() or jit_ext.get_jit_ctx().sharp_edges is not SHARP_EDGES_OPTIONS.ALLOW


def is_wrapped(value: Any, *types: type) -> bool:
    """True if this is the interpreter's wrapper around a value of exactly one of these types."""
    return isinstance(value, interpreter.WrappedValue) and type(value.value) in types


def call_method(name: str, container: Any, *args: Any) -> Any:
    """Calls the interpreter's lookaside of a container's method."""
    return find_function(getattr(type(container.value), name))(container, *args)


def find_function(function: Any) -> Any:
    """Returns the interpreter's lookaside of a builtin function; None if it has none.

    It stays the same while a program is interpreted, so it is cached in the interpreter's runtime context.
    """
    found = vars(interpreter.get_interpreterruntimectx()).setdefault("_found_by_fusioncache", {})
    if function not in found:
        found[function] = interpreter.get_interpretercompilectx().lookaside(function)
    return found[function]


def wrap_globals(function: Any) -> Any:
    """Returns the wrapped globals of a Thunder function, which its frame would hold while it is interpreted."""
    known = interpreter.get_interpreterruntimectx()._known_wrappers.get(id(function.__globals__))
    wrapper = known and known[0]()
    if wrapper is not None:
        return wrapper
    wrap = interpreter.wrap_const
    return interpreter.wrap_attribute(function.__globals__, wrap(function), wrap("__globals__"))


def look_up_builtins(globals_dict: Any, *names: str) -> None:
    """Wraps builtins that the interpreter would look up in the code that a shortcut skips.

    If other code holds a wrapper of these globals or of the builtins' dict, the builtins' wrappers live as long. Code
    that meets the same builtin elsewhere then gets its wrapper, whose origin the prologue guards, or does not.
    """
    wrap = interpreter.wrap_const
    builtins = globals_dict.item_wrappers.get("__builtins__")
    if builtins is None:
        builtins = call_method("__getitem__", globals_dict, wrap("__builtins__"))
    for name in names:
        if name not in builtins.item_wrappers:
            call_method("__getitem__", builtins, wrap(name))


def pass_stack(value: Any) -> Any:
    """Returns the value after the effect of the interpreter's stack on it: the items of a tuple are wrapped."""
    if isinstance(value, interpreter.WrappedValue) and isinstance(value.value, tuple):
        value.track_items()
        for item, wrapper in zip(value.value, value.item_wrappers, strict=False):
            assert item is wrapper.value or item is wrapper.original_value, f"{item}, {wrapper.value}"
    return value


def shorten_record(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a ``__post_init__`` that combines the flags of a record's inputs and checks their types in one loop."""
    instructions, record = (interpreter.PseudoInst, Instruction), interpreter.ProvenanceRecord

    @wraps(original)
    def __post_init__(self: Any) -> None:
        inputs, flags = self.inputs, -1
        if type(inputs) is not list or type(self.inst) not in instructions:
            return original(self)
        for each in inputs:
            if type(each) is not record:
                return original(self)
            flags &= each.ext_flag
        self.inputs = inputs.copy()
        self.ext_flag = flags if inputs else 0
        return None

    return __post_init__


@dataclass(slots=True)
class _Constraints:
    """The constraints on one proxy, as an object to which Thunder's ``add_constraint`` appends."""

    _constraints: list[Any] = field(default_factory=list)


@dataclass(slots=True)
class _Index:
    """An index of the constraints of one trace by proxy.

    Attributes:
        of_proxy: the constraints on each proxy, by its name.
        count: the number of indexed constraints.
    """

    of_proxy: dict[str, _Constraints] = field(default_factory=dict)
    count: int = 0


def index_constraints(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns an ``add_constraint`` that looks for duplicates only among the constraints on the same proxy."""
    indices: WeakKeyDictionary[Any, _Index] = WeakKeyDictionary()

    @wraps(original)
    def add_constraint(self: Any, constraint: Any) -> None:
        index = indices.setdefault(self, _Index())
        is_on_proxy = len(constraint) > 1 and isinstance(constraint[1], ProxyInterface)
        if not is_on_proxy or index.count != len(self._constraints):  # other code has added one, or this call does
            return original(self, constraint)
        same = index.of_proxy.setdefault(constraint[1].name, _Constraints())
        before = len(same._constraints)
        original(same, constraint)
        if len(same._constraints) > before:
            self._constraints.append(constraint)
            index.count += 1
        return None

    return add_constraint
