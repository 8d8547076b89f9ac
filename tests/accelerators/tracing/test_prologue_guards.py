"""A rewritten prologue notices a change between two steps exactly if Thunder's prologue does."""

import inspect
import re

import pytest
import thunder
import torch
from models import compile_with
from own_tensors import Own
from stored_programs import compile_anew
from thunder.core.compile_data import compile_data_and_stats

from fusioncache.accelerators.steps.prologue import CALLS

SCALE = 2.0
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


class Part(torch.nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.linear = torch.nn.Linear(width, 4)
        self.dropout = torch.nn.Dropout(0.0)
        self.whole, self.real, self.truth, self.text, self.nothing = 3, 0.5, True, "relu", None
        self.missing = float("nan")
        self.listed, self.named, self.kind = [1, 2.0], {"a": 1, "b": 2}, torch.float32
        self.register_buffer("shift", torch.ones(4))

    @property
    def computed(self):
        return self.whole + 1

    def forward(self, x):
        x = self.dropout(self.linear(x) + self.shift) * self.whole * self.computed
        x = torch.relu(x) if self.text == "relu" else torch.tanh(x)
        x = x * self.real if self.truth else x
        x = x if self.nothing is None else x + self.nothing
        x = x + 1 if self.missing != self.missing else x
        for number in self.listed:
            x = x * number
        for name in self.named:
            x = x + self.named[name]
        return x.to(self.kind)


class Model(torch.nn.Module):
    rows = 2

    def __init__(self):
        super().__init__()
        self.parts = torch.nn.ModuleList([Part(), Part()])
        self.depth = 2

    def forward(self, x, factor=2.0, others=(), options=None):
        for part in self.parts[: self.depth]:
            x = part(x) * SCALE * self.rows
        for other in others:
            x = x + other
        return x * factor if self.training else x - factor


X = torch.linspace(-1, 1, 8).reshape(2, 4)


def part(name, value):
    return lambda model, patch: patch.setattr(model.parts[1], name, value)


def override(name, value):
    """Replaces a parameter that Thunder's module stores for the model."""
    return lambda model, patch: patch.setitem(model.compiled._overrides_parameters, name, value)


def weight(*shape, **options):
    return torch.nn.Parameter(torch.ones(*shape, **options))


CHANGES = {
    "nothing": lambda model, patch: None,
    "a whole number": part("whole", 4),
    "a list's length": part("listed", [1, 2.0, 3]),
    "a key of a dict": part("named", {"a": 1, "c": 2}),
    "an attribute that is gone": lambda model, patch: patch.delattr(model.parts[1], "whole"),
    "a submodule that Thunder's module has": lambda model, patch: patch.setitem(
        model.compiled._module_cache, "parts.1", model.parts[0]
    ),
    "the number of submodules": lambda model, patch: patch.setattr(model, "depth", 1),
    "an attribute that Thunder's module has": lambda model, patch: patch.setitem(vars(model.compiled), "depth", 1),
    "one of its class": lambda model, patch: patch.setattr(type(model.compiled), "depth", 1, raising=False),
    "one of torch's class": lambda model, patch: patch.setattr(torch.nn.Module, "rows", 3, raising=False),
    "one of the model's class": lambda model, patch: patch.setattr(Model, "rows", 3),
    "the class of Thunder's module": lambda model, patch: patch.setattr(
        model.compiled, "__class__", type("Mine", (type(model.compiled),), {"depth": 1})
    ),
    "the mode": lambda model, patch: model.compiled.eval() and model.compiled.train,
    "training of a part": lambda model, _: model.parts[1].dropout.eval().train,
    "what needs gradients": lambda model, _: model.parts[0].linear.weight.requires_grad_(False).requires_grad_,
    "a parameter that Thunder's module has": override("parts.0.linear.bias", weight(4)),
    "its shape": override("parts.0.linear.weight", weight(4, 1)),
    "its class": override("parts.0.linear.weight", torch.ones(4, 4).as_subclass(Own).requires_grad_()),
    "a parameter that is gone": lambda model, patch: patch.delitem(
        model.compiled._overrides_parameters, "parts.0.linear.weight"
    ),
    "how a parameter is found": lambda model, patch: patch.setattr(
        model.compiled, "get_parameter", lambda name: weight(4, 3)
    ),
    "how all are found": lambda model, patch: patch.setattr(
        thunder.ThunderModule, "get_buffer", lambda self, name: torch.ones(4, dtype=torch.float16)
    ),
    "a buffer": lambda model, patch: patch.setitem(
        model.compiled._overrides_buffers, "parts.0.shift", torch.ones(4, dtype=torch.float64)
    ),
    "a global": lambda model, patch: patch.setitem(globals(), "SCALE", 3.0),
    "the dtype of new tensors": lambda model, patch: (
        torch.set_default_dtype(torch.float64) or (lambda: torch.set_default_dtype(torch.float32))
    ),
}
"""For each change a function that makes it, and returns a function that undoes it if ``patch`` does not."""

ARGUMENTS = {
    "rows": (X[:1],),
    "device": (X.to("meta"),),
    "gradients": (X.clone().requires_grad_(),),
    "layout": (X.t().contiguous().t(),),
    "class": (X.as_subclass(Own),),
    "a whole number": (X, 2),
    "text": (X, "a"),
    "list": (X, 2.0, [X]),
    "one more": (X, 2.0, (), None),
    "no tensor": (3.0,),
    "too many": (X, 2.0, (), None, 1),
}

UNNOTICED = {
    *("nothing", "a list's length", "its class", "layout", "class", "a submodule that Thunder's module has"),
    *("a parameter that Thunder's module has", "a parameter that is gone"),
}
"""Changes that Thunder does not check: harmless ones, and gaps in Thunder, which stay."""


def call(compiled, prologue, args):
    """Returns what a prologue returns or raises if Thunder calls it: ids of objects, or an error's type and text."""
    data, stats = thunder.compile_data(compiled), thunder.compile_stats(compiled)
    with compile_data_and_stats(data, stats):
        token = thunder._cache_info_ctx.set({})
        try:
            data.populate_cache_info(thunder._get_cache_info(), *args)
            inputs, others = prologue(*args)
            return [*map(id, inputs), others]
        except Exception as error:
            return [type(error), _ADDRESS.sub("", str(error))]
        finally:
            thunder._cache_info_ctx.reset(token)


@pytest.fixture(scope="module", params=["derived", "filled in"])
def model(request, tmp_path_factory):
    """A compiled model with two prologues: one as Thunder made it (or would have made it), and the rewritten one."""
    torch.manual_seed(0)
    model = Model()
    if request.param == "derived":
        compiled, _ = compile_with(model, programs=False, sizes="static")
    else:
        compiled, transform = compile_anew(model, tmp_path_factory.mktemp("filled"))
        for rows in (7, 8, 9):
            compiled(torch.randn(rows, 4))
    for _ in range(CALLS):
        compiled(X)
    assert request.param == "derived" or transform.stats().programs_filled == 2
    timed = inspect.getclosurevars(thunder.compile_stats(compiled).interpreter_cache[-1].prologue_fn).nonlocals
    (quickened,) = (each for each in timed.values() if hasattr(each, "__wrapped__"))
    found = inspect.getclosurevars(quickened).nonlocals
    assert found["current"] is not found["prologue"]
    object.__setattr__(model, "compiled", compiled)
    object.__setattr__(model, "prologues", (found["prologue"], found["current"]))
    return model


@pytest.mark.parametrize("what", CHANGES)
def test_what_changed_is_noticed_as_thunder_notices_it(model, what):
    with pytest.MonkeyPatch.context() as patch:
        undo = CHANGES[what](model, patch)
        try:
            own, rewritten = (call(model.compiled, prologue, (X,)) for prologue in model.prologues)
        finally:
            if undo is not None:
                undo()
    assert rewritten == own
    assert isinstance(own[0], type) is (what not in UNNOTICED)


@pytest.mark.parametrize("what", ARGUMENTS)
def test_other_arguments_are_noticed_as_thunder_notices_them(model, what):
    own, rewritten = (call(model.compiled, prologue, ARGUMENTS[what]) for prologue in model.prologues)
    assert rewritten == own
    assert isinstance(own[0], type) is (what not in UNNOTICED)


@pytest.mark.parametrize("how", [torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16)])
def test_the_state_of_torch_is_noticed_as_thunder_notices_it(model, how):
    with how():
        own, rewritten = (call(model.compiled, prologue, (X,)) for prologue in model.prologues)
    assert rewritten == own and isinstance(own[0], type)
