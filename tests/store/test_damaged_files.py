"""A file that is not what was saved: a load takes it for none, an audit finds it, and the next save replaces it."""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from store_contents import (
    BACKEND,
    collect_warnings,
    find_entry,
    find_object,
    find_present,
    find_root,
    load,
    make_artifacts,
    make_numbered_key,
    save,
)

from fusioncache.store import Store, entry, files
from fusioncache.store.disk import Damage, audit, remove_damaged

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
    "foreign": (change(lambda content: b"This is something else. " * 100), "a damaged entry", "a wrong checksum"),
    "same length": (change(lambda content: b"x" * len(content)), "a damaged entry", "a wrong checksum"),
    "link": (link, "a link in place of a file", "a link in place of a file"),
    "for all to write": (lambda path: path.chmod(0o666), BY_OTHERS, BY_OTHERS),
    "another user's": (lambda path: os.chown(path, 12345, 12345), BY_OTHERS, BY_OTHERS),
}
"""What happened to a file, and what an audit says of an entry whose file, or whose object, that is."""


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
    assert list(store.stats().bypasses.values()) == [2]
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


def test_what_an_audit_found_is_removed_unless_it_was_mended_meanwhile(store):
    save(store, 1, 2, 3)
    whole = find_code(store, 1).read_bytes()
    find_code(store, 1).write_bytes(b"half")
    find_entry(store, 2).write_bytes(b"half")
    found = audit(store.directory).damaged
    assert len(found) == 3
    find_code(store, 1).write_bytes(whole)
    assert remove_damaged(store.directory, found) == 1
    assert find_present(store, 1, 2, 3) == [1, 3]
    find_code(store, 1).write_bytes(b"half")
    assert remove_damaged(store.directory, found) == 2
    assert find_present(store, 1, 2, 3) == [3] and not find_code(store, 1).exists()


def test_every_flipped_bit_of_an_entry_is_noticed(store):
    save(store, 1)
    path = find_entry(store, 1)
    content = path.read_bytes()
    with collect_warnings():
        for place in range(0, len(content), 3):
            flipped = bytes([content[place] ^ (1 << place % 8)])
            path.write_bytes(content[:place] + flipped + content[place + 1 :])
            assert not load(store, 1)
            with suppress(files.Refusal):
                # A digest in capitals, say, would still be the right one.
                assert entry.decode_entry(path.read_bytes(), path.name) is None


def test_a_planted_object_is_not_kept_by_a_save(store):
    path = find_code(store, 1)
    path.parent.mkdir()
    path.write_bytes(b"x" * 3000)
    save(store, 1)
    assert path.read_bytes() == make_artifacts(1)["code"]
    assert load(store, 1)


def test_a_missing_object_is_a_miss_and_its_entry_goes(store):
    save(store, 1, 2)
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
    found = audit(find_root(store))
    assert (found.entries, found.other, found.damaged) == (2, 1, ())
    Store.open(max_bytes=1).sweep()
    assert find_entry(store, 1).read_bytes() == content
    # What it needs is not known here, so nothing goes that it could need.
    assert find_code(store, 1).exists()
    monkeypatch.setattr(entry, "FORMAT", 2)
    assert load(Store.open(), 1)
