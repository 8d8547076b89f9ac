"""What lasts from one key of a function to the next is written again as soon as anything that was read is another.

Of Thunder a small part stands for the whole here: a key that is made without any memory takes a third of a second else.
"""

import gc
import importlib
import threading
import weakref
from collections.abc import Iterator
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
from known_keys import Known, X, few_of_thunder, with_attributes
from program_keys import assert_same, called, changed, key_of
from thunder.core import rematerialization, utils

import fusioncache
from fusioncache.accelerators.programs.definitions import Definitions
from fusioncache.accelerators.programs.describe import Describer
from fusioncache.accelerators.programs.introspection import MARK, find_original
from fusioncache.accelerators.programs.key import LastKey


@pytest.fixture(scope="module", name="few", autouse=True)
def _few() -> Iterator[None]:
    patch = few_of_thunder()
    yield
    patch.undo()


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
    assert id(body) in of_class.last.classes
    of_class.assert_seen(lambda: THINGS[what](body))


@pytest.mark.parametrize("what", OF_THUNDER)
def test_what_changed_in_thunder_is_seen(what, known):
    assert known.map is not None
    known.assert_seen(OF_THUNDER[what])


def test_nothing_is_written_again_while_nothing_changed(known):
    assert known.make() == known.key
    classes, known_map = known.last.classes, known.map
    with torch.no_grad():
        known.fn.linear.weight.mul_(2.0)
    known.fn.linear(X).sum().backward()
    for shape in ((5, 4), (3, 4)):
        x = torch.zeros(shape)
        assert_same(known.make(x), known.make_anew(x))
        assert known.last.classes == classes and known.map is known_map is not None
    known.fn.zero_grad()


def test_what_came_into_thunder_later_is_compared_as_well():
    table = {"check": [utils.check], "mine": Settings(), "made": Marked().method, "cut": rematerialization.find_cut}
    with changed(rematerialization, "another", table):
        Known(Model())
    known = Known(Model())
    with changed(rematerialization, "another", table):
        known.make()
        known.make()
        assert known.map is not None
        known.key = known.make()
        known.assert_seen(lambda: changed(table, "check", [utils.check_type]))
        known.assert_seen(lambda: changed(table["mine"], "mode", "other"))
        known.assert_seen(lambda: changed(Marked, "size", 7))
        known.assert_seen(lambda: changed(table["made"].__self__, "size", 7))


def test_the_function_map_is_read_each_time_where_somebody_else_knows_what_is_in_it():
    """A tensor may share memory with those of a model; what is an option as well is watched with the options."""
    known, mine = Known(Model()), with_attributes({})
    for thing, change in (
        ([torch.zeros(2)], lambda: changed(rematerialization, "another", [known.fn.table])),
        (mine, lambda: changed(mine, "mark", 1)),
    ):
        with changed(rematerialization, "another", thing), changed(known.compiled._lc_cd, "another", mine):
            known.key, known.last = known.make(), LastKey(made=1, epoch=known.epoch)
            assert known.make() == known.key and known.last.classes and known.map is None
            known.assert_seen(change)


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
    known_map, classes = known.map, known.last.classes
    assert_same(known.make(x), known.make_anew(x))
    assert_same(known.make(X, scale=x), known.make_anew(X, scale=x))
    assert known.make() == known.key
    assert known.last.classes == classes and known.map is known_map is not None


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
    classes = known.last.classes
    assert id(body) not in classes and id(body.inner) not in classes and classes
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


def test_other_names_and_other_executors_are_noticed(known):
    """What is known goes by the names that were known then, and by no others."""
    before, names = known.map, known.epoch.names
    known.epoch.names = Known(known.fn).epoch.names
    assert_same(known.make(), known.make_anew())
    assert known.map is not before
    known.epoch.names = names
    known.make()
    others = [*known.compiled._lc_cd.executors_list, thunder.get_executor("torchcompile")]  # which has a module more
    known.assert_seen(lambda: changed(known.compiled._lc_cd, "executors_list", others))


def test_what_a_model_lost_is_not_kept_alive():
    known = Known(Model())
    model, x = known.fn, torch.zeros(7, 4)
    model.cache, model.hook = [torch.zeros(2)], with_attributes({"held": torch.zeros(3)})
    known.make(x)
    known.make(x)
    assert known.last.classes
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
    assert whole() is None and known.last.classes


def test_a_class_that_changes_each_time_is_described_again_alone():
    known = Known(with_attributes({"kind": Marked}))
    others = {key: each for key, each in known.last.classes.items() if key != id(Marked)}
    for number in range(4):
        with changed(Marked, "another", number):
            before = known.last.classes[id(Marked)]
            assert_same(known.make(), known.make_anew())
        assert known.last.classes == {**others, id(Marked): known.last.classes[id(Marked)]}
        assert known.last.classes[id(Marked)] is not before


def test_a_first_key_learns_nothing(known):
    known.last, before = LastKey(), known.last
    assert known.make() == known.key and not known.last.classes and not known.last.epoch.maps
    assert known.make() == known.key and known.last.classes
    known.last = before


def test_a_derivation_sees_what_is_known_as_described(known):
    """What a recorder asks a describer is answered as if all had been described."""
    with called(known.compiled, X) as data:
        _, definitions = known.last.make_next(data, (X,), {})
        anew = Definitions(Describer())
    key_of(known.compiled, X, definitions=anew)
    some, other = definitions.describer, anew.describer
    norm = type(known.fn.norm)
    assert some.classes == other.classes and some.unknown == other.unknown
    for code in (norm.forward.__code__, norm.gain.fget.__code__, utils.check.__code__):
        assert some.covers(code) is other.covers(code)
    for value in (norm, norm.forward, torch.nn.Module.__call__, norm.gain, X, utils.check):
        assert (some.holds(value), some.names(value)) == (other.holds(value), other.names(value))


def test_what_a_derivation_meets_is_described_as_it_is_then(of_class):
    """A class that was known for an earlier key and was not met for this one may have changed since."""
    body = of_class.fn.kind
    assert of_class.make() == of_class.key and id(body) in of_class.last.classes
    with changed(of_class.fn, "kind", None), called(of_class.compiled, X) as data:
        _, definitions = of_class.last.make_next(data, (X,), {})
        with changed(body, "another", 1):
            assert definitions.describer.describe(body) == Describer().describe(body)
    assert of_class.make() == of_class.key


def test_threads_make_the_same_keys(known):
    keys: list[Any] = []

    def make() -> None:
        with called(known.compiled, X) as data:
            keys.extend(known.last.make_next(data, (X,), {})[0] for _ in range(5))

    threads = [threading.Thread(target=make) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert keys == [known.key] * 15


def test_whatever_cannot_be_compared_is_described_again(known, monkeypatch):
    norm = id(type(known.fn.norm))
    assert known.make() == known.key
    before = known.last.classes[norm]
    monkeypatch.setattr("fusioncache.accelerators.programs.fingerprint.consists_of", lambda *given: 1 / 0)
    assert known.make() == known.key and known.last.classes[norm] is not before
