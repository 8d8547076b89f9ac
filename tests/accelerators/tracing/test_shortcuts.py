"""Shortcuts of Thunder's interpreter: what they leave out, what they leave alone, and what is reported all the same.

That no trace, result or error differs is for ``test_hostile_programs.py``.
"""

import dis
import warnings

import pytest
import thunder
import torch
from same_traces import OWN, list_interpreted, trace_with
from thunder.core import interpreter

from fusioncache import tracing
from fusioncache.thunder_adapter.installation import TRACING, find_known
from fusioncache.thunder_adapter.shortcuts import calls, lookups

X = torch.linspace(-1, 1, 4)


def weigh(first, /, second=1, *rest, scale=1, **named):
    return first * second * scale + sum(rest) + sum(named[each] for each in sorted(named))


def forwarding(x, *args):
    kwargs = {"scale": 2}
    return weigh(x, *args, **kwargs) + weigh(x, *args, *[1, 2], **{"first": 3}, **kwargs) + weigh(*(x,))


def loop(x):
    for each in [1, 2]:
        x = x + each
    a, b = (each * 2 for each in (1, 2))
    return x * a + b


def test_nothing_that_can_be_done_natively_is_interpreted():
    """Each is one of Thunder's functions, and none is interpreted where it has plain containers to work on."""
    tracing.install(["natives"])
    known = {id(code): code.co_qualname for code, _ in interpreter._interpret_call.natives}
    assert len(known) == len(calls.list_natives())
    ran = {id(frame.code) for frame in list_interpreted(forwarding, X, 2)}
    assert ran and not ran & set(known)


def test_iterators_of_lists_and_attributes_of_modules_are_not_interpreted():
    def find_names():
        frames = [*list_interpreted(loop, X), *list_interpreted(torch.nn.Linear(4, 4), X)]
        names = {frame.qualname for frame in frames}
        return {name for name in names if "Iter" in name or "next" in name or "_iter_" in name or "__getattr__" in name}

    assert find_names()
    tracing.install([*OWN, "iteration", "attributes"])
    assert not find_names()


@pytest.mark.parametrize("groups", [[], ["instructions"]])
def test_the_stack_knows_an_instruction_while_its_handler_runs_however_it_ends(monkeypatch, groups):
    tracing.install(groups)
    run, handlers = interpreter.interpret.__kwdefaults__["opcode_interpreter"], interpreter._default_opcode_handler_map
    inst, stack, seen = next(dis.get_instructions("1")), interpreter.InterpreterStack(), []

    def handler(inst, /, stack):
        seen.append((stack.provenance_inst, stack.provenance_inputs, stack.output_idx))
        stack.output_idx += 1
        raise ValueError("of the handler")

    monkeypatch.setitem(handlers, inst.opname, handler)
    for _ in range(2):
        with pytest.raises(ValueError, match="of the handler"):
            run(inst, stack=stack)
        assert stack.provenance_inst is stack.provenance_inputs is None
    assert seen == [(inst, [], 0)] * 2
    with stack.set_cur_instruction(inst), pytest.raises(AssertionError):
        run(inst, stack=stack)
    monkeypatch.delitem(handlers, inst.opname)
    assert run(inst, stack=stack) is interpreter.INTERPRETER_SIGNALS.UNHANDLED_OPCODE


@pytest.mark.parametrize("native", calls.list_natives(), ids=lambda native: native.do.__name__)
def test_what_has_another_source_is_interpreted(native):
    known = find_known("small functions")
    assert native.list_code(known)
    del known[native.owner]
    assert native.list_code(known) == []


def test_a_record_of_the_interpreter_is_whole():
    """It has Thunder's own functions as well."""

    def count():
        compiled = thunder.jit(forwarding, debug_options=thunder.DebugOptions(record_interpreter_history=True))
        compiled(X, 2)
        return len(thunder.last_interpreter_log(compiled))

    own = count()
    tracing.install(["natives"])
    assert count() == own


class Failing(torch.nn.Module):
    """Has a property that fails."""

    calls: list[str] = []  # noqa: RUF012

    @property
    def failing(self):
        self.calls.append("ran")
        raise AttributeError("failing")

    def forward(self, x):
        return x + getattr(self, "failing", 1)


@pytest.mark.parametrize("is_known", [True, False])
def test_a_property_that_fails_runs_once(monkeypatch, is_known):
    """Whatever its error is: what it did before may be in the trace."""
    if not is_known:  # another torch has another ``__getattr__``, which is interpreted
        monkeypatch.setattr(lookups, "find_known", lambda capability: {})
    found = []
    for groups in (OWN, [*OWN, "attributes"]):
        Failing.calls.clear()
        found.append((trace_with(groups, Failing(), X), [*Failing.calls]))
    assert found[0] == found[1] and found[0][1] == ["ran"]


def test_values_of_no_known_origin_are_warned_of_as_before():
    """Each is, also in what a shortcut would leave out."""

    def program(x, scale, *rest, **named):
        def inner(y):
            nonlocal scale
            scale = scale + 1
            return y * scale + rest[0] * named["k"]

        x = inner(x) + inner(inner(x)) * scale
        return x if len(x.shape) - 1 else -x

    def warned(groups):
        tracing.uninstall()
        tracing.install(groups)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            thunder.jit(program, sharp_edges="warn")(X, 2, X, k=3)
        return [str(each.message) for each in caught if "sharp edge" in str(each.message)]

    own = warned(())
    assert len(own) > 2
    for groups in (["cells"], ["natives"], [*OWN, "conditions", "operators", "iteration"], TRACING):
        assert warned(groups) == own, groups
