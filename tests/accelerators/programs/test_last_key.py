"""What lasts from one key to the next is known of Thunder, and written again as soon as anything in it is another."""

import gc
import threading
import weakref
from typing import Any

import pytest
import thunder
import torch
from changed_things import OF_A_MODEL, OF_THUNDER, Marked, Model, Settings
from known_keys import Known, X, with_attributes
from program_keys import assert_same, called, changed, jit, key_of
from thunder.core import rematerialization, utils

from fusioncache.accelerators.programs import function_map
from fusioncache.accelerators.programs.function_map import Epoch
from fusioncache.accelerators.programs.key import make_key

pytestmark = pytest.mark.usefixtures("few")


@pytest.fixture(scope="module", name="known")
def _known(few: None) -> Known:
    return Known(Model())


@pytest.mark.parametrize("what", ["an attribute", "a method of a base", "a hook", "the type of a buffer"])
def test_what_changed_in_a_model_is_seen(what, known):
    known.assert_seen(lambda: OF_A_MODEL[what](known.fn))


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


def test_other_executors_are_noticed(known):
    others = [*known.compiled._lc_cd.executors_list, thunder.get_executor("torchcompile")]  # which has a module more
    known.assert_seen(lambda: changed(known.compiled._lc_cd, "executors_list", others))


def test_the_function_map_is_written_once_for_all_functions(known):
    with changed(function_map, "write_thunder", lambda *given: 1 / 0):
        for fn in (Model(), with_attributes({"mark": 1}), torch.nn.LayerNorm(4)):
            compiled = jit(fn, executors=())
            with called(compiled, X) as data:
                key, _ = make_key(data, (X,), {}, known.epoch)
            assert "function map" in key.texts


def test_what_a_model_has_that_thunder_has_as_well_is_told_by_its_name():
    thing, model, epoch = with_attributes({"mark": 1}), Model(), Epoch()
    model.extra = thing
    with changed(rematerialization, "another", thing):
        for fn in (torch.nn.Linear(4, 3), model, thing):
            compiled = jit(fn, executors=())
            assert_same(key_of(compiled, X, epoch=epoch), key_of(compiled, X))


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
