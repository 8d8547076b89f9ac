"""Damaged files: a load treats one as missing, an audit finds it, and the next save replaces it.

With anything else in the place of a file, store and record work again at the next save, and nothing is lost.
"""

import itertools
import os
import shutil
import socket
from collections.abc import Callable
from contextlib import chdir, suppress
from pathlib import Path

import pytest
from commands import call
from recorded_templates import make_chain_template, make_ledger
from store_contents import (
    BACKEND,
    collect_warnings,
    drop_root,
    find_entry,
    find_object,
    find_present,
    fork,
    load,
    make_artifacts,
    make_numbered_key,
    save,
    wait_for,
)

from fusioncache.observe.record.database import RecordReader, RecordWriter, record_path
from fusioncache.process.files import ASIDE
from fusioncache.store import Store, entry
from fusioncache.store.disk import Damage, audit, find_aside, remove_damaged
from fusioncache.store.files import Refusal

ROOT = os.geteuid() == 0


def change(make: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(make(path.read_bytes()))


def link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


BY_OTHERS = "a file that others can write"
SPOILT: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "truncated": (change(lambda content: content[: len(content) // 2]), "a damaged entry", "a wrong checksum"),
    "empty": (change(lambda content: b""), "a damaged entry", "a wrong checksum"),
    "longer": (change(lambda content: content + b"x"), "a damaged entry", "a file of the wrong length"),
    "a bit flipped": (change(lambda content: content[:-1] + b"?"), "a damaged entry", "a wrong checksum"),
    "link": (link, "a link in place of a file", "a link in place of a file"),
    "for all to write": (lambda path: path.chmod(0o666), BY_OTHERS, BY_OTHERS),
    "another user's": (lambda path: os.chown(path, 12345, 12345), BY_OTHERS, BY_OTHERS),
}
"""Damages of a file, each with an audit's reason if it is an entry's file, or an object."""


def find_code(store: Store, number: int) -> Path:
    return find_object(store, make_artifacts(number)["code"])


def name_entry(number: int) -> str:
    return f"{make_numbered_key(number).digest}.{BACKEND}"


@pytest.mark.parametrize("what", ["entry", "object"])
@pytest.mark.parametrize("how", SPOILT)
def test_a_spoilt_file_is_a_miss_that_an_audit_finds_and_a_save_replaces(store, what, how):
    if how == "another user's" and not ROOT:
        pytest.skip("only root can give files away")
    save(store, 1, 2)
    path = find_entry(store, 1) if what == "entry" else find_code(store, 1)
    spoil, of_entry, of_object = SPOILT[how]
    spoil(path)
    with collect_warnings() as messages:
        assert not load(store, 1)
        assert not load(store, 1)
    assert len(messages) == 1
    assert list(store.bypasses.values()) == [2]
    found = {(each.what, each.id): each.reason for each in audit(store.directory).damaged}
    assert found.pop(("entry", name_entry(1))) == (of_entry if what == "entry" else of_object)
    assert [*found] == ([("object", path.name)] if what == "object" else [])
    assert load(store, 2)
    with store.take_turn(make_numbered_key(1), BACKEND) as turn:
        assert turn.artifacts is None
        save(store, 1)
    for _ in range(2):
        assert load(store, 1) and load(store, 2)
        store.sweep()
    assert audit(store.directory).damaged == ()


def test_every_flipped_bit_of_an_entry_is_noticed(store):
    save(store, 1)
    path = find_entry(store, 1)
    content = path.read_bytes()
    with collect_warnings():
        for place in range(0, len(content), 3):
            flipped = bytes([content[place] ^ (1 << place % 8)])
            path.write_bytes(content[:place] + flipped + content[place + 1 :])
            assert not load(store, 1)
            with suppress(Refusal):
                # A digest in capitals, say, would still be the right one.
                assert entry.decode_entry(path.read_bytes(), path.name) is None


def swap(one: Path, other: Path) -> None:
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)


def test_swapped_entries_and_objects_are_misses(store):
    save(store, 1, 2, 3, 4)
    swap(find_entry(store, 1), find_entry(store, 2))
    swap(find_code(store, 3), find_code(store, 4))
    with collect_warnings():
        assert not any(load(store, number) for number in (1, 2, 3, 4))
    reasons = {"an entry in the place of another": 2, "a wrong checksum": 2}
    assert store.bypasses == reasons
    assert {each.reason for each in audit(store.directory).damaged if each.what == "entry"} == {*reasons}
    save(store, 1, 2, 3, 4)
    assert all(load(store, number) for number in (1, 2, 3, 4))


def test_a_missing_object_is_a_miss_and_its_entry_goes_and_a_planted_one_is_replaced(store):
    path = find_code(store, 1)
    path.parent.mkdir()
    path.write_bytes(b"x" * 3000)
    save(store, 1, 2)
    assert path.read_bytes() == make_artifacts(1)["code"] and load(store, 1)
    find_code(store, 1).unlink()
    assert audit(store.directory).damaged == (Damage("entry", name_entry(1), "an entry without its artifacts"),)
    Store.open().sweep()
    assert find_present(store, 1, 2) == [2]
    find_code(store, 2).unlink()
    with collect_warnings():
        assert not load(store, 2)
    save(store, 2)
    assert load(store, 2)


def test_an_entry_of_another_format_is_left_alone(store, monkeypatch):
    with monkeypatch.context() as later:
        later.setattr(entry, "FORMAT", 2)
        save(store, 1)
    save(store, 2)
    os.utime(find_entry(store, 1), (0, 0))
    content = find_entry(store, 1).read_bytes()
    with collect_warnings() as messages:
        assert not load(store, 1)
        assert not store.save(make_numbered_key(1), BACKEND, make_artifacts(1))
    assert len(messages) == 1
    found = audit(store.directory)
    assert (found.entries, found.other, found.damaged) == (2, 1, ())
    Store.open(max_bytes=1).sweep()
    assert find_entry(store, 1).read_bytes() == content
    # Its objects are unknown here, so none that it could need is removed.
    assert find_code(store, 1).exists()
    monkeypatch.setattr(entry, "FORMAT", 2)
    assert load(Store.open(), 1)


PRECIOUS = "a user's"


def clear_place(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)


def put_socket(path: Path) -> None:
    with chdir(path.parent), socket.socket(socket.AF_UNIX) as made:  # its path may have a hundred characters only
        made.bind("s")
        Path("s").rename(path.name)


def put_full_folder(path: Path) -> None:
    path.mkdir()
    (path / "thesis").write_text(PRECIOUS)


def put_link(path: Path) -> None:
    outside = next(folder for folder in path.parents if folder.name == "store").parent / "outside"
    outside.write_text(PRECIOUS)
    path.symlink_to(outside)


THINGS: dict[str, Callable[[Path], None]] = {
    "an empty folder": Path.mkdir,
    "a folder": put_full_folder,
    "a link to nothing": lambda path: path.symlink_to(path.parent / "nowhere"),
    "a link to itself": lambda path: path.symlink_to(path),
    "a link to a file": put_link,
    "a pipe": os.mkfifo,
    "a socket": put_socket,
}
SHARDS = ("a folder of entries", "a folder of objects")
PLACES: dict[str, Callable[[Store], Path]] = {
    "an entry": lambda store: find_entry(store, 1),
    "an object": lambda store: find_code(store, 1),
    "the lock of the store": lambda store: store.directory / "locks" / "store",
    "the lock of a turn": lambda store: store.directory / "locks" / find_entry(store, 1).name,
    "something that was being written": lambda store: store.directory / "entries" / "ab" / "tmp-1",
    "a folder of entries": lambda store: find_entry(store, 1).parent,
    "a folder of objects": lambda store: find_code(store, 1).parent,
}


def make_store(path: Path) -> Store:
    store = Store.open(path, remote="")
    save(store, 1, 2)
    return store


def is_still_there(root: Path, thing: str) -> bool:
    """True if the contents of the thing were not lost."""
    if thing == "a file":
        return [(root / aside).read_text() for aside in find_aside(root)] == [PRECIOUS]
    if thing == "a folder":
        return [each.read_text() for each in root.rglob("thesis")] == [PRECIOUS]
    return thing != "a link to a file" or (root.parent / "outside").read_text() == PRECIOUS


def check_works(path: Path) -> None:
    """Asserts that a process can save missing entries, and that the next one finds all entries and can sweep."""
    with collect_warnings():
        first = Store.open(path, remote="")
        for number in (1, 2):
            if not load(first, number):
                save(first, number)
            with first.take_turn(make_numbered_key(number), BACKEND, timeout=0.0) as turn:
                assert turn.lock_problem is None
        assert first.sweep() is not None
    with collect_warnings() as messages:
        second = Store.open(path, remote="")
        assert load(second, 1) and load(second, 2)
        assert len(second.entries()) == 2
        assert second.sweep() is not None
    assert (messages, dict(second.bypasses)) == ([], {}), (messages, second.bypasses)


@pytest.mark.parametrize(
    ("place", "thing"), [*itertools.product(PLACES, THINGS), *((shard, "a file") for shard in SHARDS)]
)
def test_the_next_save_heals_what_is_in_the_place_of_a_file(tmp_path, place, thing):
    root = tmp_path / "there" / "store"
    path = PLACES[place](make_store(root))
    clear_place(path)
    {**THINGS, "a file": lambda path: path.write_text(PRECIOUS)}[thing](path)
    check_works(root)
    assert is_still_there(root, thing) and not (path.parent / "nowhere").exists()


def test_what_cannot_be_read_heals(open_folder):
    """An entry and an object are written again. Other files may be unreadable on purpose, and are set aside."""

    def work():
        drop_root()
        os.umask(0o077)
        for number, find in enumerate(find for name, find in PLACES.items() if name not in SHARDS):
            root = open_folder / f"own-{number}" / "store"
            root.parent.mkdir()
            path = find(make_store(root))
            path.parent.mkdir(exist_ok=True)
            path.touch()
            path.chmod(0)
            check_works(root)

    assert wait_for(fork(work)) == 0


def damage_all(store: Store, put: Callable[[Path], None]) -> None:
    for path in (find_entry(store, 1), find_code(store, 1)):
        clear_place(path)
        put(path)


@pytest.mark.parametrize("thing", THINGS)
def test_verify_and_clear_remove_what_is_in_the_place_of_entries_and_objects(tmp_path, thing):
    root = tmp_path / "there" / "store"
    store = make_store(root)
    damage_all(store, THINGS[thing])
    damaged = audit(root).damaged
    assert sorted(each.what for each in damaged) == ["entry", "object"]
    with collect_warnings():
        assert remove_damaged(root, damaged) == 2
    assert audit(root).damaged == () and audit(root).entries == 1
    assert is_still_there(root, thing) or thing == "a folder"  # two of them
    assert len(find_aside(root)) == (2 if thing == "a folder" else 0)
    damage_all(store, THINGS[thing])
    result = call("clear", "-y", "--store", "--dir", str(root))
    assert result.exit_code == 0 and result.stdout == "removed 2 entries and 4 objects; 0 B left\n"
    assert audit(root).entries == audit(root).objects == 0
    assert result.stderr.count("not of the store, and left to you") == (4 if thing == "a folder" else 0)


def test_what_was_set_aside_is_listed_and_left(tmp_path):
    root = tmp_path / "there" / "store"
    store = make_store(root)
    damage_all(store, put_full_folder)
    with collect_warnings() as messages:
        again = Store.open(root, remote="")
        save(again, 1)
    said = f"a file of fusioncache's: it is now {ASIDE}"
    assert [said in message for message in messages] == [True, True]
    aside = find_aside(root)
    assert len(aside) == 2
    result = call("verify", "--dir", str(root))
    expected = [f"not of the store, and left to you: {root / each}" for each in aside]
    assert (result.exit_code, result.stderr.splitlines()) == (0, expected)
    assert call("clear", "-y", "--store", "--dir", str(root)).exit_code == 0
    assert [(root / each / "thesis").read_text() for each in find_aside(root)] == [PRECIOUS] * 2
    # With them the directory is still one of a store.
    (root / "format").unlink()
    assert Store.open(root, remote="").directory == root


@pytest.mark.parametrize("thing", THINGS)
def test_the_record_heals(monkeypatch, tmp_path, thing):
    home = tmp_path / "a" / "b" / "store"
    home.mkdir(parents=True)
    monkeypatch.setenv("FUSIONCACHE_DIR", str(home))
    record, put = record_path(), THINGS[thing]
    if thing == "a link to a file":  # to another disk, as it may be
        put = lambda path: (path.with_name(f"{path.name}-there").touch(), path.symlink_to(f"{path.name}-there"))  # noqa: E731
    for path in (record, record.with_name(f"{record.name}-journal")):
        clear_place(path)
        if thing != "a link to nothing" or path != record:  # where sqlite makes the file
            put(path)
        with collect_warnings() as messages:
            RecordWriter(make_ledger(make_chain_template())).save()
        assert len(messages) == (thing == "a folder")
        assert len(RecordReader().runs()) >= 1
    if thing == "a folder":
        assert {each.read_text() for each in record.parent.glob("aside-*/thesis")} == {PRECIOUS}
    clear_place(record)
    put(record)
    with collect_warnings():
        result = call("clear", "-y", "--record")
    assert result.exit_code == 0, result.output
    assert not os.path.lexists(record)
