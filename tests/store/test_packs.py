"""A pack brings what was packed, and nothing that a key which is trusted did not sign.

Each attack changes one thing in a pack that is right. Those of the second table are signed by the trusted key, as if
its holder had made a mistake: what is wrong is found out all the same.
"""

import json
import os
import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from signing_keys import make_signing_key
from store_contents import make_artifacts, make_numbered_key

from fusioncache.ir.keys import write_key
from fusioncache.process.settings import TRUST
from fusioncache.store import Store, StoreError
from fusioncache.store.packs import LARGEST_MANIFEST, open_pack, unpack, write_pack
from fusioncache.store.signing import Origin, put_key, read_trust, split_origin

CI, EVE = make_signing_key("ci"), make_signing_key("eve")


@pytest.fixture(autouse=True)
def _trusts_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TRUST.name, CI.public)


def make_key(number: int) -> object:
    """A key whose text is one, as a pack's manifest needs."""
    return make_numbered_key(write_key({"ops": str(number), "architecture": f"machine {number % 2}"}))


def fill(store: Store, *numbers: int) -> None:
    for number in numbers:
        assert store.save(make_key(number), "eager", make_artifacts(number), name=f"t{number}")


def has(store: Store, *numbers: int) -> list[int]:
    return [number for number in numbers if store.load(make_key(number), "eager") is not None]


def pack_all(store: Store, path: Path, key=CI):
    return write_pack(store.disk, store.disk.entries.list_files(), path, model="", version="1", key=key)


