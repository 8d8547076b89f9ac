"""Values as Thunder's interpreter makes them by the ten thousand: wrappers, records of their origins, constraints.

Most of them hold a name, a number, None or a function, of which only the first few questions that Thunder asks of any
value are to be asked. A constraint on an input, which the prologue checks, is compared only with those on the same one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from types import (
    BuiltinFunctionType,
    FunctionType,
    MethodDescriptorType,
    MethodType,
    MethodWrapperType,
    NoneType,
    WrapperDescriptorType,
)
from typing import Any
from weakref import WeakKeyDictionary


def shorten_instruction(original: Callable[..., Any]) -> Callable[..., Any]:
    """Tells the stack which instruction is at work without a generator that is entered and left for each."""
    from thunder.core import interpreter

    handlers, stack_type = interpreter._default_opcode_handler_map, interpreter.InterpreterStack
    unhandled = interpreter.INTERPRETER_SIGNALS.UNHANDLED_OPCODE

    @wraps(original)
    def default_opcode_interpreter(inst: Any, /, **state: Any) -> Any:
        handler, stack = handlers.get(inst.opname), state["stack"]
        if handler is None:
            return unhandled
        if type(stack) is not stack_type or stack.provenance_inst is not None or stack.provenance_inputs is not None:
            return original(inst, **state)
        stack.provenance_inst, stack.provenance_inputs, stack.output_idx = inst, [], 0
        try:
            return handler(inst, **state)
        finally:
            stack.provenance_inst = stack.provenance_inputs = None

    return default_opcode_interpreter


_NEVER_KEPT = frozenset({str, int, float, bool, NoneType})
"""The types of values that have a new wrapper each time."""
_MAPPED = _NEVER_KEPT - {str} | {
    FunctionType,
    BuiltinFunctionType,
    MethodWrapperType,
    WrapperDescriptorType,
    MethodDescriptorType,
    MethodType,
    dict,
    type,
    object,
}
"""Types of what is no sequence. Their wrappers keep wrappers of items by key."""


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


def shorten_wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
    """Makes the wrapper of a value that is no sequence without asking the abstract class of sequences."""
    from thunder.core.interpreter import (
        INTERPRETER_CALLBACKS,
        ProvenanceRecord,
        PseudoInst,
        get_interpretercompilectx,
        get_interpreterruntimectx,
    )

    @wraps(original)
    def __init__(self: Any, value: Any, /, *, provenance: Any) -> None:
        kind = type(value)
        if type(provenance) is not ProvenanceRecord or not (kind is str or kind in _MAPPED):
            return original(self, value, provenance=provenance)
        context = get_interpretercompilectx()
        self.python_typ = kind
        self.nothing = self.original_value = object()
        self.has_item_tracking = False
        self.value = value
        self.item_wrappers = None if kind is str else {}
        if kind is not str:
            self.key_wrappers = {}
        self.attribute_wrappers = {}
        self.provenance = provenance
        if provenance.inst is PseudoInst.CONSTANT:
            provenance.value = value
        if kind not in _NEVER_KEPT:
            get_interpreterruntimectx().cache_wrapper(self)
        callback = context.callback(INTERPRETER_CALLBACKS.WRAP_CALLBACK)
        if callback is not None:
            callback(self)
        return None

    return __init__


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
