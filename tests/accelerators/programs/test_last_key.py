"""What lasts from one key of a function to the next is written again as soon as anything that was read is another."""

import gc
import importlib
import threading
import weakref
from typing import Any

import pytest
import thunder
import torch
from changed_things import (
    OF_A_MODEL,
    OF_THUNDER,
    THINGS,
    Kind,
    Marked,
    Model,
    Registered,
    Settings,
    assigned,
    make_things,
)
from known_keys import Known, X, with_attributes
from program_keys import assert_same, called, changed
from thunder.core import rematerialization, utils

import fusioncache
from fusioncache.accelerators.programs.introspection import MARK, find_original
from fusioncache.accelerators.programs.key import make_key

pytestmark = pytest.mark.usefixtures("few")


@pytest.fixture(scope="module", name="known")
def _known(few: None) -> Known:
    return Known(Model())


@pytest.fixture(scope="module", name="of_function")
def _of_function(few: None) -> Known:
    """A function whose attributes the things are."""
    return Known(with_attributes(make_things("function")))


@pytest.fixture(scope="module", name="of_class")
def _of_class(few: None) -> Known:
    """A function with a class in whose body the things are."""
    things = make_things("class")
    del things["weak"]
    return Known(with_attributes({"kind": type("Body", (), things)}))


@pytest.mark.parametrize("what", OF_A_MODEL)
def test_what_changed_in_a_model_is_seen(what, known):
    known.assert_seen(lambda: OF_A_MODEL[what](known.fn))


@pytest.mark.parametrize("what", THINGS)
def test_what_changed_is_seen(what, of_function):
    of_function.assert_seen(lambda: THINGS[what](of_function.fn))


@pytest.mark.parametrize("what", [each for each in THINGS if each != "what a weak reference is of"])
def test_what_changed_in_a_class_is_seen(what, of_class):
    body = of_class.fn.kind
    of_class.assert_seen(lambda: THINGS[what](body))


@pytest.mark.parametrize("what", OF_THUNDER)
def test_what_changed_in_thunder_is_seen(what, known):
    known.assert_seen(OF_THUNDER[what])


def test_nothing_is_written_again_while_nothing_changed(known):
    assert known.make() == known.key
    known_map = known.map
    with torch.no_grad():
        known.fn.linear.weight.mul_(2.0)
    known.fn.linear(X).sum().backward()
    for shape in ((5, 4), (3, 4)):
        x = torch.zeros(shape)
        assert_same(known.make(x), known.make_anew(x))
        assert known.map is known_map
    known.fn.zero_grad()


def test_what_came_into_thunder_later_is_compared_as_well():
    table = {"check": [utils.check], "mine": Settings(), "made": Marked().method, "cut": rematerialization.find_cut}
    with changed(rematerialization, "another", table):
        Known(Model())
    known = Known(Model())
    with changed(rematerialization, "another", table):
        known.key = known.make()
        known.assert_seen(lambda: changed(table, "check", [utils.check_type]))
        known.assert_seen(lambda: changed(table["mine"], "mode", "other"))
        known.assert_seen(lambda: changed(Marked, "size", 7))
        known.assert_seen(lambda: changed(table["made"].__self__, "size", 7))


def test_who_takes_no_part_in_it_is_asked_each_time(known):
    """Somebody else's function is foreign in Thunder, unless it is the ``torch.compile`` of this moment."""
    with changed(rematerialization, "another", with_attributes({})):
        known.key = known.make()
        assert "foreign." in known.key.texts["function map"]
        known.assert_seen(lambda: changed(torch, "compile", rematerialization.another))
    known.key = known.make()


def test_what_tags_modules_is_asked_each_time(monkeypatch):
    """What Dynamo has in place of a constructor is described as the constructor, as long as it is Dynamo's."""
    for name in ("__init__", "__setstate__"):
        monkeypatch.setattr(torch.nn.Module, name, find_original(vars(torch.nn.Module)[name]))
    monkeypatch.setattr(torch.nn.Module, MARK, True, raising=False)
    monkeypatch.delattr(torch.nn.Module, MARK)
    guard = importlib.import_module("torch._dynamo.mutation_guard")
    guard.install_generation_tagging_init()
    known, wrapper = Known(Model()), vars(torch.nn.Module)["__init__"]
    code = wrapper.__code__.replace(co_consts=(*wrapper.__code__.co_consts, 1))
    known.assert_seen(lambda: changed(guard.GenerationTracker, "tag", classmethod(lambda cls, module: None)))
    known.assert_seen(lambda: assigned(wrapper, "__code__", code))
    known.assert_seen(lambda: assigned(wrapper.__closure__[0], "cell_contents", lambda self: None))


def test_a_class_with_which_another_one_is_registered(of_class):
    key = of_class.key
    assert of_class.make() == key
    Kind.register(Registered)
    after = of_class.make()
    assert after == of_class.make_anew() != key
    of_class.key = after


