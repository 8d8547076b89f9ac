"""Only what a trusted key signed is accepted from other machines, and only while that key is trusted.

Each attack takes a valid entry or pack, changes one thing as a writer of the remote could, and is refused. Some
are signed by the trusted key, as if its holder had made a mistake: the fault is still found.
"""

import hashlib
import json
import os
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from signing_keys import make_signing_key
from store_contents import BACKEND, find_present, load, make_artifacts, make_numbered_key, push_new, save
from threads_at_once import run_at_once

from fusioncache.cache.exchange import Retention, prune_remote, pull, push
from fusioncache.ir.keys import write_key
from fusioncache.process.settings import TRUST
from fusioncache.store import Store, StoreError, signing
from fusioncache.store.entry import LARGEST, open_entry, sign_entry
from fusioncache.store.files import Refusal
from fusioncache.store.packs import LARGEST_MANIFEST, open_pack, unpack, write_pack
from fusioncache.store.remote import Remote
from fusioncache.store.signing import (
    NOT_SIGNED,
    NOT_TRUSTED,
    REVOKED,
    WRONG_SIGNATURE,
    Origin,
    SigningKey,
    list_keys,
    make_own_key,
    put_key,
    read_own_key,
    read_trust,
    split_origin,
)

CI, EVE = make_signing_key("ci"), make_signing_key("eve")


