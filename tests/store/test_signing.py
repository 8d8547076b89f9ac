"""Only what a trusted key signed comes from another machine, and it stays only as long as that key is trusted.

Each test of an attack takes a remote that is right, changes one thing as who writes there could, and sees it refused.
"""

import hashlib
import json
import os
import random
from dataclasses import replace
from pathlib import Path

import pytest
from signing_keys import make_signing_key
from store_contents import BACKEND, find_entry, find_present, find_root, load, make_numbered_key, save

from fusioncache.process.settings import TRUST
from fusioncache.store import Store, StoreError, signing
from fusioncache.store.entry import open_entry
from fusioncache.store.files import Refusal
from fusioncache.store.remote import Remote, pull, push
from fusioncache.store.signing import (
    NOT_SIGNED,
    NOT_TRUSTED,
    REVOKED,
    WRONG_SIGNATURE,
    Origin,
    list_keys,
    make_own_key,
    put_key,
    read_own_key,
    read_trust,
    split_origin,
)

CI, EVE = make_signing_key("ci"), make_signing_key("eve")


@pytest.fixture(autouse=True)
def _home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A user who trusts one key."""
    monkeypatch.setenv("FUSIONCACHE_DIR", str(tmp_path / "home"))
    monkeypatch.delenv(TRUST.name)
    put_key(CI.public, "ci", "trusted")


@pytest.fixture
def shared(tmp_path: Path, here: Store) -> Path:
    """A remote with two entries that are signed, in a folder."""
    save(here, 1, 2)
    assert push(here, Remote(str(tmp_path / "shared")), key=CI).entries == 2
    return tmp_path / "shared"


def file_of(shared: Path, number: int) -> Path:
    id_ = f"{make_numbered_key(number).digest}.{BACKEND}"
    return shared / "entries" / id_[:2] / id_


def refused_for(there: Store, shared: Path) -> dict[str, int]:
    """Pulls, and sees that nothing came of the first entry. Returns the reasons."""
    refused = dict(pull(there, Remote(str(shared))).refused)
    assert not find_present(there, 1)
    return refused


def test_what_is_signed_comes_and_runs(there, shared):
    assert pull(there, Remote(str(shared))).entries == 2
    assert load(there, 1)
    assert there.entry(make_numbered_key(1).digest, BACKEND).origin.key == CI.public


def test_what_came_can_be_passed_on_with_its_signature(tmp_path, there, shared):
    pull(there, Remote(str(shared)))
    assert push(there, Remote(str(tmp_path / "next")), key=EVE).entries == 2
    assert file_of(tmp_path / "next", 1).read_bytes() == file_of(shared, 1).read_bytes()


def resign(content: bytes, key: signing.SigningKey) -> bytes:
    return key.sign(split_origin(content)[1])


def change_seconds(content: bytes) -> bytes:
    head, mark, body = content.partition(b'"seconds":')
    assert mark
    return head + mark + b"9" + body


ATTACKS = {
    "unsigned": (lambda content: split_origin(content)[1], NOT_SIGNED),
    "said to be allowed unsigned": (lambda content: Origin().line + split_origin(content)[1], NOT_SIGNED),
    "another key": (lambda content: resign(content, EVE), NOT_TRUSTED),
    "another key under the name of the trusted": (
        lambda content: resign(content, EVE).replace(EVE.public.encode(), CI.public.encode()),
        WRONG_SIGNATURE,
    ),
    "a changed field": (change_seconds, WRONG_SIGNATURE),
    "a byte more": (lambda content: content + b" ", WRONG_SIGNATURE),
    "half of it": (lambda content: content[: len(content) // 2], WRONG_SIGNATURE),
    "a signature that is none": (lambda content: content.replace(content.split()[4], b"0" * 128), WRONG_SIGNATURE),
    "a key that is no point": (lambda content: content.replace(CI.public.encode(), b"f" * 64), NOT_TRUSTED),
    "signed twice": (lambda content: CI.sign(content), "an entry that is written in another way"),
    "nothing": (lambda content: b"", NOT_SIGNED),
    "no entry": (lambda content: CI.sign(b"#!/bin/sh\n"), "a damaged entry"),
    "a pack": (lambda content: CI.sign(b"fusioncache pack 1 2\n{}"), "a damaged entry"),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_on_a_file_is_refused(there, shared, attack):
    change, reason = ATTACKS[attack]
    path = file_of(shared, 1)
    path.write_bytes(change(path.read_bytes()))
    assert refused_for(there, shared) == {reason: 1}


def test_an_entry_under_another_name_is_refused(there, shared):
    file_of(shared, 1).write_bytes(file_of(shared, 2).read_bytes())
    assert refused_for(there, shared) == {"an entry in the place of another": 1}


def test_an_object_that_is_not_what_the_entry_names_is_refused(there, shared):
    for path in (path for path in (shared / "objects").rglob("*") if path.is_file() and path.stat().st_size > 1000):
        path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert "a wrong checksum" in refused_for(there, shared)


def test_a_deeply_nested_body_is_refused(there, shared):
    """It would exhaust the decoder's stack, but for its signature: whoever could sign it could do worse."""
    body = b"[" * 100_000
    file_of(shared, 1).write_bytes(b"fusioncache entry 1 %s\n%s" % (b"0" * 64, body))
    assert refused_for(there, shared) == {NOT_SIGNED: 1}