def bring(path: Path, store: Store):
    trust = read_trust()
    return unpack(open_pack(path, trust), store.disk, trust, lambda needs: None)


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A pack of three entries."""
    folder = tmp_path_factory.mktemp("made")
    store = Store.open(folder / "store", remote="")
    fill(store, 1, 2, 3)
    pack_all(store, folder / "pack")
    return (folder / "pack").read_bytes()


@pytest.fixture
def packed(tmp_path: Path, content: bytes) -> Path:
    (tmp_path / "pack").write_bytes(content)
    return tmp_path / "pack"


def test_what_was_packed_is_brought_once(packed, there):
    manifest = open_pack(packed, read_trust()).manifest
    assert [len(parts) for parts in (manifest.entries, manifest.objects, manifest.environments)] == [3, 5, 2]
    brought = bring(packed, there)
    assert (brought.entries, brought.skipped, brought.unfit, brought.refused) == (3, 0, {}, {})
    assert all(there.load(make_key(number), "eager") == make_artifacts(number) for number in (1, 2, 3))
    assert bring(packed, there).skipped == 3
    pack_all(there, packed.with_name("again"))
    assert packed.with_name("again").read_bytes() == packed.read_bytes()


def test_a_pack_of_a_revoked_key_is_refused(packed, there):
    put_key(CI.public, "ci", "revoked")
    with pytest.raises(StoreError, match="signed by a key that was revoked: ci"):
        bring(packed, there)


def test_an_entry_of_a_key_that_is_not_trusted_does_not_come_in_a_pack_of_one_that_is(
    tmp_path, here, there, monkeypatch
):
    """CI passes on what another key signed: its entries keep that signature."""
    fill(here, 1)
    pack_all(here, tmp_path / "eves", key=EVE)
    monkeypatch.setenv(TRUST.name, f"{CI.public},{EVE.public}")
    bring(tmp_path / "eves", there)
    fill(there, 2)
    pack_all(there, tmp_path / "both")
    monkeypatch.setenv(TRUST.name, CI.public)
    third = Store.open(tmp_path / "third", remote="")
    brought = bring(tmp_path / "both", third)
    assert (brought.entries, brought.refused) == (1, {"signed by a key that is not trusted": 1})
    assert has(third, 1, 2) == [2]


def test_a_pack_that_cannot_be_written_leaves_nothing(tmp_path, here, monkeypatch):
    fill(here, 1)
    (tmp_path / "pack").write_bytes(b"before")
    monkeypatch.setattr("os.replace", lambda *paths: (_ for _ in ()).throw(OSError(28, "no space")))
    with pytest.raises(StoreError, match="pack cannot be written"):
        pack_all(here, tmp_path / "pack")
    assert (tmp_path / "pack").read_bytes() == b"before"
    assert not list(tmp_path.glob("tmp-*"))


def split(content: bytes) -> tuple[bytes, bytes, bytes]:
    """The line of the signature, what that covers, and the rest."""
    _, below = split_origin(content)
    head, _, rest = below.partition(b"\n")
    size = int(head.split()[-1])
    return content[: len(content) - len(below)], below[: len(head) + 1 + size], rest[size:]


def resign(content: bytes, key=CI, **fields: object) -> bytes:
    """The pack with a manifest that has other values, signed anew."""
    _, below, rest = split(content)
    manifest = json.loads(below.partition(b"\n")[2])
    for name, change in fields.items():
        manifest[name] = change(manifest[name]) if callable(change) else change
    body = json.dumps(manifest, separators=(",", ":")).encode()
    return key.sign(b"fusioncache pack 1 %d\n%s" % (len(body), body)) + rest


def set_in(place: int, **fields: object) -> Callable[[list], list]:
    return lambda parts: [{**part, **fields} if number == place else part for number, part in enumerate(parts)]


def changed(**fields: object) -> Callable[[bytes], bytes]:
    return lambda content: resign(content, **fields)


def written(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    return lambda content: content.replace(old, new, 1)


DAMAGED = "the pack is damaged"
FILE_ATTACKS = {
    "unsigned": (lambda content: split_origin(content)[1], "not signed"),
    "said to be allowed unsigned": (lambda content: Origin().line + split_origin(content)[1], "not signed"),
    "another key": (lambda content: resign(content, EVE), "not trusted"),
    "another key under a trusted name": (
        lambda content: resign(content, EVE).replace(EVE.public.encode(), CI.public.encode()),
        "a wrong signature",
    ),
    "a changed manifest": (written(b'"version":"1"', b'"version":"2"'), "a wrong signature"),
    "another length": (written(b"pack 1 ", b"pack 1 1"), "shorter than its manifest|wrong signature"),
    "a huge length": (written(b"pack 1 ", b"pack 1 9999"), "too long"),
    "cut": (lambda content: content[:-1], "another length"),
    "longer": (lambda content: content + b"x", "another length"),
    "an entry": (lambda content: CI.sign(b"fusioncache entry 1 " + b"0" * 64 + b"\n{}"), "no pack"),
    "nothing": (lambda content: b"", "no pack"),
    "another file": (lambda content: b"\x7fELF" + content, "no pack"),
    "a later format": (written(b"pack 1 ", b"pack 2 "), "of another format: 2"),
    "a deeply nested manifest": (
        lambda content: CI.sign(b"fusioncache pack 1 100000\n" + b"[" * 100_000),
        "strict JSON",
    ),
    "a manifest that is none": (lambda content: CI.sign(b"fusioncache pack 1 2\n{}"), DAMAGED),
    "sizes of a bomb": (changed(entries=set_in(0, size=1 << 50)), DAMAGED),
    "sizes that are too large": (changed(objects=set_in(0, size=1 << 28)), "another length"),
    "a negative size": (changed(objects=set_in(0, size=-1)), DAMAGED),
    "a path for a name": (changed(entries=set_in(0, id="../../../tmp/x")), DAMAGED),
    "a path for a digest": (changed(objects=set_in(0, digest="/etc/passwd")), DAMAGED),
    "an object that is not there": (changed(entries=set_in(0, objects=[99])), "not there"),
    "an environment that is not there": (changed(entries=set_in(0, environment=99)), "not there"),
    "an entry twice": (changed(entries=lambda parts: [parts[0], *parts]), "twice"),
    "an object twice": (changed(objects=lambda parts: [parts[0], *parts]), "twice"),
    "one more field": (changed(extra=1), DAMAGED),
}


def swap_entries(content: bytes) -> bytes:
    """The files of two entries, each under the name of the other, with their checksums."""
    first, second = json.loads(split(content)[1].partition(b"\n")[2])["entries"][:2]
    rest, end = split(content)[2], first["size"] + second["size"]
    rest = rest[first["size"] : end] + rest[: first["size"]] + rest[end:]
    swapped = [
        {**one, "digest": other["digest"], "size": other["size"]} for one, other in ((first, second), (second, first))
    ]
    signed = resign(content, entries=lambda parts: [*swapped, *parts[2:]])
    return signed[: len(signed) - len(rest)] + rest


ATTACKS_ON_ENTRIES = {
    "a changed object": (lambda content: content[:-1] + bytes([content[-1] ^ 1]), "a wrong checksum"),
    "an entry in the place of another": (swap_entries, "an entry in the place of another"),
    "an object less": (changed(entries=set_in(0, objects=[])), "an entry with other objects than the pack says"),
    "another digest of an entry": (changed(entries=set_in(0, digest="0" * 64)), "a wrong checksum"),
}


@pytest.mark.parametrize("attack", FILE_ATTACKS)
def test_an_attack_on_a_pack_is_refused(packed, there, attack):
    change, reason = FILE_ATTACKS[attack]
    packed.write_bytes(change(packed.read_bytes()))
    with pytest.raises(StoreError, match=reason):
        bring(packed, there)
    assert has(there, 1, 2, 3) == []


@pytest.mark.parametrize("attack", ATTACKS_ON_ENTRIES)
def test_what_is_wrong_in_a_signed_pack_is_left_out(packed, there, attack):
    change, reason = ATTACKS_ON_ENTRIES[attack]
    packed.write_bytes(change(packed.read_bytes()))
    brought = bring(packed, there)
    assert set(brought.refused) == {reason}
    assert len(has(there, 1, 2, 3)) == brought.entries == 3 - sum(brought.refused.values())


@pytest.mark.parametrize("kind", ["nothing", "a folder", "a pipe"])
def test_what_is_no_file_is_neither_written_nor_read(tmp_path, here, kind):
    with pytest.raises(StoreError, match="nothing to pack"):
        pack_all(here, tmp_path / "pack")
    fill(here, 1)
    path = tmp_path / "there"
    if kind != "nothing":
        os.mkfifo(path) if kind == "a pipe" else path.mkdir()
        with pytest.raises(StoreError, match="there is no file: give the path of a file"):
            pack_all(here, path)
    with pytest.raises(StoreError, match=r"no file: give the path of a pack|Is a directory|No such file"):
        open_pack(path, read_trust())
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith("tmp-")] == []


def test_a_huge_length_takes_no_memory(tmp_path, there):
    """The length is read before the signature: it is bounded, and no more is read than the file has."""
    (tmp_path / "x").write_bytes(CI.sign(b"fusioncache pack 1 %d\n" % LARGEST_MANIFEST) + b" " * 1000)
    tracemalloc.start()
    try:
        with pytest.raises(StoreError, match="shorter than its manifest"):
            bring(tmp_path / "x", there)
        assert tracemalloc.get_traced_memory()[1] < 1 << 21
    finally:
        tracemalloc.stop()


def test_any_changed_byte_is_noticed(packed, tmp_path):
    content, rng = packed.read_bytes(), random.Random(0)
    for number in range(100):
        changed = bytearray(content)
        changed[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        packed.write_bytes(bytes(changed))
        store = Store.open(tmp_path / f"store-{number}", remote="")
        try:
            brought = bring(packed, store)
        except StoreError:
            assert has(store, 1, 2, 3) == []
        else:
            assert brought.refused
            assert len(has(store, 1, 2, 3)) == brought.entries < 3
