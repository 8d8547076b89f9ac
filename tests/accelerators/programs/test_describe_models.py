"""What a model and its tensors are: each thing that is part of one, changed alone, and the paths whose lines change."""

import copy
import threading
from typing import Any

import pytest
import torch
from described import changed, described, walked

from fusioncache.accelerators.programs.describe import Describer
from fusioncache.ir.errors import Declined


class Attention(torch.nn.Module):
    scale = 2.0

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


def other_hook(*arguments):
    return 1


class Sub(torch.nn.Parameter):
    pass


def view_of(tensor: torch.Tensor) -> torch.nn.Parameter:
    return torch.nn.Parameter(tensor.detach()[:])


def set_class(model):
    model.drop.__class__ = torch.nn.AlphaDropout


def replace(name: str, value: Any):
    def change(model):
        owner, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(owner), attribute, value(model) if callable(value) else value)

    return change


def parameter(*shape: int, **options: Any) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.ones(*shape, **options))


Q = "model.layers.0.qkv"
# What is changed, and the lines that say so.
CHANGES = {
    "a new attribute": (replace("layers.1.new", None), {"model.layers.1.new"}),
    "something in an attribute": (lambda m: m.layers[0].tables["a"].append(3), {"model.layers.0.tables"}),
    "a class": (set_class, {"model.drop", "classes"}),
    "a hook for backward": (
        lambda m: m.head.register_full_backward_hook(hook),
        {"model.head._backward_hooks", "model.head._is_full_backward_hook"},
    ),
    "a hook with arguments": (
        lambda m: m.head.register_forward_hook(hook, with_kwargs=True),
        {"model.head._forward_hooks", "model.head._forward_hooks_with_kwargs"},
    ),
    "a buffer's persistence": (
        lambda m: m.layers[0]._non_persistent_buffers_set.clear(),
        {"model.layers.0._non_persistent_buffers_set"},
    ),
    "the strides of a parameter": (
        replace("layers.0.qkv.weight", lambda m: torch.nn.Parameter(torch.ones(4, 12).t())),
        {f"{Q}.weight"},
    ),
    "the offset of a parameter": (
        replace("layers.0.qkv.weight", lambda m: torch.nn.Parameter(torch.ones(13, 4)[1:])),
        {f"{Q}.weight"},
    ),
    "the device of a parameter": (lambda m: m.layers[0].qkv.to("meta"), {f"{Q}.weight"}),
    "the class of a parameter": (
        replace("layers.0.qkv.weight", lambda m: Sub(torch.ones(12, 4))),
        {f"{Q}.weight", "classes"},
    ),
    "a hook after accumulation": (
        lambda m: m.layers[0].qkv.weight.register_post_accumulate_grad_hook(hook),
        {f"{Q}.weight"},
    ),
    "a tied parameter": (replace("embed.weight", lambda m: m.head.weight), {"model.head.weight", "model.extra"}),
    "a parameter that is a view of another": (
        replace("layers.1.qkv.weight", lambda m: view_of(m.layers[0].qkv.weight)),
        {"model.layers.1.qkv.weight"},
    ),
    "a parameter that is a buffer now": (
        lambda m: (delattr(m.layers[0].qkv, "weight"), m.layers[0].qkv.register_buffer("weight", torch.ones(12, 4))),
        {f"{Q}.weight"},
    ),
    "a buffer that is complex and conjugated": (
        replace("layers.0.mask", lambda m: torch.ones(4, 4, dtype=torch.complex64).conj()),
        {"model.layers.0.mask"},
    ),
    "a buffer with names": (
        replace("layers.0.mask", lambda m: torch.ones(4, 4, names=("a", "b"))),
        {"model.layers.0.mask"},
    ),
    "a buffer that was computed": (
        replace("layers.0.mask", lambda m: parameter(4, 4) * 2),
        {"model.layers.0.mask"},
    ),
    "one module in two places": (
        replace("layers.1.qkv", lambda m: m.layers[0].qkv),
        {f"model.layers.1.qkv{part}" for part in ("", ".weight", ".bias", ".in_features", ".out_features")},
    ),
    "no module": (
        replace("layers.1.qkv", None),
        {f"model.layers.1.qkv{part}" for part in ("", ".weight", ".bias", ".in_features", ".out_features")},
    ),
    "a table that is missing": (lambda m: delattr(m.head, "_forward_hooks"), {"model.head"}),
}


@pytest.fixture(scope="module")
def before():
    return walked(Model())


@pytest.mark.parametrize("name", CHANGES)
def test_each_change_is_told_by_its_lines(name, before, monkeypatch):
    monkeypatch.setattr(Attention, "scale", Attention.scale)
    change, paths = CHANGES[name]
    model = Model()
    assert changed(before, walked(model)) == set()
    torch.nn.Module.register_forward_hook(torch.nn.ReLU(), other_hook)  # the numbers of hooks go on
    change(model)
    assert changed(before, walked(model)) == paths


