"""Wrappers, records and constraints of Thunder's interpreter: what the shortcuts make is what Thunder makes."""

import dis

import pytest
from thunder.core import interpreter, jit_ext
from thunder.core.proxies import Proxy

from fusioncache import tracing
from fusioncache.thunder_adapter.shortcuts.values import index_constraints


@pytest.fixture(autouse=True)
def thunders_own():
    """Every test starts and ends with Thunder's own functions."""
    tracing.uninstall()
    yield
    tracing.uninstall()


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
