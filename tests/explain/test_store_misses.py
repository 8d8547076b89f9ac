"""Why a key was not in the store: each miss names the ingredient that differs from what is there."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from drawn_regions import Sketch
from store_contents import make_numbered_key as unlike_a_key

from fusioncache.ir import Ingredient, Key
from fusioncache.store import Store, reasons
from fusioncache.store import index as index_module
from fusioncache.template.canonical import canonicalize
from fusioncache.template.key import make_key

ENVIRONMENT = {
    "architecture": "sm_90",
    "backend": "eager",
    "device": "H200, 132 SMs, 9.0",
    "driver": "12080",
    "layout": "(2, 3) (3, 1)",
    "options": "enable kernel_db\ndisable ",
    "order": "one",
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


def missed(store: Store) -> list[str]:
    """The reasons of all misses, oldest first."""
    return [event.reason for event in reversed(store.events()) if event.what == "miss"]


CHANGES = {
    "architecture": ("sm_80", "architecture: sm_80 here, sm_90 there"),
    "backend": ("nvfuser", "backend: nvfuser here, eager there"),
    "device": ("H100, 132 SMs, 9.0", "device: H100, 132 SMs, 9.0 here, H200, 132 SMs, 9.0 there"),
    "driver": ("13000", "driver: 13000 here, 12080 there"),
    "layout": ("(2, 3) (1, 2)", "layout: the layout of input %0, (2, 3) (1, 2) here, (2, 3) (3, 1) there"),
    "options": ("enable \ndisable ", "options: the option enable, empty here, kernel_db there"),
    "order": ("another", "order: the order of operands, another here, one there"),
    "recipe": ("2", "recipe: 2 here, 1 there"),
    "versions": ("nvfuser 0.2.37\ntorch 2.10.0", "versions: the nvfuser version, 0.2.37 here, 0.2.36 there"),
}


@pytest.mark.parametrize("ingredient", ENVIRONMENT)
def test_each_ingredient_of_the_environment_is_named_by_the_miss_that_it_makes(store, ingredient):
    other, reason = CHANGES[ingredient]
    assert store.load(key(**{ingredient: other}), "eager") is None
    assert store.load(key(**{ingredient: ENVIRONMENT[ingredient]}), "eager") is not None
    assert missed(store) == [reason]


def test_what_nothing_else_computes_is_new(store):
    assert store.load(key(3.0), "eager") is None
    assert store.load(unlike_a_key(1), "eager") is None
    assert store.load(key(driver="1"), "inductor") is None  # which has nothing here
    assert missed(store) == ["new", "new", "new"]


def test_a_miss_is_not_explained_by_what_was_stored_after_it(store):
    for constant, driver in ((3.0, "1"), (3.0, "2")):
        assert store.load(key(constant, driver=driver), "eager") is None
        assert store.save(key(constant, driver=driver), "eager", {"code": b"code"})
    assert missed(store) == ["new", "driver: 2 here, 1 there"]


def test_the_nearest_of_several_is_named(store):
    assert store.save(key(driver="1", recipe="2", architecture="sm_80"), "eager", {"code": b"code"})
    assert store.load(key(driver="1", recipe="2"), "eager") is None
    assert missed(store) == ["architecture: sm_90 here, sm_80 there"]


def test_what_was_thrown_away_is_not_its_own_neighbour(store):
    assert store.save(key(driver="1"), "eager", {"code": b"code"})
    assert len(store.entries()) == 2  # so that the index knows both
    with pytest.warns(RuntimeWarning, match="it does not load"):
        store.discard(key(), "eager", "it does not load")
    assert store.load(key(), "eager") is None
    assert missed(store) == ["driver: 12080 here, 1 there"]


def test_several_ingredients_are_counted_and_a_store_can_be_asked_beforehand(store):
    asked = key(driver="1", recipe="2")
    assert store.reason(asked, "eager") == "driver: 1 here, 12080 there, and in 1 other thing"
    assert store.reason(key(3.0), "eager") == "new"
    assert missed(store) == []
    assert Store(None, 1).reason(asked, "eager") == ""


def test_an_explanation_that_fails_does_not_cost_the_index(store, monkeypatch):
    assert store.load(key(driver="1"), "eager") is None
    monkeypatch.setattr(reasons, "explain_difference", lambda *args: 1 / 0)
    assert missed(store) == ["unknown"]


@pytest.mark.filterwarnings("ignore:fusioncache. cannot load")
@pytest.mark.parametrize("odd", ["\ud800", "driver\x00", "'; DROP TABLE events; --", "\n\n"])
def test_odd_texts_in_a_key_do_not_cost_the_index(store, odd):
    assert store.load(key(driver=odd), "eager") is None if odd != "\ud800" else True
    own = tuple(Ingredient(part.name, odd, part.digest) for part in key().ingredients)
    assert store.load(Key("f" * 64, key().text, own), "eager") is None
    assert store.load(Key(odd, odd, own), "eager") is None
    assert len(missed(store)) == 3 - (odd == "\ud800")
    assert [summary.digest for summary in store.entries()] == [key().digest]


def test_the_texts_of_all_entries(store):
    assert store.save(key(3.0), "eager", {"code": b"code"})
    expected = {one.digest: one.text for one in (key(), key(3.0))}
    assert store.texts() == expected
    assert store.directory is not None
    (store.directory / "index.sqlite").write_bytes(b"no index" * 100)
    assert store.texts() == expected
    assert Store(None, 1).texts() == {}


def test_an_index_of_the_first_version_keeps_its_events_and_finds_all_entries(store):
    assert store.load(key(), "eager")
    store.close()
    assert store.directory is not None
    path = store.directory / "index.sqlite"
    with closing(sqlite3.connect(path)) as database, database:
        for statement in ("DROP INDEX graphs", "DROP TABLE templates", "PRAGMA user_version = 1"):
            database.execute(statement)
        database.execute(
            "CREATE TABLE templates (digest TEXT PRIMARY KEY, text TEXT NOT NULL, ingredients TEXT NOT NULL)"
        )
    assert [event.what for event in store.events()] == ["hit", "save"]
    assert [summary.digest for summary in store.entries()] == [key().digest]
    assert store.load(key(driver="1"), "eager") is None
    assert missed(store) == ["driver: 1 here, 12080 there"]
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA user_version").fetchone() == (index_module.SCHEMA_VERSION,)
    assert [file.name for file in store.directory.glob("index*")] == ["index.sqlite"]
