"""Why a key was not in the store: the nearest key there is found, and the two texts say what differs."""

from pathlib import Path

import pytest
from drawn_regions import Sketch
from store_contents import make_numbered_key as unlike_a_key

from fusioncache.ir import Ingredient, Key
from fusioncache.ir.keys import read_key
from fusioncache.observe.explain.difference import compare
from fusioncache.store import Store
from fusioncache.template.canonical import canonicalize
from fusioncache.template.key import make_key

ENVIRONMENT = {
    "architecture": "sm_90",
    "device": "H200, 132 SMs, 9.0",
    "driver": "12080",
    "layout": "(2, 3) (3, 1)",
    "recipe": "1",
    "versions": "nvfuser 0.2.36\ntorch 2.10.0",
}


def key(constant: float = 2.0, **environment: str) -> Key:
    s = Sketch()
    return make_key(canonicalize(s.graph(s.op("mul", s.input(), constant))).graph, {**ENVIRONMENT, **environment})


@pytest.fixture
def store(tmp_path: Path) -> Store:
    opened = Store.open(tmp_path / "store", remote="")
    assert opened.save(key(), "eager", {"code": b"code"})
    return opened


def miss(store: Store, missed: Key, backend: str = "eager") -> str:
    """Looks for a key that is not there. Returns what keeps it from the nearest one; empty if there is none."""
    assert store.load(missed, backend) is None
    nearest = store.find_nearest(missed, backend)
    if nearest is None:
        return ""
    sentence = compare(missed.texts, read_key(nearest.text)).sentence("here", "there")
    return sentence.removeprefix("They differ in the ").removesuffix(".")


def test_what_nothing_else_computes_has_no_nearest(store):
    assert miss(store, key(3.0)) == ""
    assert miss(store, unlike_a_key(1)) == ""
    assert miss(store, key(driver="1"), "inductor") == ""  # which has nothing here


def test_the_nearest_of_several_is_named_and_of_those_that_are_as_near_the_newest(store):
    assert store.save(key(driver="1", recipe="2", architecture="sm_80"), "eager", {"code": b"code"})
    assert miss(store, key(driver="1", recipe="2")) == "architecture: sm_90 here, sm_80 there"
    for driver in ("1", "2", "3"):
        assert store.save(key(driver=driver), "eager", {"code": b"code"})
    assert miss(store, key(driver="4")) == "driver: 4 here, 3 there"


def test_what_was_thrown_away_is_not_its_own_neighbour(store):
    assert store.save(key(driver="1"), "eager", {"code": b"code"})
    with pytest.warns(RuntimeWarning, match="it does not load"):
        store.discard(key(), "eager", "it does not load")
    assert miss(store, key()) == "driver: 12080 here, 1 there"


@pytest.mark.filterwarnings("ignore:fusioncache. cannot load")
@pytest.mark.parametrize("odd", ["\ud800", "driver\x00", "'; DROP TABLE events; --", "\n\n"])
def test_odd_texts_in_a_key_do_no_harm(store, odd):
    assert store.load(key(driver=odd), "eager") is None if odd != "\ud800" else True
    own = tuple(Ingredient(part.name, odd, part.digest) for part in key().ingredients)
    for missed in (Key("f" * 64, key().text, own), Key(odd, odd, own)):
        assert store.load(missed, "eager") is None
        assert store.find_nearest(missed, "eager").digest == key().digest
    assert [entry.digest for entry in store.entries()] == [key().digest]
