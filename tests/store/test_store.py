"""A store: it loads what was saved, only for an equal key; which entries it removes first when full; its reports."""

import errno
import os
import stat
from dataclasses import replace
from unittest import mock

import pytest
from drawn_regions import draw
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from store_contents import (
    BACKEND,
    ENTRY_BYTES,
    age_entry,
    collect_warnings,
    find_entry,
    find_litter,
    find_object,
    find_present,
    load,
    make_artifacts,
    make_numbered_key,
    save,
)

from fusioncache.ir import Key
from fusioncache.store import Store, entry, locks
from fusioncache.template.canonical import canonicalize
from fusioncache.template.key import make_key

DAY = 86400.0


def test_slots_are_asked_of_the_remote_until_it_lacks_one_but_not_until_one_does_not_decode(store):
    with mock.patch.object(Store, "load", side_effect=[{}, None, None]) as load:
        slots = store.read_slots(
            make_numbered_key(1), "abc", lambda artifacts: artifacts["part"], "x", asks_remote=True
        )
        with pytest.warns(RuntimeWarning, match="x: KeyError"):
            assert list(slots) == []
    assert [call.kwargs["asks_remote"] for call in load.call_args_list] == [True, True, False]


def test_what_was_saved_first_is_loaded_for_its_backend_also_by_a_later_store(store):
    save(store, 1, 2)
    for reader in (store, Store.open()):
        for number in (1, 2):
            found = reader.load(make_numbered_key(number), BACKEND)
            assert (dict(found), found.seconds) == (make_artifacts(number), number)
        assert reader.load(make_numbered_key(3), BACKEND) is None
    assert not store.bypasses
    for backend in ("inductor", "nvfuser"):
        assert store.load(make_numbered_key(1), backend) is None
        assert store.save(make_numbered_key(1), backend, {"a": backend.encode()})
        assert not store.save(make_numbered_key(1), backend, {"a": b"2"})
    for backend in ("inductor", "nvfuser"):
        assert store.load(make_numbered_key(1), backend) == {"a": backend.encode()}


TEXTS = st.text(st.characters(exclude_categories=()), max_size=200)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=TEXTS, name=TEXTS)
@example(text="", name="")
@example(text="a\nb\r\n\x00", name="\n\x00\x7f")
@example(text="\ud83d\ude00", name="\udce9")
@example(text="\u00e9", name="\u2028")
@example(text="x" * 2**20, name="y" * 1000)
def test_any_text_is_a_key_or_refused(tmp_path, text, name):
    store = Store.open(tmp_path / "store")
    with collect_warnings():
        saved = store.save(make_numbered_key(text), BACKEND, {name: text.encode(errors="surrogatepass")}, name=name)
        found = store.load(make_numbered_key(text), BACKEND)
        store.discard(make_numbered_key(text), BACKEND, "done")
        assert store.load(make_numbered_key(text), BACKEND) is None
    valid = all(not 0xD800 <= ord(character) < 0xE000 for character in text + name)
    assert saved == valid
    assert found == ({name: text.encode()} if valid else None)
    assert valid or any("no valid Unicode" in reason for reason in store.bypasses)


OTHERS = {"1": "2", "a\n": "a\r\n", "\u00e9": "e\u0301", "": "\x00", "x": "x "}


@pytest.mark.parametrize(("text", "other"), OTHERS.items())
def test_another_key_with_the_same_digest_is_refused_and_leaves_the_entry_alone(store, text, other):
    key, artifacts = make_numbered_key(text), make_artifacts(1)
    impostor = replace(make_numbered_key(other), digest=key.digest)
    assert store.save(key, BACKEND, artifacts)
    with collect_warnings() as messages:
        assert store.load(impostor, BACKEND) is None
        assert not store.save(impostor, BACKEND, make_artifacts(2))
    assert len(messages) == 1
    assert store.bypasses == {"an entry for another key with the same digest": 2}
    assert store.load(key, BACKEND) == artifacts