@pytest.mark.parametrize("field", ["digest", "backend", "object"])
@pytest.mark.parametrize("name", ["../../../../../tmp/x", "/tmp/x", "a/b", "..", "\x00"])
def test_no_name_in_an_entry_is_a_path(there, shared, field, name):
    """Not even in one that a trusted key signed. The names of artifacts are a backend's own, and no files."""
    _, content = split_origin(file_of(shared, 1).read_bytes())
    body = json.loads(content.partition(b"\n")[2])
    (body if field != "object" else body["artifacts"][0])[field] = name
    changed = json.dumps(body, separators=(",", ":")).encode()
    digest = hashlib.sha256(changed).hexdigest().encode()
    file_of(shared, 1).write_bytes(CI.sign(b"fusioncache entry 1 %s\n%s" % (digest, changed)))
    assert refused_for(there, shared) == {"a damaged entry": 1}


def test_a_link_in_place_of_an_entry_is_refused(there, shared, tmp_path):
    """The store that is pulled into does not follow it either."""
    pull(there, Remote(str(shared)))
    path = find_entry(there, 1)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert not load(there, 1)


# The keys


def test_revoking_a_key_invalidates_what_came_before(there, shared):
    pull(there, Remote(str(shared)))
    assert load(there, 1)
    put_key(CI.public, "ci", "revoked")
    with pytest.warns(RuntimeWarning, match="signed by a key that was revoked: ci"):
        assert not load(there, 1)
    assert dict(there.stats().bypasses) == {REVOKED: 1}
    save(there, 1)  # what is compiled instead takes its place
    assert load(there, 1)
    assert there.entry(make_numbered_key(1).digest, BACKEND).origin is None


def test_a_revoked_key_is_not_trusted_again_by_the_variable(there, shared, monkeypatch):
    put_key(CI.public, "ci", "revoked")
    monkeypatch.setenv(TRUST.name, CI.public)
    assert refused_for(there, shared) == {REVOKED: 2}


def test_the_variable_trusts_a_key(there, shared, monkeypatch):
    os.unlink(signing.find_keys() / "trusted")
    assert refused_for(there, shared) == {NOT_TRUSTED: 2}
    monkeypatch.setenv(TRUST.name, f"{EVE.public}, {CI.public}")
    assert pull(there, Remote(str(shared))).entries == 2


