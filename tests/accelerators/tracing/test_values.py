"""Wrappers, records and constraints of Thunder's interpreter: what the shortcuts make is what Thunder makes."""

import dis
from collections import OrderedDict

import pytest
import torch
from same_traces import OWN, trace_with
from thunder.core import interpreter, jit_ext
from thunder.core.interpreter import INTERPRETER_CALLBACKS, ProvenanceRecord, PseudoInst, WrappedValue
from thunder.core.proxies import Proxy

from fusioncache import tracing
from fusioncache.thunder_adapter.installation import TRACING
from fusioncache.thunder_adapter.shortcuts.values import index_constraints

X = torch.linspace(-1, 1, 4)


class Word(str):
    """A text of another type."""


class Number(int):
    """A number of another type."""


def some_function():
    """A function."""


VALUES = [
    *(1, 2.5, True, None, "text", b"bytes", (), (1, 2), [1], {"a": 1}, {}, {1}, range(2), Word("a"), Number(1)),
    *(
        some_function,
        len,
        int,
        torch.nn.Module,
        object(),
        "".join,
        str.join,
        [].__len__,
        list.__len__,
        OrderedDict(a=1),
    ),
    *(
        torch.nn.Linear,
        Proxy,
        X,
        torch.nn.ReLU(),
        torch.float32,
        some_function.__code__,
        interpreter.Py_NULL(),
        slice(1),
    ),
]


@pytest.fixture(autouse=True)
def thunders_own():
    """Every test starts and ends with Thunder's own functions."""
    tracing.uninstall()
    yield
    tracing.uninstall()


@pytest.fixture
def contexts():
    """What the interpreter asks for while it runs, with what it is told of each new wrapper."""
    told = []
    compiling = interpreter.InterpreterCompileCtx(
        opcode_interpreter=None,
        fn_lookaside=None,
        callbacks={INTERPRETER_CALLBACKS.WRAP_CALLBACK: told.append},
        with_provenance_tracking=True,
        uncacheable_classes=(torch.Tensor,),
    )
    running = interpreter.InterpreterRuntimeCtx(record_history=False, debug_log=None)
    with interpreter.interpreter_ctx(compiling, running):
        yield running, told


def record(*inputs, flag=0, inst=PseudoInst.CONSTANT):
    """Makes a record, and flags it."""
    made = ProvenanceRecord(inst, inputs=list(inputs))
    made.ext_flag = flag
    return made


def describe(wrapper, running):
    """Every attribute of a wrapper, and whether it is kept for the next time."""
    parts = dict(vars(wrapper))
    assert parts.pop("nothing") is parts.pop("original_value")
    parts["value"], provenance = id(parts["value"]), parts.pop("provenance")
    kept = running._known_wrappers.pop(id(wrapper.value), None)
    return parts, id(provenance), id(provenance.value), kept is not None and kept[0]() is wrapper


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("inst", [PseudoInst.CONSTANT, PseudoInst.OPAQUE, next(dis.get_instructions("1"))])
def test_wrappers_are_thunders(contexts, value, inst):
    running, told = contexts
    provenance = record(inst=inst)
    own = describe(WrappedValue(value, provenance=provenance), running)
    tracing.install(["values"])
    wrapper = WrappedValue(value, provenance=provenance)
    assert told.pop() is wrapper
    assert describe(wrapper, running) == own
    again = interpreter.wrap(value, provenance=provenance)
    assert again.value is value and interpreter.wrap(again, provenance=record()) is again
    assert (interpreter.wrap(value, provenance=record()) is again) == own[-1]


def test_records_are_thunders():
    first, second = record(flag=6), record(flag=3)
    shapes = [[], [first], [first, second], [first, second, record(flag=2)], [record(flag=-1)]]
    own = [ProvenanceRecord(PseudoInst.OPAQUE, inputs=inputs) for inputs in shapes]
    tracing.install(["values"])
    for inputs, expected in zip(shapes, own, strict=True):
        made = ProvenanceRecord(PseudoInst.OPAQUE, inputs=inputs, ext_flag=4)
        assert made == expected and hash(made) == hash(expected) and made.inputs is not inputs
    for bad in ({"inst": "LOAD", "inputs": []}, {"inst": PseudoInst.NEW, "inputs": (first,)}):
        with pytest.raises(AssertionError):
            ProvenanceRecord(**bad)
    with pytest.raises(AssertionError):
        ProvenanceRecord(PseudoInst.NEW, inputs=[first, None])


