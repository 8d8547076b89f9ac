"""Descriptions of models and tensors: each part that they contain, changed alone, and the paths whose lines change."""

import threading
from typing import Any

import pytest
import torch
from described import changed, described, walked
from recorded_reads import describe_key

from fusioncache.accelerators.programs.describe import Describer
from fusioncache.ir.errors import Declined


class Attention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = torch.nn.Linear(4, 12, bias=False)
        self.register_buffer("mask", torch.ones(4, 4), persistent=False)
        self.heads = 2
        self.tables: Any = {"a": [1, 2]}

    def forward(self, x):
        return self.qkv(x)


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(8, 4)
        self.layers = torch.nn.ModuleList([Attention(), Attention()])
        self.drop = torch.nn.Dropout(0.5)
        self.head = torch.nn.Linear(4, 8, bias=False)
        self.extra = [torch.ones(2), self.head.weight]


def hook(*arguments):
    return None


class Sub(torch.nn.Parameter):
    pass


def replace(name: str, value: Any):
    def change(model):
        owner, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(owner), attribute, value(model) if callable(value) else value)

    return change


def weight(change):
    """Returns a change that applies a function to the weight, and assigns its result if that is a parameter."""

    def change_model(model):
        qkv = model.layers[0].qkv
        found = change(qkv.weight)
        qkv.weight = found if isinstance(found, torch.nn.Parameter) else qkv.weight

    return change_model


def mask(make):
    return replace("layers.0.mask", lambda model: make())


WEIGHT, MASK = "model.layers.0.qkv.weight", "model.layers.0.mask"
OF_QKV = {f"model.layers.1.qkv{part}" for part in ("", ".weight", ".bias", ".in_features", ".out_features")}
# Changes, each with the paths of the lines that differ.
CHANGES = {
    "the name of an attribute": (
        lambda m: setattr(m.layers[0], "other", vars(m.layers[0]).pop("tables")),
        {"model.layers.0.tables", "model.layers.0.other"},
    ),
    "an attribute behind those of every module": (
        lambda m: vars(m.drop).update(training=vars(m.drop).pop("training")),
        {"model.drop"},
    ),
    "something in an attribute": (lambda m: m.layers[0].tables["a"].append(3), {"model.layers.0.tables"}),
    "a class": (lambda m: setattr(m.drop, "__class__", torch.nn.AlphaDropout), {"model.drop", "classes"}),
    "training": (lambda m: m.head.eval(), {"model.head.training"}),
    "a module": (replace("layers.0.qkv", lambda m: torch.nn.Linear(4, 12)), {"model.layers.0.qkv.bias"}),
    "one module in two places": (replace("layers.1.qkv", lambda m: m.layers[0].qkv), OF_QKV),
    "no module": (replace("layers.1.qkv", None), OF_QKV),
    "a table that is missing": (lambda m: delattr(m.head, "_forward_hooks"), {"model.head"}),
    "a hook for backward": (
        lambda m: m.head.register_full_backward_hook(hook),
        {"model.head._backward_hooks", "model.head._is_full_backward_hook"},
    ),
    "a hook with arguments": (
        lambda m: m.head.register_forward_hook(hook, with_kwargs=True),
        {"model.head._forward_hooks", "model.head._forward_hooks_with_kwargs"},
    ),
    "what needs gradients": (weight(lambda each: each.requires_grad_(False)), {WEIGHT}),
    "the type of a parameter": (lambda m: m.layers[0].qkv.double(), {WEIGHT}),
    "the strides of a parameter": (weight(lambda _: torch.nn.Parameter(torch.ones(4, 12).t())), {WEIGHT}),
    "the offset of a parameter": (weight(lambda _: torch.nn.Parameter(torch.ones(13, 4)[1:])), {WEIGHT}),
    "the device of a parameter": (lambda m: m.layers[0].qkv.to("meta"), {WEIGHT}),
    "the class of a parameter": (weight(lambda _: Sub(torch.ones(12, 4))), {WEIGHT, "classes"}),
    "an attribute of a parameter": (weight(lambda each: setattr(each, "mark", 1)), {WEIGHT}),
    "a hook of a parameter": (weight(lambda each: each.register_hook(hook)), {WEIGHT}),
    "a parameter that is a view of another": (
        replace("layers.1.qkv.weight", lambda m: torch.nn.Parameter(m.layers[0].qkv.weight.detach()[:])),
        {"model.layers.1.qkv.weight"},
    ),
    "a parameter that is a buffer now": (
        lambda m: (delattr(m.layers[0].qkv, "weight"), m.layers[0].qkv.register_buffer("weight", torch.ones(12, 4))),
        {WEIGHT},
    ),
    "a buffer's persistence": (
        lambda m: m.layers[0]._non_persistent_buffers_set.clear(),
        {"model.layers.0._non_persistent_buffers_set"},
    ),
    "the type of a buffer": (mask(lambda: torch.zeros(4, 4).double()), {MASK}),
    "a buffer that is complex and conjugated": (mask(lambda: torch.ones(4, 4, dtype=torch.complex64).conj()), {MASK}),
    "a buffer with names": (mask(lambda: torch.ones(4, 4, names=("a", "b"))), {MASK}),
    "a buffer that was computed": (mask(lambda: torch.nn.Parameter(torch.ones(4, 4)) * 2), {MASK}),
}


