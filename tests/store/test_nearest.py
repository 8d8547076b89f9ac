"""Why a key was not in the store: each miss names the nearest key there, and the two texts say what differs."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from drawn_regions import Sketch
from store_contents import make_numbered_key as unlike_a_key

from fusioncache.ir import Ingredient, Key
from fusioncache.ir.key_text import read_key
from fusioncache.observe.explain.miss import explain_miss
from fusioncache.store import Store
from fusioncache.store import index as index_module
from fusioncache.template.canonical import canonicalize
from fusioncache.template.key import make_key

ENVIRONMENT = {
    "architecture": "sm_90",
    "backend": "eager",
    "definition": "2",
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


def explain(store: Store, missed: Key, nearest: str) -> str:
    """What keeps a key from the one in the store that has this digest; empty if that is none."""
    texts = [read_key(text) for digest, text in store.texts().items() if digest == nearest]
    return explain_miss(missed.texts, texts).difference.summary()


def miss(store: Store, missed: Key, backend: str = "eager") -> str:
    """Looks for a key that is not there. Returns what the event of the miss says."""
    assert store.load(missed, backend) is None
    event = store.events(limit=1)[0]
    assert (event.what, event.reason) == ("miss", "")
    return explain(store, missed, event.nearest)


CHANGES = {
    "architecture": ("sm_80", "architecture: sm_80 here, sm_90 there"),
    "backend": ("nvfuser", "backend: nvfuser here, eager there"),
    "definition": ("1", "definition: 1 here, 2 there"),
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
    assert miss(store, key(**{ingredient: other})) == reason
    assert store.load(key(**{ingredient: ENVIRONMENT[ingredient]}), "eager") is not None


def test_what_nothing_else_computes_has_no_nearest(store):
    assert miss(store, key(3.0)) == ""
    assert miss(store, unlike_a_key(1)) == ""
    assert miss(store, key(driver="1"), "inductor") == ""  # which has nothing here


def test_a_miss_is_not_explained_by_what_was_stored_after_it(store):
    keys = [key(3.0, driver=driver) for driver in ("1", "2")]
    for one in keys:
        assert store.load(one, "eager") is None
        assert store.save(one, "eager", {"code": b"code"})
    second, first = (event.nearest for event in store.events() if event.what == "miss")
    assert (first, second) == ("", keys[0].digest)
    assert explain(store, keys[1], second) == "driver: 2 here, 1 there"


def test_the_nearest_of_several_is_named(store):
    assert store.save(key(driver="1", recipe="2", architecture="sm_80"), "eager", {"code": b"code"})
    assert miss(store, key(driver="1", recipe="2")) == "architecture: sm_90 here, sm_80 there"


def test_of_several_that_are_as_near_it_is_the_newest(store):
    for driver in ("1", "2", "3"):
        assert store.save(key(driver=driver), "eager", {"code": b"code"})
    assert miss(store, key(driver="4")) == "driver: 4 here, 3 there"


def test_what_was_thrown_away_is_not_its_own_neighbour(store):
    assert store.save(key(driver="1"), "eager", {"code": b"code"})
    assert len(store.entries()) == 2  # so that the index knows both
    with pytest.warns(RuntimeWarning, match="it does not load"):
        store.discard(key(), "eager", "it does not load")
    assert miss(store, key()) == "driver: 12080 here, 1 there"


def test_several_ingredients_are_counted_and_a_store_can_be_asked_beforehand(store):
    asked = key(driver="1", recipe="2")
    assert explain(store, asked, store.nearest(asked, "eager")) == ("driver: 1 here, 12080 there, and in 1 other thing")
    assert store.nearest(key(3.0), "eager") == ""
    assert not any(event.what == "miss" for event in store.events())
    assert Store(None, 1).nearest(asked, "eager") == ""


@pytest.mark.filterwarnings("ignore:fusioncache. cannot load")
@pytest.mark.parametrize("odd", ["\ud800", "driver\x00", "'; DROP TABLE events; --", "\n\n"])
def test_odd_texts_in_a_key_do_not_cost_the_index(store, odd):
    assert store.load(key(driver=odd), "eager") is None if odd != "\ud800" else True
    own = tuple(Ingredient(part.name, odd, part.digest) for part in key().ingredients)
    assert store.load(Key("f" * 64, key().text, own), "eager") is None
    assert store.load(Key(odd, odd, own), "eager") is None
    assert sum(event.what == "miss" for event in store.events()) == 3 - (odd == "\ud800")
    assert [summary.digest for summary in store.entries()] == [key().digest]


def test_events_that_wait_hold_no_texts_of_keys(store, monkeypatch):
    """That of a program has some hundred thousand characters."""
    written = []
    monkeypatch.setattr(index_module.Index, "write", lambda self, events, *_: written.extend(events))
    asked = [key(float(number)) for number in (3, 4, 5)]
    assert [store.load(each, "eager") for each in asked] == [None] * 3
    store.close()
    waiting = [parts for event, parts in written if event.what == "miss"]
    assert waiting == [tuple((part.name, part.digest) for part in each.ingredients) for each in asked]


def test_the_texts_of_all_entries(store):
    assert store.save(key(3.0), "eager", {"code": b"code"})
    expected = {one.digest: one.text for one in (key(), key(3.0))}
    assert store.texts() == expected
    assert store.directory is not None
    (store.directory / "index.sqlite").write_bytes(b"no index" * 100)
    assert store.texts() == expected
    assert Store(None, 1).texts() == {}


def of_version(version: int, store: Store) -> Path:
    """Makes the index of a store one of an earlier version, with a miss as that wrote it."""
    store.close()
    assert store.directory is not None
    path = store.directory / "index.sqlite"
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("ALTER TABLE events DROP COLUMN nearest")
        database.execute("INSERT INTO events VALUES (0, 1, 'here', 'miss', 'some', 'driver: 1 here, 2 there', 0)")
        if version == 1:
            database.execute("DROP INDEX graphs")
            database.execute("DROP TABLE templates")
            database.execute("CREATE TABLE templates (digest TEXT PRIMARY KEY, text TEXT NOT NULL, ingredients TEXT)")
        database.execute(f"PRAGMA user_version = {version}")
    return path


@pytest.mark.parametrize("version", [1, 2])
def test_an_index_of_an_earlier_version_keeps_its_events_and_finds_all_entries(store, version):
    assert store.load(key(), "eager")
    path = of_version(version, store)
    events = store.events()
    assert [event.what for event in events] == ["miss", "hit", "save"]
    assert (events[0].reason, events[0].nearest) == ("driver: 1 here, 2 there", "")
    assert [summary.digest for summary in store.entries()] == [key().digest]
    assert miss(store, key(driver="1")) == "driver: 1 here, 12080 there"
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA user_version").fetchone() == (index_module.SCHEMA_VERSION,)
    assert [file.name for file in path.parent.glob("index*")] == ["index.sqlite"]
