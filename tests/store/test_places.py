"""Whatever is in the place of a file, the store and the record work again at the next save, and nothing is lost."""

import itertools
import json
import os
import shutil
import socket
from collections.abc import Callable
from contextlib import chdir
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
    fork,
    load,
    make_artifacts,
    make_numbered_key,
    save,
    wait_for,
)

from fusioncache.observe.record.database import RecordReader, RecordWriter, record_path
from fusioncache.process import files
from fusioncache.store import Store
from fusioncache.store.disk import audit, find_aside, remove_damaged

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


def put_file(path: Path) -> None:
    path.write_text(PRECIOUS)


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
SHARDS = {
    "a folder of entries": lambda store: find_entry(store, 1).parent,
    "a folder of objects": lambda store: find_code(store).parent,
}


def find_code(store: Store) -> Path:
    return find_object(store, make_artifacts(1)["code"])


PLACES: dict[str, Callable[[Store], Path]] = {
    "an entry": lambda store: find_entry(store, 1),
    "an object": find_code,
    "the lock of the store": lambda store: store.directory / "locks" / "store",
    "the lock of a turn": lambda store: store.directory / "locks" / find_entry(store, 1).name,
    "something that was being written": lambda store: store.directory / "entries" / "ab" / "tmp-1",
    **SHARDS,
}


def make_store(path: Path) -> Store:
    store = Store.open(path, remote="")
    save(store, 1, 2)
    return store


def is_still_there(root: Path, thing: str) -> bool:
    """Whether what a thing held was not lost."""
    if thing == "a file":
        return [(root / aside).read_text() for aside in find_aside(root)] == [PRECIOUS]
    if thing == "a folder":
        return [each.read_text() for each in root.rglob("thesis")] == [PRECIOUS]
    return thing != "a link to a file" or (root.parent / "outside").read_text() == PRECIOUS


def check_works(path: Path) -> None:
    """A process that finds it so saves what is missing; the next one finds everything, and can clean up."""
    with collect_warnings():
        first = Store.open(path, remote="")
        for number in (1, 2):
            if not load(first, number):
                save(first, number)
            with first.take_turn(make_numbered_key(number), BACKEND, timeout=0.0) as turn:
                assert turn.alone is None
        assert first.sweep() is not None
    with collect_warnings() as messages:
        second = Store.open(path, remote="")
        assert load(second, 1) and load(second, 2)
        assert len(second.entries()) == 2
        assert second.sweep() is not None
    assert (messages, dict(second.stats().bypasses)) == ([], {}), (messages, second.stats().bypasses)


@pytest.mark.parametrize(
    ("place", "thing"), [*itertools.product(PLACES, THINGS), *((shard, "a file") for shard in SHARDS)]
)
def test_the_next_save_heals_what_is_in_the_place_of_a_file(tmp_path, place, thing):
    root = tmp_path / "there" / "store"
    path = PLACES[place](make_store(root))
    clear_place(path)
    {**THINGS, "a file": put_file}[thing](path)
    check_works(root)
    assert is_still_there(root, thing) and not (path.parent / "nowhere").exists()


def test_what_cannot_be_read_heals(open_folder):
    """An entry and an object are written anew. Other files may be unreadable on purpose, and are set aside."""

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
    for path in (find_entry(store, 1), find_code(store)):
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
    said = f"a file of fusioncache's: it is now {files.ASIDE}"
    assert [said in message for message in messages] == [True, True]
    aside = audit(root).aside
    assert len(aside) == 2
    result = call("verify", "--dir", str(root))
    expected = [f"not of the store, and left to you: {root / each}" for each in aside]
    assert (result.exit_code, result.stderr.splitlines()) == (0, expected)
    assert json.loads(call("verify", "--dir", str(root), "--json").stdout)["aside"] == [*aside]
    for _ in range(2):
        assert call("clear", "-y", "--store", "--dir", str(root)).exit_code == 0
        assert find_aside(root) == aside
        assert [(root / each / "thesis").read_text() for each in aside] == [PRECIOUS] * 2
    # They make no directory of the store's a foreign one.
    (root / "format").unlink()
    assert Store.open(root, remote="").directory == root


@pytest.fixture
def record(monkeypatch, tmp_path):
    """Where the record of this test is to be."""
    home = tmp_path / "a" / "b" / "store"
    home.mkdir(parents=True)
    monkeypatch.setenv("FUSIONCACHE_DIR", str(home))
    return record_path()


@pytest.mark.parametrize("thing", THINGS)
def test_the_record_heals(record, thing):
    put = THINGS[thing]
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