class Reads(torch.nn.Module):
    """Reads numbers, texts and tensors of many places, some of them again and again."""

    def __init__(self):
        super().__init__()
        self.numbers = {"half": 0.5, "two": 2, "mode": "mean", "flag": True}
        self.shared = self.numbers
        self.weight = self.same = torch.nn.Parameter(torch.ones(4))
        self.register_buffer("table", torch.arange(4.0))
        self.device = torch.device("cpu")

    def forward(self, x, scale, name, *pair, **named):
        for key in ("half", "two", "half"):
            x = x * self.numbers[key] + self.shared[key]
        if name == self.numbers["mode"] and self.numbers["flag"]:
            x = x + self.weight * self.same + self.table.to(self.device)
        return x * scale + pair[0] * pair[1][0] + named["k"]


def test_traces_stay_the_same():
    args, kwargs = (Reads(), X, 2, "mean", X, (3, 4)), {"k": 1.5}
    own = trace_with(OWN, *args, **kwargs)
    assert "check_number_type_and_value" in own[0]
    for groups in ([*OWN, "values"], [*OWN, "constraints"], [*OWN, "instructions"], TRACING):
        assert trace_with(groups, *args, **kwargs) == own, groups


def check(*args):
    """What a constraint starts with."""


def test_constraints_are_thunders():
    """The same ones, in the same order, also where they were put there by somebody else, or are on no proxy."""
    one, other, same = (jit_ext.ProxyInterface.__new__(Proxy) for _ in range(3))
    one._name, other._name, same._name = "a", "b", "a"
    given = [
        *((check, one, 1), (check, one, 2), (check, same, 1), (check, other, 1), (len, one, 1), (check, one)),
        *((check, other, 1), (sum, one, other), (sum, same, other), (sum, one, same), (check, one, 1.0)),
        *((max, one, "a"), (max, one, "a"), (max, one, 3), (max, one, float("nan")), (max, one, float("nan"))),
        *((min,), (min,), (max, one, 3), (max, other, 3), (max, one, "b"), (max, same, "b")),
    ]

    class Context:
        def __init__(self):
            self._constraints = []

    own_add, compared = jit_ext.JitCtx.add_constraint, []

    def add_and_count(self, constraint):
        compared.append(len(self._constraints))
        own_add(self, constraint)

    own, ours = Context(), Context()
    add = index_constraints(add_and_count)
    for constraint in given:
        own_add(own, constraint)
        add(ours, constraint)
        assert ours._constraints == own._constraints
    for context in (own, ours):
        context._constraints.append((check, other, 7))
    own_add(own, (check, other, 7))
    add(ours, (check, other, 7))
    assert ours._constraints == own._constraints
    compared.clear()
    fresh = Context()
    for number in range(20):
        proxy = jit_ext.ProxyInterface.__new__(Proxy)
        proxy._name = f"p{number}"
        add(fresh, (check, proxy))
    assert len(fresh._constraints) == 20 and not any(compared)


def test_the_stack_knows_the_instruction(monkeypatch):
    """While the handler of an instruction runs, and no longer, however it ends."""
    inst = next(dis.get_instructions("1"))
    seen, defaults = [], interpreter.interpret.__kwdefaults__

    def handler(inst, /, stack):
        seen.append((stack.provenance_inst, stack.provenance_inputs, stack.output_idx))
        stack.output_idx += 1
        raise ValueError("of the handler")

    for groups in ((), ["instructions"]):
        tracing.install(groups)
        stack = interpreter.InterpreterStack()
        monkeypatch.setitem(interpreter._default_opcode_handler_map, inst.opname, handler)
        for _ in range(2):
            with pytest.raises(ValueError, match="of the handler"):
                defaults["opcode_interpreter"](inst, stack=stack)
            assert stack.provenance_inst is stack.provenance_inputs is None
        with stack.set_cur_instruction(inst), pytest.raises(AssertionError):
            defaults["opcode_interpreter"](inst, stack=stack)
        monkeypatch.delitem(interpreter._default_opcode_handler_map, inst.opname)
        unhandled = defaults["opcode_interpreter"](inst, stack=stack)
        assert unhandled is interpreter.INTERPRETER_SIGNALS.UNHANDLED_OPCODE
        monkeypatch.undo()
    assert seen == [(inst, [], 0)] * 4
