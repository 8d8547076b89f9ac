"""Values as Thunder's interpreter has them: each in a wrapper that says where it comes from.

Also whether each step that the interpreter takes is wanted, as by a history, so that shortcuts leave out none.

The interpreter makes records of origins by the ten thousand, and constraints. A constraint on an input, which the
prologue checks, is compared only with those on the same one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, wraps
from typing import Any
from weakref import WeakKeyDictionary


def keeps_history() -> bool:
    """Returns whether each call and each instruction that is interpreted is written down."""
    kept: bool = _interpreter_and_options()[0].get_interpreterruntimectx()._record_history
    return kept


def wants_every_step() -> bool:
    """Returns whether more than a trace is made: a history is kept, or values of no known origin are reported."""
    interpreter, jit_ext, allow = _interpreter_and_options()
    if interpreter.get_interpretercompilectx()._fn_lookaside is not jit_ext.general_jit_lookaside:
        return True
    return keeps_history() or jit_ext.get_jit_ctx().sharp_edges is not allow


@cache
def _interpreter_and_options() -> tuple[Any, Any, Any]:
    """Imports it once: an import takes longer than the rest of a question."""
    from thunder.core import interpreter, jit_ext
    from thunder.core.options import SHARP_EDGES_OPTIONS

    return interpreter, jit_ext, SHARP_EDGES_OPTIONS.ALLOW


def is_wrapped(value: Any, *types: type) -> bool:
    """Returns whether this is the interpreter's wrapper around a value of exactly one of these types."""
    return isinstance(value, _thunder().WrappedValue) and type(value.value) in types


def call_method(name: str, container: Any, *args: Any) -> Any:
    """Calls what the interpreter has in place of a container's method."""
    return find_function(getattr(type(container.value), name))(container, *args)


def find_function(function: Any) -> Any:
    """Returns what the interpreter has in place of a builtin function; None if nothing.

    That stays the same while a program is interpreted. So it is kept with what the interpreter keeps as long.
    """
    interpreter = _thunder()
    found = vars(interpreter.get_interpreterruntimectx()).setdefault("_found_by_fusioncache", {})
    if function not in found:
        found[function] = interpreter.get_interpretercompilectx().lookaside(function)
    return found[function]


def wrap_globals(function: Any) -> Any:
    """Wraps the globals of a function of Thunder's, as its frame has them and keeps them while it is interpreted."""
    interpreter = _thunder()
    known = interpreter.get_interpreterruntimectx()._known_wrappers.get(id(function.__globals__))
    wrapper = known and known[0]()
    if wrapper is not None:
        return wrapper
    wrap = interpreter.wrap_const
    return interpreter.wrap_attribute(function.__globals__, wrap(function), wrap("__globals__"))


def look_up_builtins(globals_dict: Any, *names: str) -> None:
    """Wraps builtins that the interpreter would look up in what a shortcut does without.

    If these globals, or the dict of builtins, have a wrapper elsewhere, those of the builtins live as long. Code that
    meets the same builtin elsewhere is then given its wrapper, and the prologue guards where that is from, or does not.
    """
    wrap = _thunder().wrap_const
    builtins = globals_dict.item_wrappers.get("__builtins__")
    if builtins is None:
        builtins = call_method("__getitem__", globals_dict, wrap("__builtins__"))
    for name in names:
        if name not in builtins.item_wrappers:
            call_method("__getitem__", builtins, wrap(name))


@cache
def _thunder() -> Any:
    """Imports it once: an import takes longer than the rest of a question."""
    from thunder.core import interpreter

    return interpreter


def pass_stack(value: Any) -> Any:
    """Does to a value what it undergoes on the interpreter's stack: if it is a tuple, its items are wrapped."""
    if isinstance(value, _thunder().WrappedValue) and isinstance(value.value, tuple):
        value.track_items()
        for item, wrapper in zip(value.value, value.item_wrappers, strict=False):
            assert item is wrapper.value or item is wrapper.original_value, f"{item}, {wrapper.value}"
    return value


def shorten_record(original: Callable[..., Any]) -> Callable[..., Any]:
    """Combines the flags of the inputs of a record in one loop, in which it also looks at their types."""
    from dis import Instruction

    from thunder.core.interpreter import ProvenanceRecord, PseudoInst

    @wraps(original)
    def __post_init__(self: Any) -> None:
        inputs, flags = self.inputs, -1
        if type(inputs) is not list or type(self.inst) not in (PseudoInst, Instruction):
            return original(self)
        for each in inputs:
            if type(each) is not ProvenanceRecord:
                return original(self)
            flags &= each.ext_flag
        self.inputs = inputs.copy()
        self.ext_flag = flags if inputs else 0
        return None

    return __post_init__


@dataclass(slots=True)
class _Constraints:
    """Some constraints, all of which start with the same kind of check of the same proxy. Thunder adds to them."""

    _constraints: list[Any] = field(default_factory=list)


@dataclass(slots=True)
class _Index:
    """The constraints of one trace by the name of the proxy that they are on.

    Attributes:
        of_proxy: the constraints on each proxy, by its name.
        count: how many constraints these are.
    """

    of_proxy: dict[str, _Constraints] = field(default_factory=dict)
    count: int = 0


def index_constraints(original: Callable[..., Any]) -> Callable[..., Any]:
    """Looks for the same constraint among those on the same proxy: on another, none is the same."""
    from thunder.core.baseutils import ProxyInterface

    indices: WeakKeyDictionary[Any, _Index] = WeakKeyDictionary()

    @wraps(original)
    def add_constraint(self: Any, constraint: Any) -> None:
        index = indices.setdefault(self, _Index())
        is_on_proxy = len(constraint) > 1 and isinstance(constraint[1], ProxyInterface)
        if not is_on_proxy or index.count != len(self._constraints):  # other code has added one, or this does
            return original(self, constraint)
        same = index.of_proxy.setdefault(constraint[1].name, _Constraints())
        before = len(same._constraints)
        original(same, constraint)
        if len(same._constraints) > before:
            self._constraints.append(constraint)
            index.count += 1
        return None

    return add_constraint