@pytest.fixture(autouse=True)
def _trusts_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trusts one key."""
    monkeypatch.delenv(TRUST.name)
    put_key(CI.public, "ci", "trusted")


@pytest.fixture
def shared(tmp_path: Path, here: Store) -> Path:
    """Returns the folder of a remote with two signed entries."""
    push_new(here, str(tmp_path / "shared"), 1, 2, key=CI)
    return tmp_path / "shared"


def refused_for(there: Store, shared: Path) -> str:
    """Returns the error of a pull; asserts that no entry was pulled."""
    with pytest.raises(StoreError) as raised:
        pull(there, Remote(str(shared)))
    assert not find_present(there, 1, 2)
    return str(raised.value)


def test_what_is_signed_comes_and_is_passed_on_with_its_signature(tmp_path, here, there, shared, monkeypatch):
    assert pull(there, Remote(str(shared))).entries == 2
    assert load(there, 1)
    came = there.entry(make_numbered_key(1).digest, BACKEND)
    assert came.origin.key == CI.public
    assert replace(came, origin=None) == here.entry(make_numbered_key(1).digest, BACKEND)
    push(there, Remote(str(tmp_path / "next")), key=EVE)
    monkeypatch.setenv(TRUST.name, EVE.public)
    third = Store.open(tmp_path / "third", remote="")
    assert pull(third, Remote(str(tmp_path / "next"))).entries == 2
    assert third.entry(make_numbered_key(1).digest, BACKEND).origin.key == CI.public


FORGERIES = {
    "unsigned": (lambda content, sign: split_origin(content)[1], NOT_SIGNED),
    "said to be allowed unsigned": (lambda content, sign: Origin().line + split_origin(content)[1], NOT_SIGNED),
    "another key": (lambda content, sign: sign(content, EVE), NOT_TRUSTED),
    "another key under the name of the trusted": (
        lambda content, sign: sign(content, EVE).replace(EVE.public.encode(), CI.public.encode()),
        WRONG_SIGNATURE,
    ),
    "a changed field": (lambda content, sign: content.replace(b'":"', b'":"x', 1), WRONG_SIGNATURE),
    "a signature of zeros": (lambda content, sign: content.replace(content.split()[4], b"0" * 128), WRONG_SIGNATURE),
    "a key that is no point": (lambda content, sign: content.replace(CI.public.encode(), b"f" * 64), NOT_TRUSTED),
}
"""Attacks on an entry and on a pack; ``sign`` signs their contents anew."""


def forge(sign: Callable[..., bytes]) -> dict[str, tuple[Callable[[bytes], bytes], str]]:
    return {name: (partial(change, sign=sign), reason) for name, (change, reason) in FORGERIES.items()}


def change_body(content: bytes, **fields: object) -> bytes:
    """Returns an entry with a valid checksum and these fields, signed by the trusted key."""
    body = {**json.loads(split_origin(content)[1].partition(b"\n")[2]), **fields}
    return sign_body(json.dumps(body, separators=(",", ":")).encode())


def sign_body(body: bytes) -> bytes:
    return CI.sign(b"fusioncache entry 1 %s\n%s" % (hashlib.sha256(body).hexdigest().encode(), body))


ATTACKS: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    **forge(lambda content, key: key.sign(split_origin(content)[1])),
    "a byte more": (lambda content: content + b" ", WRONG_SIGNATURE),
    "a signature that is no number": (lambda content: content.replace(content.split()[4], b"g" * 128), NOT_SIGNED),
    "half of it": (lambda content: content[: len(content) // 2], WRONG_SIGNATURE),
    "signed twice": (lambda content: CI.sign(content), "an entry that is written in another way"),
    "nothing": (lambda content: b"", NOT_SIGNED),
    "no entry": (lambda content: CI.sign(b"#!/bin/sh\n"), "a damaged entry"),
    "a pack": (lambda content: CI.sign(b"fusioncache pack 1 2\n{}"), "a damaged entry"),
    "too long": (lambda content: b"x" * (LARGEST + 1), "an entry that is too long"),
    "a key with the digest of another": (  # it would block the valid entry
        lambda content: change_body(content, text="2"),
        "an entry whose key has another digest",
    ),
}
PATHS = ("../../../../../tmp/x", "/tmp/x", "a/b", "..", "\x00")
WRONG_FIELDS = {
    "digest": (5, "A" * 64, *PATHS),
    "backend": ("../x", *PATHS),
    "text": (None, "\ud800"),
    "name": (["x"],),
    "host": ("\udfff",),
    "created": (float("nan"), "now"),
    "seconds": (float("inf"), 10**400),
    "pid": (1.5, True, 1 << 70),
    "ingredients": ([["one"]], [["one", 2]], 7),
    "artifacts": (
        [{"name": "a"}],
        [{"name": {}, "object": "a" * 64, "size": 1}],
        *([{"name": "a", "object": path, "size": 1}] for path in PATHS),
        *([{"name": "a", "object": "a" * 64, "size": size}] for size in (-1, "1")),
    ),
    "origin": ({"key": CI.public, "signature": "0" * 128},),
    "surplus": (1,),
}
"""Invalid values of an entry's fields, even if a trusted key signed it: no name in it becomes a path, for example."""
WRONG_BODIES = (b"", b"[]", b"null", b"{}", b"[" * 100_000, b'{"pid": ' + b"9" * 5000 + b"}")
ATTACKS |= {
    f"a body {body[:10]!r}": (lambda content, body=body: sign_body(body), "a damaged entry") for body in WRONG_BODIES
}
ATTACKS |= {
    f"{field} {value!r}": (partial(change_body, **{field: value}), "a damaged entry")
    for field, values in WRONG_FIELDS.items()
    for value in values
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_on_an_entry_is_refused(here, attack):
    save(here, 1)
    entry = here.entry(make_numbered_key(1).digest, BACKEND)
    content, id_, (change, reason) = sign_entry(entry, CI), entry.id, ATTACKS[attack]
    assert open_entry(content, id_, read_trust()).id == id_
    with pytest.raises(Refusal) as refused:
        open_entry(change(content), id_, read_trust())
    assert refused.value.reason == reason
    for other in (f"{'0' * 64}.{BACKEND}", id_.replace(BACKEND, "nvfuser")):
        with pytest.raises(Refusal, match="an entry in the place of another"):
            open_entry(content, other, read_trust())


def test_what_is_learned_here_does_not_take_the_place_of_what_came(there, shared):
    """It contains data of the other machine, and would stay when that machine's key is revoked."""
    pull(there, Remote(str(shared)))
    key, learned = make_numbered_key(1), {**make_artifacts(1), "more": b""}
    assert not there.replace(key, BACKEND, learned)
    assert load(there, 1)
    put_key(CI.public, "ci", "revoked")
    with pytest.warns(RuntimeWarning, match="revoked"):
        assert there.replace(key, BACKEND, learned)
    for more in ({}, {"again": b""}):
        assert there.replace(key, BACKEND, {**learned, **more})
        assert there.load(key, BACKEND) == {**learned, **more}


def test_the_variable_trusts_a_key_but_none_that_was_revoked(there, shared, monkeypatch):
    os.unlink(signing.find_keys() / "trusted")
    assert NOT_TRUSTED in refused_for(there, shared)
    monkeypatch.setenv(TRUST.name, f"{EVE.public}, {CI.public}")
    put_key(CI.public, "ci", "revoked")
    assert REVOKED in refused_for(there, shared)
    os.unlink(signing.find_keys() / "trusted")
    assert pull(there, Remote(str(shared))).entries == 2


def test_unsigned_entries_that_were_allowed_run_only_while_they_are(there, tmp_path, here, monkeypatch):
    push_new(here, str(tmp_path / "plain"), 1)
    assert NOT_SIGNED in refused_for(there, tmp_path / "plain")
    monkeypatch.setenv(TRUST.name, "unsigned")
    assert pull(there, Remote(str(tmp_path / "plain"))).entries == 1
    assert load(there, 1)
    assert push(there, Remote(str(tmp_path / "next")), key=CI).refused == {"an entry that came here unsigned": 1}
    monkeypatch.delenv(TRUST.name)
    with pytest.warns(RuntimeWarning, match="not signed"):
        assert not load(there, 1)


def test_without_the_package_nothing_comes_and_the_message_says_what_to_install(there, shared, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "cryptography.hazmat.primitives.asymmetric", None)
    with pytest.raises(StoreError, match=r'pip install "fusioncache\[sign\]"'):
        pull(there, Remote(str(shared)))
    reader = Store.open(there.directory, remote=str(shared))
    with pytest.warns(RuntimeWarning, match=r'pip install "fusioncache\[sign\]"'):
        assert not load(reader, 1)


def test_the_own_key_is_private_trusted_and_made_once(there, here, tmp_path, monkeypatch):
    own = make_own_key("me")
    path = signing.find_keys() / "own"
    assert [each.stat().st_mode & 0o777 for each in (path, path.parent)] == [0o600, 0o700]
    assert read_own_key() == own
    assert read_trust().trusted == {CI.public: "ci", own.public: "me"}
    with pytest.raises(StoreError, match="there is a private key"):
        make_own_key("other")
    monkeypatch.setenv("FUSIONCACHE_SIGNING_KEY", CI.text)
    assert read_own_key() == CI
    push_new(here, str(tmp_path / "own"), 1, key=own)
    monkeypatch.delenv("FUSIONCACHE_SIGNING_KEY")
    assert pull(there, Remote(str(tmp_path / "own"))).entries == 1


def test_of_several_commands_that_make_a_key_one_does():
    made: list[SigningKey] = []

    def make(name: str) -> None:
        with suppress(StoreError):
            made.append(make_own_key(name))

    run_at_once(*[partial(make, f"key-{number}") for number in range(8)])
    assert made == [read_own_key()]


@pytest.mark.parametrize(
    "text", ["trusted", "trusted " + "0" * 63 + " x", "trusted " + "0" * 64 + " ../x", "\x00", "a b c"]
)
def test_a_list_of_keys_that_cannot_be_read_trusts_no_key(there, shared, text):
    keys = signing.find_keys() / "trusted"
    keys.write_text(f"trusted {CI.public} ci\n{text}\n")
    assert "the list of trusted keys cannot be read" in refused_for(there, shared)
    keys.chmod(0o666)
    assert "a file that others can write" in refused_for(there, shared)


def test_keys_are_revoked_at_once_and_whatever_they_are_called(monkeypatch):
    keys = [f"{number:064x}" for number in range(8)]
    run_at_once(*[partial(put_key, key, f"key-{key[-1]}", "revoked") for key in keys])
    assert {key for state, key, _ in list_keys() if state == "revoked"} == {*keys}

    # Two keys in the variable may have one name.
    monkeypatch.setenv(TRUST.name, f"{CI.public},{EVE.public}")
    for key in (CI, EVE):
        put_key(key.public, "same", "revoked")
    assert (read_trust().trusted, {*read_trust().revoked}) == ({}, {*keys, CI.public, EVE.public})
    with pytest.raises(StoreError, match="another key has the name same"):
        put_key("0" * 64, "same", "trusted")


def test_a_revoked_key_or_one_whose_parts_do_not_belong_together_signs_nothing(here, tmp_path):
    save(here, 1)
    remote = Remote(str(tmp_path / "shared"))
    with pytest.raises(StoreError, match="does not belong"):
        push(here, Remote(str(tmp_path / "other")), key=replace(CI, public=EVE.public))
    put_key(CI.public, "ci", "revoked")
    ids = here.disk.entries.list_files()
    for act in (
        lambda: push(here, remote, key=CI),
        lambda: prune_remote(remote, Retention(), key=CI),
        lambda: write_pack(here.disk, ids, tmp_path / "pack", model="", version="1", key=CI),
    ):
        with pytest.raises(StoreError, match=r"the key ci was revoked, and signs no more: move .*/keys/own away"):
            act()
    assert not list(tmp_path.glob("*shared*")) and not list(tmp_path.glob("*pack*"))


def make_key(number: int) -> object:
    """Returns a key with a valid key text, as a pack's manifest needs."""
    return make_numbered_key(write_key({"ops": str(number), "architecture": f"machine {number % 2}"}))


def fill(store: Store, *numbers: int) -> None:
    for number in numbers:
        assert store.save(make_key(number), "eager", make_artifacts(number), name=f"t{number}")


def has(store: Store, *numbers: int) -> list[int]:
    return [number for number in numbers if store.load(make_key(number), "eager") is not None]


def pack_all(store: Store, path: Path, *more: int, key=CI):
    fill(store, *more)
    return write_pack(store.disk, store.disk.entries.list_files(), path, model="", version="1", key=key)


def bring(path: Path, store: Store):
    trust = read_trust()
    return unpack(open_pack(path, trust), store.disk, trust, lambda needs: None)


@pytest.fixture
def packed(tmp_path: Path, here: Store) -> Path:
    """Returns a pack of three entries."""
    pack_all(here, tmp_path / "pack", 1, 2, 3)
    return tmp_path / "pack"


def test_what_was_packed_is_brought_once_and_not_when_its_key_was_revoked(packed, there):
    manifest = open_pack(packed, read_trust()).manifest
    assert [len(parts) for parts in (manifest.entries, manifest.objects, manifest.environments)] == [3, 5, 2]
    brought = bring(packed, there)
    assert (brought.entries, brought.skipped, brought.unfit, brought.refused) == (3, 0, {}, {})
    assert all(there.load(make_key(number), "eager") == make_artifacts(number) for number in (1, 2, 3))
    assert bring(packed, there).skipped == 3
    pack_all(there, packed.with_name("again"))
    assert packed.with_name("again").read_bytes() == packed.read_bytes()
    put_key(CI.public, "ci", "revoked")
    with pytest.raises(StoreError, match="signed by a key that was revoked: ci"):
        bring(packed, there)


def test_a_pack_of_a_trusted_key_brings_no_entry_of_another_one(tmp_path, here, there, monkeypatch):
    """CI passes on entries that another key signed: they keep that signature."""
    pack_all(here, tmp_path / "eves", 1, key=EVE)
    monkeypatch.setenv(TRUST.name, f"{CI.public},{EVE.public}")
    bring(tmp_path / "eves", there)
    pack_all(there, tmp_path / "both", 2)
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


def split(content: bytes) -> tuple[bytes, bytes]:
    """Returns the manifest of a pack, and the bytes behind it."""
    head, _, rest = split_origin(content)[1].partition(b"\n")
    size = int(head.split()[-1])
    return rest[:size], rest[size:]


def resign_pack(content: bytes, key=CI, **fields: object) -> bytes:
    """Returns the pack with other values in its manifest, signed anew."""
    text, rest = split(content)
    manifest = json.loads(text)
    for name, change in fields.items():
        manifest[name] = change(manifest[name]) if callable(change) else change
    body = json.dumps(manifest, separators=(",", ":")).encode()
    return key.sign(b"fusioncache pack 1 %d\n%s" % (len(body), body)) + rest


def set_in(place: int, **fields: object) -> Callable[[list], list]:
    return lambda parts: [{**part, **fields} if number == place else part for number, part in enumerate(parts)]


def changed(**fields: object) -> Callable[[bytes], bytes]:
    return lambda content: resign_pack(content, **fields)


def written(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    return lambda content: content.replace(old, new, 1)


DAMAGED = "the pack is damaged"
FILE_ATTACKS = {
    **forge(resign_pack),
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
    """Returns a pack in which two entries have the file of each other, with their checksums."""
    text, rest = split(content)
    first, second = json.loads(text)["entries"][:2]
    end = first["size"] + second["size"]
    rest = rest[first["size"] : end] + rest[: first["size"]] + rest[end:]
    swapped = [
        {**one, "digest": other["digest"], "size": other["size"]} for one, other in ((first, second), (second, first))
    ]
    signed = resign_pack(content, entries=lambda parts: [*swapped, *parts[2:]])
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
