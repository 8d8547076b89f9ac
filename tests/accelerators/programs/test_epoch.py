"""What is known of Thunder is known to all functions of a process, and each change of it is seen by each of them."""

import pytest
import torch
from changed_things import OF_THUNDER, Model
from known_keys import X, with_attributes
from program_keys import assert_same, called, changed, jit, key_of
from thunder.core import rematerialization

from fusioncache.accelerators.programs import function_map
from fusioncache.accelerators.programs.function_map import Epoch
from fusioncache.accelerators.programs.key import make_key
from fusioncache.ir import Key

pytestmark = pytest.mark.usefixtures("few")


@pytest.fixture(name="written")
def _written(monkeypatch) -> list[int]:
    """Gets an item for each function map that was written, rather than taken over."""
    written: list[int] = []
    own = function_map.write_thunder
    monkeypatch.setattr(function_map, "write_thunder", lambda *given: written.append(1) or own(*given))
    return written


def make(known: Epoch, fn: object = None) -> tuple[Key, Key]:
    """Returns the first key of a function that was compiled just now, and the same made without any memory."""
    compiled = jit(fn or torch.nn.Linear(4, 3), executors=())
    with called(compiled, X) as data:
        key, _ = make_key(data, (X,), {}, known)
    return key, key_of(compiled, X)


def learned() -> Epoch:
    """Returns what is known after a key."""
    known = Epoch()
    assert_same(*make(known))
    assert len(known.maps) == 1
    return known


def test_the_function_map_is_written_once_for_all_functions(written):
    known = learned()
    del written[:]
    with changed(function_map, "write_thunder", lambda *given: 1 / 0):
        for fn in (Model(), with_attributes({"mark": 1}), torch.nn.LayerNorm(4)):
            compiled = jit(fn, executors=())
            with called(compiled, X) as data:
                make_key(data, (X,), {}, known)
    assert written == []


@pytest.mark.parametrize("what", [*OF_THUNDER][::3])
def test_what_changed_in_thunder_is_seen_by_a_function_that_is_new(what):
    known = learned()
    before, _ = make(known)
    with OF_THUNDER[what]():
        after, anew = make(known)
        assert_same(after, anew)
        assert after.texts["function map"] != before.texts["function map"]
    assert make(known)[0] == before


def test_a_class_of_a_user_that_thunder_holds_is_watched():
    """What it depends on goes with the function map, which no function watches by itself then."""
    body = type("Body", (), {"size": 1})
    with changed(rematerialization, "another", body):
        known = learned()
        before, _ = make(known)
        with changed(body, "size", 2):
            after, anew = make(known)
            assert_same(after, anew)
            assert after != before


def test_what_a_model_has_that_thunder_has_as_well_is_told_by_its_name():
    thing = with_attributes({"mark": 1})
    with changed(rematerialization, "another", thing):
        known = learned()
        model = Model()
        model.extra = thing
        assert_same(*make(known, model))
        assert_same(*make(known, thing))