def test_unsigned_entries_that_were_allowed_run_only_while_they_are(there, tmp_path, here, monkeypatch):
    save(here, 1)
    push(here, Remote(str(tmp_path / "plain")))
    assert refused_for(there, tmp_path / "plain") == {NOT_SIGNED: 1}
    monkeypatch.setenv(TRUST.name, "unsigned")
    assert pull(there, Remote(str(tmp_path / "plain"))).entries == 1
    assert load(there, 1)
    assert push(there, Remote(str(tmp_path / "next")), key=CI).refused == {"an entry that came here unsigned": 1}
    monkeypatch.delenv(TRUST.name)
    with pytest.warns(RuntimeWarning, match="not signed"):
        assert not load(there, 1)


def test_a_load_says_who_signed_who_is_trusted_and_what_to_do(there, shared):
    path = file_of(shared, 1)
    path.write_bytes(resign(path.read_bytes(), EVE))
    reader = Store.open(find_root(there), remote=str(shared))
    with pytest.warns(RuntimeWarning) as warned:
        assert not load(reader, 1)
    (message,) = (str(each.message) for each in warned)
    assert f"signed by a key that is not trusted: {EVE.public}; trusted: ci. " in message
    assert f"fusioncache keys trust {EVE.public} NAME" in message
    assert load(reader, 2)
    assert reader.stats().pulls == 1


def test_without_the_package_nothing_comes_and_the_message_says_what_to_install(there, shared, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "cryptography.hazmat.primitives.asymmetric", None)
    with pytest.raises(StoreError, match=r'pip install "fusioncache\[sign\]"'):
        pull(there, Remote(str(shared)))
    reader = Store.open(find_root(there), remote=str(shared))
    with pytest.warns(RuntimeWarning, match=r'pip install "fusioncache\[sign\]"'):
        assert not load(reader, 1)


def test_the_own_key_is_private_trusted_and_made_once(there, here, tmp_path, monkeypatch):
    own = make_own_key("me")
    path = signing.find_keys() / "own"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert read_own_key() == own
    assert read_trust().trusted == {CI.public: "ci", own.public: "me"}
    with pytest.raises(StoreError, match="there is a private key"):
        make_own_key("other")
    monkeypatch.setenv("FUSIONCACHE_SIGNING_KEY", CI.text)
    assert read_own_key() == CI
    save(here, 1)
    push(here, Remote(str(tmp_path / "own")), key=own)
    monkeypatch.delenv("FUSIONCACHE_SIGNING_KEY")
    assert pull(there, Remote(str(tmp_path / "own"))).entries == 1


@pytest.mark.parametrize(
    "text", ["trusted", "trusted " + "0" * 63 + " x", "trusted " + "0" * 64 + " ../x", "\x00", "a b c"]
)
def test_a_list_of_keys_that_cannot_be_read_trusts_no_key(there, shared, text):
    (signing.find_keys() / "trusted").write_text(f"trusted {CI.public} ci\n{text}\n")
    with pytest.raises(Refusal, match="the list of trusted keys cannot be read"):
        list_keys()
    assert refused_for(there, shared) == {"the list of trusted keys cannot be read": 2}


def test_a_list_of_keys_that_others_can_write_trusts_no_key(there, shared):
    (signing.find_keys() / "trusted").chmod(0o666)
    assert refused_for(there, shared) == {"a file that others can write": 2}


def test_a_private_key_whose_parts_are_of_two_keys_signs_nothing(here, tmp_path):
    save(here, 1)
    with pytest.raises(StoreError, match="does not belong"):
        push(here, Remote(str(tmp_path / "shared")), key=replace(CI, public=EVE.public))


def test_what_changed_anywhere_is_refused(shared):
    """One byte after the other, at random places: the signature covers all of it."""
    content, trust = file_of(shared, 1).read_bytes(), read_trust()
    id_ = file_of(shared, 1).name
    assert open_entry(content, id_, trust).id == id_
    rng = random.Random(0)
    for _ in range(1000):
        place = rng.randrange(len(content))
        changed = bytearray(content)
        changed[place] ^= 1 << rng.randrange(8)
        with pytest.raises(Refusal):
            open_entry(bytes(changed), id_, trust)
    assert json.loads(split_origin(content)[1].partition(b"\n")[2])["name"] == "template_1"