@pytest.mark.parametrize(
    "x",
    [X.double(), X.t(), X[:, :3].contiguous(), torch.zeros(3, 4, requires_grad=True), Settings(), Kind, [1, {2: X}]],
)
def test_arguments_are_described_each_time(known, x):
    known_map = known.map
    assert_same(known.make(x), known.make_anew(x))
    assert_same(known.make(X, scale=x), known.make_anew(X, scale=x))
    assert known.make() == known.key
    assert known.map is known_map


def test_an_argument_that_is_the_models_is_told_by_its_name(known):
    model = known.fn
    for x in (model.linear.weight, model.linear.weight[:2], model.tied.weight.data):
        assert_same(known.make(x), known.make_anew(x))
    before, model.linear.weight.data = model.linear.weight.data, torch.zeros(4, 4)
    for x in (model.linear.weight, model.linear.weight[:2], before):
        assert_same(known.make(x), known.make_anew(x))
    model.linear.weight.data = before


def test_what_a_class_shares_with_a_model_or_an_argument_is_told_by_its_name_there(of_class):
    """Each of them is in the body of a class that is known."""
    for thing in (of_class.fn.kind.options, of_class.fn.kind.keyed, of_class.fn.kind.marked):
        assert_same(of_class.make(X, more=thing), of_class.make_anew(X, more=thing))
        with changed(of_class.fn, "another", thing):
            assert_same(of_class.make(), of_class.make_anew())
    assert of_class.make() == of_class.key


def test_two_classes_of_one_name_are_told_apart(of_class):
    body = type("Body", (), {"__module__": of_class.fn.kind.__module__})
    for first in (body, of_class.fn.kind):
        assert_same(of_class.make(X, more=first), of_class.make_anew(X, more=first))
        with changed(of_class.fn, "another", first), changed(of_class.fn, "kind", body):
            assert_same(of_class.make(), of_class.make_anew())


def test_what_a_class_refers_to_weakly_is_not_kept_alive():
    target = Settings()
    lives = weakref.ref(target)
    known = Known(with_attributes({"kind": type("Body", (), {"weak": lives})}))
    assert known.make() == known.key
    del target
    gc.collect()
    assert lives() is None and known.make() == known.make_anew() != known.key


def test_a_class_that_holds_a_tensor_or_a_module_is_described_each_time():
    body = type("Body", (), {"tensor": torch.zeros(2), "inner": type("Inner", (), {"module": Model()})})
    known = Known(with_attributes({"kind": body}))
    for change in (
        lambda: changed(body.inner.module.norm, "eps", 1.0),
        lambda: changed(body, "tensor", torch.zeros(3)),
    ):
        known.assert_seen(change)


@pytest.mark.parametrize("change", [torch.no_grad, lambda: torch.autocast("cpu", torch.bfloat16)])
def test_the_state_of_torch_is_read_each_time(known, change):
    known.assert_seen(change)


def test_variables_of_the_environment_are_read_each_time(known, monkeypatch):
    monkeypatch.setenv("THUNDER_ANOTHER", "1")
    assert known.make() == known.make_anew() != known.key


def test_what_a_transform_says_is_asked_each_time(monkeypatch):
    transform = fusioncache.FusionCache(backend="eager")
    known = Known(Model(), transforms=[transform])
    monkeypatch.setattr(type(transform), "cache_key", lambda self: "other")
    assert known.make() == known.make_anew() != known.key


@pytest.mark.parametrize("name", ["sharp_edges", "another"])
def test_options_are_read_each_time(known, name):
    known.assert_seen(lambda: changed(known.compiled._lc_cd, name, 1))


def test_what_stands_in_place_of_a_parameter_is_seen(known):
    other = torch.nn.Parameter(torch.zeros(4, 4).double())
    known.assert_seen(lambda: changed(known.compiled._overrides_parameters, "linear.weight", other))


def test_other_executors_are_noticed(known):
    others = [*known.compiled._lc_cd.executors_list, thunder.get_executor("torchcompile")]  # which has a module more
    known.assert_seen(lambda: changed(known.compiled._lc_cd, "executors_list", others))


def test_what_a_model_lost_is_not_kept_alive():
    known = Known(Model())
    model, x = known.fn, torch.zeros(7, 4)
    model.cache, model.hook = [torch.zeros(2)], with_attributes({"held": torch.zeros(3)})
    known.make(x)
    # Parameters and modules Thunder itself keeps, but not their storages.
    storage = model.tied.weight.untyped_storage()
    lives = [weakref.ref(each) for each in (x, model.cache[0], model.hook, model.hook.held, model.table, storage)]
    model.cache, model.hook, model.tied.weight.data, model.table = None, None, torch.zeros(4, 4), torch.zeros(4)
    known.compiled._overrides_buffers.clear()
    del x, storage
    gc.collect()
    assert [each() for each in lives] == [None] * len(lives)
    whole = weakref.ref(model)
    del model, known.fn, known.compiled
    gc.collect()
    assert whole() is None


def test_threads_make_the_same_keys(known):
    keys: list[Any] = []

    def make() -> None:
        with called(known.compiled, X) as data:
            keys.extend(make_key(data, (X,), {}, known.epoch)[0] for _ in range(5))

    threads = [threading.Thread(target=make) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert keys == [known.key] * 15