def make_region_key(factor: float = 2.0, **environment: str) -> Key:
    graph = canonicalize(draw(f"mul(a, {factor})")).graph
    return make_key(graph, {"driver": "1", "recipe": "1", **environment})


def test_the_nearest_key_is_of_the_same_graph_and_backend_and_the_newest_of_those_as_near(store):
    def find(key: Key, backend: str = "eager") -> str:
        nearest = store.find_nearest(key, backend)
        return nearest.digest if nearest else ""

    missed, other_graph = make_region_key(driver="4"), make_region_key(3.0, driver="4")
    far, *near = make_region_key(driver="5", recipe="2"), *(make_region_key(driver=driver) for driver in "123")
    assert find(missed) == ""
    for key in (other_graph, far, *near):
        assert store.save(key, "eager", {"code": b"code"})
    assert find(missed) == near[2].digest
    assert find(near[2]) == near[1].digest  # as if it had been removed
    assert find(make_region_key(driver="5", recipe="3")) == far.digest
    assert find(missed, "inductor") == find(make_region_key(4.0)) == find(make_numbered_key(1)) == ""


DIGEST = make_numbered_key(1).digest
NAMELESS = [(digest, BACKEND) for digest in ("", "../../x", "A" * 64, "a" * 63, "a" * 64 + "\n", "a/" * 32)]
NAMELESS += [(DIGEST, backend) for backend in ("", "..", "a/b", "A", "é", "a" * 33, "\udce9")]


@pytest.mark.parametrize(("digest", "backend"), NAMELESS)
def test_a_digest_or_a_backend_that_is_none_names_no_file(store, digest, backend):
    key = replace(make_numbered_key(1), digest=digest)
    with collect_warnings():
        assert not store.save(key, backend, make_artifacts(1))
        assert store.load(key, backend) is None
        with store.take_turn(key, backend) as turn:
            assert turn.lock_problem in ("a key whose digest is no SHA-256", "a backend whose name is no plain word")
    assert not list((store.directory / "entries").iterdir())


def _room(entries: float, size: int = 3000) -> int:
    return int(entries * (size + ENTRY_BYTES))


def test_the_least_recently_used_go_first(tmp_path):
    store = Store.open(tmp_path / "store")
    save(store, *range(6))
    for number, ago in enumerate((50, 10, 40, 20, 30, 60)):
        age_entry(store, number, ago)
    # A load updates the time of use, for other processes as well.
    reader = Store.open(tmp_path / "store")
    assert load(reader, 5)
    small = Store.open(tmp_path / "store", max_bytes=_room(2.5))
    swept = small.sweep()
    assert (swept.entries, swept.objects, swept.litter) == (4, 4, 0)
    assert find_present(store, *range(6)) == [1, 5]
    assert swept.bytes_left <= _room(2.5)
    assert load(small, 1)
    assert load(small, 5)


def test_saving_makes_room(tmp_path):
    store = Store.open(tmp_path / "store", max_bytes=_room(4))
    for number in range(20):
        save(store, number)
        age_entry(store, number, 1000 - number)
        files = [file for folder in ("entries", "objects") for file in (store.directory / folder).glob("*/*")]
        assert files and sum(file.stat().st_size for file in files) <= _room(4)
    left = find_present(store, *range(20))
    assert left == list(range(20 - len(left), 20))
    assert len(left) >= 2


def test_what_another_version_stored_stays_and_may_fill_the_store(tmp_path, monkeypatch):
    store = Store.open(tmp_path / "store", max_bytes=_room(2))
    monkeypatch.setattr(entry, "FORMAT", 2)
    save(store, 1, 2)
    monkeypatch.undo()
    with collect_warnings() as messages:
        for number in range(3, 6):
            assert not store.save(make_numbered_key(number), BACKEND, make_artifacts(number))
    assert len(messages) == 1
    assert store.bypasses == {"the store is full of what another version of fusioncache stored": 3}
    assert find_entry(store, 1).exists() and find_entry(store, 2).exists()


