"""The audit of a store: everything that is damaged is found and removed, and nothing else."""

import os

import pytest
from store_contents import BACKEND, find_entry, find_object, find_present, load, make_artifacts, make_numbered_key, save

from fusioncache.store import Store, entry
from fusioncache.store.disk import Damage, audit, remove_damaged


@pytest.fixture
def store():
    opened = Store.open()
    save(opened, 1, 2, 3)
    return opened


def _flip(path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def _object(store: Store, number: int):
    return find_object(store, make_artifacts(number)["code"])


def _id(number: int) -> str:
    return f"{make_numbered_key(number).digest}.{BACKEND}"


def test_a_damaged_object_spoils_its_entry(store):
    path = _object(store, 1)
    _flip(path)
    found = audit(store.directory).damaged
    assert set(found) == {Damage("object", path.name, "a wrong checksum"), Damage("entry", _id(1), "a wrong checksum")}
    assert remove_damaged(store.directory, found) == 2
    assert find_present(store, 1, 2, 3) == [2, 3]
    assert not path.exists()
    assert load(store, 2)
    assert audit(store.directory).damaged == ()


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (_flip, "a damaged entry"),
        (lambda path: path.write_bytes(b""), "a damaged entry"),
        (lambda path: os.chmod(path, 0o666), "a file that others can write"),
    ],
    ids=["flipped", "empty", "writable"],
)
def test_a_damaged_entry(store, damage, reason):
    damage(find_entry(store, 2))
    found = audit(store.directory).damaged
    assert found == (Damage("entry", _id(2), reason),)
    assert remove_damaged(store.directory, found) == 1
    assert find_present(store, 1, 2, 3) == [1, 3]


def test_an_entry_without_its_object(store):
    _object(store, 3).unlink()
    found = audit(store.directory).damaged
    assert found == (Damage("entry", _id(3), "an entry without its artifacts"),)
    assert remove_damaged(store.directory, found) == 1


def test_an_entry_in_the_place_of_another(store):
    find_entry(store, 2).write_bytes(find_entry(store, 1).read_bytes())
    assert audit(store.directory).damaged == (Damage("entry", _id(2), "an entry in the place of another"),)


def test_what_another_version_wrote_is_not_judged(store, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(entry, "FORMAT", 7)
        save(store, 4)
    found = audit(store.directory)
    assert (found.entries, found.other, found.damaged) == (4, 1, ())


def test_what_was_mended_meanwhile_stays(store):
    path = _object(store, 1)
    whole = path.read_bytes()
    _flip(path)
    found = audit(store.directory).damaged
    path.write_bytes(whole)
    assert remove_damaged(store.directory, found) == 0
    assert find_present(store, 1, 2, 3) == [1, 2, 3]