def test_each_change_is_told_by_its_lines():
    before = walked(Model())
    for name, (change, paths) in CHANGES.items():
        model = Model()
        assert changed(before, walked(model)) == set()
        torch.nn.Module.register_forward_hook(torch.nn.ReLU(), hook)  # advances the number of the next hook
        change(model)
        assert changed(before, walked(model)) == paths, name


def test_numbers_are_no_part_of_a_model():
    model = Model()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
            parameter.grad = torch.ones_like(parameter)
    assert walked(model) == walked(Model())


class Early(torch.nn.Module):
    def __init__(self, *, is_early: bool) -> None:
        if is_early:
            self.size = 4
        super().__init__()
        self.size = 4


def test_an_attribute_that_is_there_before_those_of_every_module_is_told():
    early, usual = Early(is_early=True), Early(is_early=False)
    assert changed(walked(usual), walked(early)) == {"model"} and described(usual) != described(early)


def test_arguments_that_are_parts_of_the_model_say_so():
    model = Model()
    weight, table = model.head.weight, model.layers[0].tables
    given = weight, table, weight.detach(), weight.detach().clone()
    whole, items, view, copied = (dict(describe_key(model).walk("args", (each,)))["args"] for each in given)
    assert (whole, items) == ("(@model.head.weight, )", "(@model.layers.0.tables, )")
    assert view.endswith("in @model.head.weight, )") and "@" not in copied


def test_tensors_met_in_one_description_are_known_in_the_next():
    first, second = torch.ones(2), torch.ones(2)
    others = [first], [second], [first[:1]], [torch.ones(1)]
    same, other, part, alone = ([*map(Describer().describe, ([first], each))] for each in others)
    assert same != other and part != alone


def test_a_graph_module_is_its_code():
    module, same, other = map(torch.fx.symbolic_trace, (lambda x: x + 1, lambda x: x + 1, lambda x: x + 2))
    assert walked(module) == walked(same) != walked(other)


def test_paths_say_which_attribute_it_is():
    def walk(name):
        made = torch.nn.Module()
        made.__dict__[name] = 1
        return list(Describer().walk("model", made))[1]

    names = ["a", "a b", "a.b", "a\nb", "%20%", "", "ä"]
    paths = [path for path, _ in map(walk, names)]
    assert len(set(paths)) == len(names)
    assert not any(" " in path or "\n" in path for path in paths)


class Shape(torch.nn.Module):
    __slots__ = ("hidden",)


class Table(torch.nn.Module, dict):
    pass


@pytest.mark.parametrize(
    ("cls", "change"), [(Shape, lambda m: setattr(m, "hidden", 1)), (Table, lambda m: dict.__setitem__(m, 1, 2))]
)
def test_slots_and_items_of_a_module_are_part_of_it(cls, change):
    made = cls()
    before = walked(made)
    change(made)
    assert changed(before, walked(made)) == {"model"}


def test_two_things_under_one_path_have_two_names():
    model = torch.nn.Linear(1, 1)
    model.__dict__["weight"] = [1]
    parameter, attribute = model._parameters["weight"], model.__dict__["weight"]
    names = [describe_key(model).describe(each) for each in (parameter, attribute)]
    assert names[0] != names[1]


def test_what_has_no_value_is_told_by_its_path():
    model = Model()
    model.layers[1].guard = [threading.Lock()]
    with pytest.raises(Declined, match=r"^model\.layers\.1\.guard: a _thread\.lock has no value to compare$"):
        walked(model)


def test_a_copy_of_a_describer_goes_on_for_itself():
    model, tensor = Model(), torch.ones(1)
    describer = describe_key(model)
    copied = describer.copy()
    assert [*copied.list_classes()] == [*describer.list_classes()] and copied.covers(Attention.forward.__code__)
    assert copied.describe([model.head, tensor]) == describer.copy().describe([model.head, tensor])
    assert copied.describe(tensor) != describer.describe(tensor) == Describer().describe(tensor)