def test_a_save_removes_what_is_too_old_and_nothing_for_what_is_larger_than_the_store(tmp_path):
    save(Store.open(tmp_path / "store"), 1)
    store = Store.open(tmp_path / "store", max_age=DAY, max_bytes=_room(3))
    age_entry(store, 1, 1.5 * DAY)
    save(store, 2)
    with collect_warnings():
        assert not store.save(make_numbered_key(3), BACKEND, make_artifacts(3, size=_room(4)))
    assert find_present(store, 1, 2, 3) == [2]


def test_litter_of_killed_processes_goes_and_files_that_are_not_ours_stay(store):
    save(store, 1)
    root, objects, entries = store.directory, find_object(store, b"").parent, find_entry(store, 1).parent
    mine = [root / "objects" / "notes.txt", objects / "mine", root / "mine"]
    litter = [objects / "tmp-1234", entries / "tmp-1234", root / "tmp-old"]
    for path in (*mine, *litter, root / "tmp-fresh"):
        path.write_text("mine")
    os.utime(root / "tmp-old", (0, 0))
    (root / "locks" / f"{make_numbered_key(5).digest}.{BACKEND}").touch()
    assert store.sweep().litter == 4
    assert find_litter(root) == ["tmp-fresh"]
    assert os.listdir(root / "locks") == ["store"]
    assert load(store, 1)
    age_entry(store, 1, 100 * DAY)
    assert store.sweep().entries == 1
    assert all(path.read_text() == "mine" for path in mine)


def test_a_turn_that_was_waited_for_too_long_is_taken_alone_and_one_that_failed_is_free(store):
    key = make_numbered_key(1)
    with pytest.raises(ZeroDivisionError), store.take_turn(key, BACKEND):
        for waiting in (store, Store.open()):
            with collect_warnings() as messages, waiting.take_turn(key, BACKEND, timeout=0.01) as turn:
                assert turn.lock_problem == "waited too long for another compile"
            assert len(messages) == 1
        with Store.open().take_turn(make_numbered_key(2), BACKEND, timeout=0.0) as turn:
            assert turn.lock_problem is None
        _ = 1 / 0
    with store.take_turn(key, BACKEND, timeout=0.0) as turn:
        assert turn.lock_problem is None
        save(store, 1)
    with store.take_turn(key, BACKEND) as turn:
        assert turn.artifacts == make_artifacts(1)
    assert not [name for name in os.listdir(store.directory / "locks") if "." in name]


def test_without_file_locks_each_process_compiles_alone(store, monkeypatch):
    def flock(descriptor, mode):
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(locks.fcntl, "flock", flock)
    with collect_warnings() as messages:
        for number in (1, 2):
            with store.take_turn(make_numbered_key(number), BACKEND) as turn:
                assert turn.lock_problem.startswith("no lock")
                save(store, number)
            assert load(store, number)
        assert store.sweep() is None
    assert len(messages) == 2
    assert find_present(store, 1, 2) == [1, 2]


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_everything_is_made_for_its_owner_only(tmp_path, umask):
    before = os.umask(umask)
    try:
        store = Store.open(tmp_path / "not" / "yet" / "store")
        save(store, 1)
        assert load(store, 1)
    finally:
        os.umask(before)
    for folder in (tmp_path / "not", tmp_path / "not" / "yet", store.directory, *store.directory.rglob("*")):
        if folder.is_dir():
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for path in (find_entry(store, 1), find_object(store, b"")):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert (store.directory / "CACHEDIR.TAG").read_bytes().startswith(b"Signature: 8a477f597d28d172789f06886806bc55")
    assert (store.directory / "format").read_text() == "fusioncache store, format 1\n"
