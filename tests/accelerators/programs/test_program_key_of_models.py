"""Each single thing of a model: changed, the key is another one that names it; changed back, it is the one before."""

import contextlib

import pytest
import torch
from program_keys import Norm, assert_names, changed, key_of

X = torch.zeros(3, 4)


def put(owner_of, name, value):
    """Returns a change of an attribute of something that is found in the model."""
    return lambda model: changed(owner_of(model), name, value)


@contextlib.contextmanager
def hooked(register):
    handle = register()
    try:
        yield
    finally:
        handle.remove()


def double(module, args, output=None):
    """A hook."""
    return None


@contextlib.contextmanager
def with_backward_hook(model):
    with hooked(lambda: model.norm.register_full_backward_hook(double)):
        yield
    # Torch leaves it as it is, and it changes how the next one is called.
    model.norm._is_full_backward_hook = None


@contextlib.contextmanager
def grad_off(parameter):
    parameter.requires_grad_(False)
    try:
        yield
    finally:
        parameter.requires_grad_(True)


@contextlib.contextmanager
def in_eval(module):
    module.eval()
    try:
        yield
    finally:
        module.train()


class Loud(torch.nn.Linear):
    """Another class with the same attributes."""


@contextlib.contextmanager
def of_class(value, cls):
    old = type(value)
    value.__class__ = cls
    try:
        yield
    finally:
        value.__class__ = old


@contextlib.contextmanager
def reordered(modules):
    before = dict(modules)
    modules.clear()
    modules.update(reversed(before.items()))
    try:
        yield
    finally:
        modules.clear()
        modules.update(before)


OF_THE_MODEL = {
    "a number": (put(lambda m: m.norm, "eps", 1e-6), "`model.norm.eps`: 1e-05, 1e-06"),
    "the type of a number": (put(lambda m: m.norm, "eps", 0), "`model.norm.eps`"),
    "a new attribute": (put(lambda m: m.norm, "extra", None), "`model.norm.extra`"),
    "an item of a dict": (lambda m: changed(m.norm.settings, "mode", "layer"), "`model.norm.settings`"),
    "a list that is one object": (
        lambda m: changed(m.norm.settings, "again", m.norm.settings["steps"]),
        "`model.norm.settings`",
    ),
    "a module in evaluation": (lambda m: in_eval(m.idle), "`model.idle.training`"),
    "a forward hook": (lambda m: hooked(lambda: m.norm.register_forward_hook(double)), "`model.norm._forward_hooks`"),
    "a forward hook before": (
        lambda m: hooked(lambda: m.norm.register_forward_pre_hook(double)),
        "`model.norm._forward_pre_hooks`",
    ),
    "a backward hook": (with_backward_hook, "`model.norm._backward_hooks`"),
    "a hook of a parameter": (lambda m: hooked(lambda: m.norm.weight.register_hook(double)), "`model.norm.weight`"),
    "a parameter without gradient": (lambda m: grad_off(m.norm.weight), "`model.norm.weight`"),
    "a parameter's dtype": (
        lambda m: changed(m.norm._parameters, "weight", torch.nn.Parameter(torch.ones(4, dtype=torch.bfloat16))),
        "`model.norm.weight`",
    ),
    "a parameter's shape": (
        lambda m: changed(m.norm._parameters, "weight", torch.nn.Parameter(torch.ones(1))),
        "`model.norm.weight`",
    ),
    "a parameter's strides": (
        lambda m: changed(m.second._parameters, "weight", torch.nn.Parameter(torch.ones(4, 4).T)),
        "`model.second.weight`",
    ),
    "a parameter's device": (
        lambda m: changed(m.norm._parameters, "weight", torch.nn.Parameter(torch.ones(4, device="meta"))),
        "`model.norm.weight`",
    ),
    "a tied parameter": (
        lambda m: changed(m.second._parameters, "weight", m.first.weight),
        "`model.second.weight`",
    ),
    "a parameter in the memory of another": (
        lambda m: changed(m.second._parameters, "bias", torch.nn.Parameter(m.first.bias.detach())),
        "`model.second.bias`",
    ),
    "a parameter less": (lambda m: changed(m.second._parameters, "bias", None), "`model.second.bias`"),
    "a buffer's shape": (
        lambda m: changed(m.norm._buffers, "shift", torch.zeros(2)),
        r"`model.norm.shift`: .*\(4,\) .*, .*\(2,\)",
    ),
    "a buffer that is not saved": (
        put(lambda m: m.norm, "_non_persistent_buffers_set", {"shift"}),
        "`model.norm._non_persistent_buffers_set`",
    ),
    "a submodule's class": (lambda m: of_class(m.second, Loud), "`model.second`"),
    "a submodule more": (lambda m: changed(m._modules, "third", torch.nn.Identity()), "`model.third`"),
    "a submodule less": (lambda m: changed(m._modules, "idle", None), "`model.idle`"),
    "a submodule that is met twice": (lambda m: changed(m._modules, "second", m.first), "`model.second`"),
    "a method of one object": (
        put(lambda m: m.norm, "forward", lambda x: x),
        "`model.norm.forward`",
    ),
    "an attribute of a class": (lambda m: changed(Norm, "power", 3), "the class `program_keys.Norm`"),
    "a method of a class": (lambda m: changed(Norm, "forward", lambda self, x: x), "the class `program_keys.Norm`"),
    "a property": (lambda m: changed(Norm, "gain", property(lambda self: 2.0)), "the class `program_keys.Norm`"),
    "an attribute of a base of torch": (
        lambda m: changed(torch.nn.Module, "dump_patches", True),
        "the class `torch.nn.modules.module.Module`",
    ),
    "a method of torch": (
        lambda m: changed(torch.nn.Linear, "forward", lambda self, x: x),
        "the class `torch.nn.modules.linear.Linear`",
    ),
}


@pytest.mark.parametrize("name", OF_THE_MODEL)
def test_the_key_names_what_changed_in_the_model(name, model, jitted, key):
    change, expected = OF_THE_MODEL[name]
    with change(model):
        assert_names(expected, key, key_of(jitted, X))
