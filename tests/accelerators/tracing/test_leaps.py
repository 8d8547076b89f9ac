"""Methods of tensors, with Thunder's choice of an operation interpreted and leapt over: the same traces and errors."""

from collections import Counter
from unittest import mock

import pytest
import thunder
import torch
from same_traces import OWN, list_interpreted, trace_with
from thunder.core import interpreter, pytree
from thunder.torch.experimental import dtensor_torch_and_prims

from fusioncache import tracing
from fusioncache.thunder_adapter.installation import TRACING

X = torch.linspace(-1, 1, 6).reshape(2, 3)


def several(x):
    y = x.transpose(0, 1).reshape(2, 3).transpose(0, 1)
    return y.reshape((2, 3)) + x.reshape(2, -1).transpose(-1, -2).reshape(2, 3)


def caught(x):
    try:
        x = x.transpose(0, 7)
    except IndexError as error:
        x = x + len(str(error))
    return x.transpose(0, 1).transpose(0, 1)


def raised(x):
    return x.transpose(0, 1).transpose(0, 1).reshape(7)


def what_it_looks_up(x):
    """Meets what is looked up on the way, before it and after it, from elsewhere."""
    kinds = {torch.Size: 1, list: 2, torch.device: 3, type(None): 4}
    x = x.transpose(0, 1) * kinds[torch.Size]
    x = x.transpose(0, 1) * kinds[list] + isinstance(x, torch.Tensor) + len([torch.distributed.is_available()])
    return x.transpose(0, 1) * (2 if torch.finfo(torch.float32).bits == 32 else 3)


class Holder(torch.nn.Module):
    """Has as attributes what is looked up on the way."""

    def __init__(self):
        super().__init__()
        self.kinds = (torch.Size, torch.device, filter, map)
        self.module, self.more = torch.types, torch.distributed
        self.flatten, self.all, self.number = pytree.tree_flatten, all, 3

    def forward(self, x):
        x = x.transpose(0, 1) * len(self.kinds)
        x = x.transpose(0, 1) * self.number * self.all([self.more.is_available(), True])
        x = x.transpose(0, 1) + (self.kinds[0] is torch.Size) + (self.module.py_sym_types[0] is torch.SymInt)
        return x.transpose(0, 1) + len(list(self.kinds[3](lambda each: each, (1, 2)))) + len(self.flatten((1, 2))[0])


PROGRAMS = {each.__name__: each for each in (several, caught, raised, what_it_looks_up)} | {"Holder": Holder()}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_traces_and_errors_are_the_same(program):
    assert trace_with([*OWN, "leaps"], program, X) == trace_with(OWN, program, X)


def test_all_but_the_first_choice_are_leapt_over_and_have_their_frames():
    wrapper, counts = "dispatch_to_impl.<locals>.wrapper", []
    for groups in ([name for name in TRACING if name != "leaps"], TRACING):
        tracing.uninstall()
        tracing.install(groups)
        counts.append(Counter(frame.qualname for frame in list_interpreted(several, X)))
    own, fast = counts
    assert own[wrapper] == fast[wrapper] > 2
    assert own["tree_flatten"] > fast["tree_flatten"] > 0
    assert fast["is_available"] == 1 < own["is_available"]


WATCHED = {id(each) for each in (interpreter.builtins_dict, torch, torch.types, torch.distributed, torch.autograd)}


def find_looked_up(groups, program):
    """What has been looked up in each object that has a wrapper when a program is traced."""
    found, run = {}, interpreter._setup_frame_and_run_python_function

    def note(compile_context, context, function, /, *args, **kwargs):
        result = run(compile_context, context, function, *args, **kwargs)
        for key in WATCHED:
            (reference,) = context._known_wrappers.get(key, (lambda: None,))
            wrapper = reference()
            if wrapper is not None:
                names = wrapper.item_wrappers if isinstance(wrapper.value, dict) else wrapper.attribute_wrappers
                found[key] = set(map(str, names))
        return result

    with mock.patch.object(interpreter, "_setup_frame_and_run_python_function", note):
        trace_with(groups, program, X)
    return found


@pytest.mark.parametrize("program", [several, what_it_looks_up])
def test_what_was_looked_up_is_the_same(program):
    own = find_looked_up(OWN, program)
    assert own and find_looked_up([*OWN, "leaps"], program) == own


def test_a_function_on_the_way_that_was_exchanged_is_called(monkeypatch):
    called = []

    def tree_flatten(args, namespace=""):
        called.append(1)
        return pytree.optree.tree_flatten(args, none_is_leaf=True, namespace=namespace)

    tracing.install(["leaps"])
    monkeypatch.setattr(dtensor_torch_and_prims, "tree_flatten", tree_flatten)
    thunder.jit(lambda x: x.transpose(0, 1).transpose(0, 1).transpose(0, 1))(X)
    assert len(called) >= 3
