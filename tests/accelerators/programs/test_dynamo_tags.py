"""Dynamo tags each module that is made from when it first ran: a program is the same with and without that."""

import importlib

import pytest
import torch
from recorded_reads import describe_key, record

from fusioncache import tracing
from fusioncache.accelerators.programs.describe import list_lines
from fusioncache.accelerators.programs.introspection import MARK, find_original
from fusioncache.ir.errors import Declined

X = torch.linspace(-1, 1, 8).reshape(2, 4)
guard = importlib.import_module("torch._dynamo.mutation_guard")


class Making(torch.nn.Module):
    """Makes a module each time, as litgpt's models do."""

    def forward(self, x):
        return torch.nn.Identity()(x) * 2


class Asking(torch.nn.Module):
    """Asks whether Dynamo ran."""

    def forward(self, x):
        return x * 2 if getattr(torch.nn.Module, MARK, True) else x


@pytest.fixture(autouse=True)
def _untagged(monkeypatch):
    """Nothing is tagged. Afterwards it is as it was, whether Dynamo ran before or not."""
    for name in ("__init__", "__setstate__"):
        monkeypatch.setattr(torch.nn.Module, name, find_original(vars(torch.nn.Module)[name]))
    monkeypatch.setattr(torch.nn.Module, MARK, True, raising=False)
    monkeypatch.delattr(torch.nn.Module, MARK)
    tracing.install()
    yield
    tracing.uninstall()


def describe(model):
    return dict(list_lines(describe_key(model).list_classes()))


def test_a_model_is_described_and_reads_as_without():
    before, reads = describe(Making()), record(Making(), X).reads()
    guard.install_generation_tagging_init()
    assert torch.nn.Module.__init__.__qualname__.endswith("patched_init")
    assert describe(Making()) == before
    assert record(Making(), X).reads() == reads != ()


@pytest.mark.parametrize("name", ["__init__", "__setstate__"])
def test_another_function_is_another_class_with_and_without(name, monkeypatch):
    before = describe(Making())
    original = vars(torch.nn.Module)[name]
    monkeypatch.setattr(torch.nn.Module, name, lambda self, *args, **kwargs: original(self, *args, **kwargs))
    other = describe(Making())
    guard.install_generation_tagging_init()
    assert describe(Making()) == other != before


def test_tags_of_others_are_another_class_and_are_read(monkeypatch):
    def tag(cls, module):
        module.factor = 2

    model = Making()
    before = describe(model)
    guard.install_generation_tagging_init()
    wrapper = vars(torch.nn.Module)["__init__"]
    other_code = wrapper.__code__.replace(co_consts=(*wrapper.__code__.co_consts, 1))
    cell = wrapper.__closure__[0]
    for owner, name, value in ((wrapper, "__code__", other_code), (cell, "cell_contents", lambda self: None)):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, value)
            assert describe(model) != before
        assert describe(model) == before
    monkeypatch.setattr(guard.GenerationTracker, "tag", classmethod(tag))
    assert describe(Making()) != before
    assert "torch._dynamo.mutation_guard.GenerationTracker" in {each.name for each in record(Making(), X).reads()}


@pytest.mark.parametrize("ran", [False, True])
def test_a_model_that_asks_for_it_is_not_kept(ran):
    if ran:
        guard.install_generation_tagging_init()
    with pytest.raises(Declined, match=f"{MARK} of .* has no value to compare: it says that Dynamo ran"):
        record(Asking(), X).reads()


def test_tables_that_others_fill_are_no_tags():
    """The same table, in a model: what it grows by lasts."""
    table, key = guard.ExactWeakKeyDictionary(), torch.nn.Identity()

    def fill(x):
        table[key] = 1
        return x

    guard.install_generation_tagging_init()
    with pytest.raises(Declined):
        record(fill, X).reads()