def test_numbers_are_no_part_of_a_model(before):
    model = Model()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
            parameter.grad = torch.ones_like(parameter)
    assert changed(before, walked(model)) == set()


class Early(torch.nn.Module):
    """Has an attribute before it has what every module has."""

    def __init__(self, *, is_early: bool) -> None:
        if is_early:
            self.size = 4
        super().__init__()
        self.size = 4
        self.eps = 0.5


def test_attributes_are_told_by_their_place_among_those_of_every_module():
    early, usual, late = Early(is_early=True), Early(is_early=False), Early(is_early=False)
    late.training = late.__dict__.pop("training")
    assert list(vars(early)).index("size") < list(vars(usual)).index("size")
    for each in (early, late):
        assert changed(walked(usual), walked(each)) == {"model"}
        assert described(usual) != described(each)
        assert walked(each) == walked(copy.deepcopy(each))


def test_arguments_that_are_parts_of_the_model_say_so():
    model = Model()

    def walk(argument):
        describer = Describer()
        list(describer.walk("model", model))
        return dict(describer.walk("args", (argument,)))["args"]

    weight, table = model.head.weight, model.layers[0].tables
    assert walk(weight) == "(@model.head.weight, )"
    assert walk(table) == "(@model.layers.0.tables, )"
    assert walk(weight.detach()).endswith("in @model.head.weight, )")
    assert "@" not in walk(weight.detach().clone())


def test_tensors_met_in_one_description_are_known_in_the_next():
    first, second = torch.ones(2), torch.ones(2)

    def texts(*values):
        describer = Describer()
        return [describer.describe(value) for value in values]

    assert texts([first], [first]) != texts([first], [second])
    assert texts([first], [second]) == texts([second], [first])
    assert texts([first], [first[:1]]) != texts([first], [torch.ones(1)])


def test_paths_say_which_attribute_it_is():
    def model(*names):
        made = torch.nn.Module()
        for name in names:
            made.__dict__[name] = 1
        return list(Describer().walk("model", made))

    names = ["a", "a b", "a.b", "a\nb", "%20%", "", "ä"]
    lines = [model(name)[1] for name in names]
    assert len(set(lines)) == len(names)
    assert not any(" " in path or "\n" in path for path, _ in lines)


class Shape(torch.nn.Module):
    """Has more than attributes: slots, and what it has as a dict of its own."""

    __slots__ = ("hidden",)


class Table(torch.nn.Module, dict):
    pass


@pytest.mark.parametrize(
    ("cls", "change"), [(Shape, lambda m: setattr(m, "hidden", 1)), (Table, lambda m: dict.__setitem__(m, 1, 2))]
)
def test_what_a_module_has_besides_attributes_is_part_of_it(cls, change):
    made = cls()
    before = walked(made)
    change(made)
    assert changed(before, walked(made)) == {"model"}


def test_two_things_under_one_path_have_two_names():
    model = torch.nn.Linear(1, 1)
    model.__dict__["weight"] = [1]

    def name(part):
        describer = Describer()
        list(describer.walk("model", model))
        return describer.describe(part)

    assert name(model._parameters["weight"]) != name(model.__dict__["weight"])


def test_what_has_no_value_is_told_by_its_path():
    model = Model()
    model.layers[1].guard = [threading.Lock()]
    with pytest.raises(Declined, match=r"^model\.layers\.1\.guard: a _thread\.lock has no value to compare$"):
        walked(model)


def test_a_copy_of_a_describer_goes_on_for_itself():
    model, tensor = Model(), torch.ones(1)
    describer = Describer()
    list(describer.walk("model", model))
    copied = describer.copy()
    assert copied.classes == describer.classes and copied.covers(Attention.forward.__code__)
    assert copied.describe([model.head, tensor]) == describer.copy().describe([model.head, tensor])
    assert copied.describe(tensor) != describer.describe(tensor) == Describer().describe(tensor)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.ones(2, 2).to_sparse(),
        lambda: torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]),
        lambda: torch.quantize_per_tensor(torch.ones(2), 1.0, 0, torch.qint8),
        lambda: torch._subclasses.FakeTensorMode().from_tensor(torch.ones(2)),
    ],
)
def test_tensors_that_are_more_than_strides_have_no_value(make):
    model = torch.nn.Linear(1, 1)
    model.table = [make()]
    with pytest.raises(Declined):
        walked(model)


def test_a_graph_module_is_its_code():
    def traced(function):
        return torch.fx.symbolic_trace(function)

    assert walked(traced(lambda x: x + 1)) == walked(traced(lambda x: x + 1)) != walked(traced(lambda x: x + 2))
    describer, module = Describer(), traced(lambda x: x + 1)
    list(describer.walk("model", module))
    assert describer.find_unknown(type(module), "_graph") is not None
    assert describer.covers_global(module.forward.__func__.__globals__, "torch") is False
