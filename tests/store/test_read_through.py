"""A load that misses fetches the pack with the entry: one process of a machine asks, and a failure costs a second."""

import logging
import os
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from file_server import Handler, serve
from signing_keys import make_signing_key
from store_contents import (
    BACKEND,
    collect_warnings,
    find_present,
    fork,
    load,
    make_numbered_key,
    push_new,
    save,
    wait_for,
)
from threads_at_once import run_at_once

from fusioncache.cache.exchange import Retention, prune_remote, pull, push
from fusioncache.process.settings import TRUST
from fusioncache.store import Store, StoreError, index, read_through, transport
from fusioncache.store.files import Refusal
from fusioncache.store.index import OLDER, Index, encode_index
from fusioncache.store.remote import Remote
from fusioncache.store.signing import put_key, read_trust

CI, NEXT = make_signing_key("ci"), make_signing_key("next")


def reads(files) -> list[str]:
    """Returns the requested files, one item for each request."""
    return [path.rpartition("/shared/")[2].partition("/")[0] for what, path in files.calls if what == "open"]


def process(store: Store, url: str) -> Store:
    """Returns the store as another process of the machine opens it."""
    return Store.open(store.directory, remote=url)


def watch(store: Store) -> Counter:
    """Returns counts of what a store reports from now on about other machines, by name and by reason or part."""
    told: Counter = Counter()
    store.watch(lambda name, number=1, *, of=None: told.update({(name, of): number}))
    return told


def test_a_load_that_misses_brings_it_and_what_the_index_does_not_have_costs_no_request(url, files, here, there):
    push_new(here, url, 1, 2)
    files.calls.clear()
    reader = process(there, url)
    told = watch(reader)
    assert load(reader, 1)
    assert load(reader, 1)
    assert load(reader, 2)
    assert not load(reader, 3)
    assert reads(files) == ["index", "packs"]
    assert told.keys() == {("pulled", "unsigned"), ("pulled_seconds", None)} and told["pulled", "unsigned"] == 2
    assert not reader.bypasses
    files.calls.clear()
    assert not any(load(reader, number) for number in range(100, 200))
    assert not load(process(there, url), 7)
    assert not any(load(process(there, f"{url}/other"), 50) for _ in range(3))
    assert len(reads(files)) == 1  # the index of the other remote, which is empty


def test_a_machine_asks_twice_whatever_number_of_processes_it_runs(url, files, here, there):
    push_new(here, url, *range(6))
    files.calls.clear()
    found = []
    run_at_once(*[lambda: found.extend(load(process(there, url), number) for number in range(6))] * 8)
    assert found == [True] * 48
    assert sorted(reads(files)) == ["index", "packs"]


@pytest.mark.parametrize("before", [(), (1,)], ids=["nothing", "an entry"])
def test_what_is_pushed_later_is_seen_when_the_index_here_has_aged(url, here, there, monkeypatch, before):
    push_new(here, url, *before)
    assert [load(process(there, url), number) for number in before] == [True] * len(before)
    assert not load(process(there, url), 2)
    (folder,) = (there.directory / "remotes").iterdir()
    notes = [*folder.glob("pack-*")]
    push_new(here, url, 2)
    assert not load(process(there, url), 2)
    if before:
        monkeypatch.setattr(read_through, "FRESH_SECONDS", 0.0)
    else:
        for note in folder.iterdir():
            os.utime(note, (time.time() + 3600.0, time.time() + 3600.0))  # the clock was set back since
    assert load(process(there, url), 2)
    assert len([*folder.glob("pack-*")]) == 1 and not {*folder.glob("pack-*")} & {*notes}  # removed with their index


def test_an_entry_of_a_revoked_key_comes_again_from_the_next_one(url, here, there, monkeypatch):
    monkeypatch.setenv(TRUST.name, f"{CI.public},{NEXT.public}")
    monkeypatch.setattr(read_through, "FRESH_SECONDS", 0.0)
    push_new(here, url, 1, key=CI)
    assert load(process(there, url), 1)
    put_key(CI.public, "ci", "revoked")
    push(here, Remote(url), key=NEXT)
    with pytest.warns(RuntimeWarning, match="signed by a key that was revoked"):
        assert load(process(there, url), 1)  # after it was refused here
    assert there.entry(make_numbered_key(1).digest, BACKEND).origin.key == NEXT.public


def test_a_bucket_that_can_only_be_read_is_enough(url, files, here, there):
    push_new(here, url, 1)

    def fault(what, path):
        if what in ("write", "mv", "remove"):
            raise PermissionError("read only")

    files.fault = fault
    reader = process(there, url)
    assert load(reader, 1) and not reader.bypasses
    save(there, 2)
    with pytest.raises(StoreError, match="PermissionError: read only: check the credentials"):
        push(there, Remote(url))


def test_forked_children_ask(url, here, there, tmp_path):
    push_new(here, url, *range(6))
    reader = process(there, url)
    assert load(reader, 0)
    other = Store.open(tmp_path / "other", remote=url)

    def child():
        assert load(reader, 4)
        assert not load(reader, 7)
        assert load(other, 1)

    assert wait_for(fork(child)) == 0
    assert load(other, 2)


def test_a_store_that_cannot_be_written_uses_no_remote(url, files, here, there, monkeypatch):
    push_new(here, url, 1)
    files.calls.clear()
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    with collect_warnings() as messages:
        reader = process(there, url)
        assert not load(reader, 1)
    assert "the remote is not used: what comes from it could not be put into" in messages[0]
    assert not load(Store.open(Path("/proc/none"), remote=url), 1)
    assert files.calls == []


CONTENTS = {
    "empty": (lambda content: b"", "a pack of another length"),
    "truncated": (lambda content: content[:-1], "a pack of another length"),
    "longer": (lambda content: content + b"x", "a pack of another length"),
    "a bit flipped": (lambda content: content[:-3] + bytes([content[-3] ^ 1]) + content[-2:], "a wrong checksum"),
    "foreign": (lambda content: b"<html>Sign in</html>".ljust(len(content)), "a pack that cannot be used"),
}
INDEXES = {
    "a head": lambda index: b"fusioncache index 1\n",
    "of a later format": lambda index: b"fusioncache index 2\n{}",
    "deeply nested": lambda index: b"[" * 100_000,
    "a pack twice": lambda index: encode_index(replace(index, packs=index.packs * 2), None),
}


def check_is_refused(url: str, files, store: Store, *asked: str) -> None:
    """Asserts that one process warns once, another one requests nothing refused, and a later save is stored."""
    files.calls.clear()
    reader = process(store, url)
    with collect_warnings() as messages:
        assert not load(reader, 1)
        assert not load(reader, 1)
    assert len(messages) == 1
    assert all(reason.startswith("remote: ") for reason in reader.bypasses)
    with collect_warnings():
        assert not load(process(store, url), 1)
    assert reads(files) == [*asked]
    save(reader, 1)
    assert load(reader, 1)


@pytest.mark.parametrize("damage", [*CONTENTS, *INDEXES])
def test_a_damaged_index_is_refused_and_the_next_push_makes_another(url, files, here, there, tmp_path, damage):
    push_new(here, url, 1)
    name = files.find("/index")
    if damage in INDEXES:
        files.files[name] = INDEXES[damage](Remote(url).fetch_index(read_trust()))
    else:
        files.files[name] = CONTENTS[damage][0](files.files[name])
    check_is_refused(url, files, there, "index")
    third = Store.open(tmp_path / "third", remote="")
    with pytest.raises(StoreError, match=r"a damaged index|not signed"):
        pull(third, Remote(url))
    save(here, 2)
    assert push(here, Remote(url)).entries == 2
    assert pull(third, Remote(url)).entries == 2


@pytest.mark.parametrize("damage", [*CONTENTS, "another pack", "gone"])
def test_a_damaged_pack_is_refused(url, files, here, there, tmp_path, damage):
    push_new(here, url, 1)
    push_new(Store.open(tmp_path / "other", remote=""), url, 2)
    one, other = (
        files.find(f"/packs/{pack.digest[:2]}/{pack.digest}") for pack in Remote(url).fetch_index(read_trust()).packs
    )
    if damage == "gone":
        del files.files[one]
        reasons = {"a pack that is not there"}
    elif damage == "another pack":  # a signed one, as an older index listed it
        files.files[one] = files.files[other]
        reasons = {"a pack under another name", "a pack of another length"}
    else:
        change, reason = CONTENTS[damage]
        files.files[one], reasons = change(files.files[one]), {reason}
    check_is_refused(url, files, there, "index", "packs")
    third = Store.open(tmp_path / "third", remote="")
    copied = pull(third, Remote(url))
    assert copied.entries == sum(copied.refused.values()) == 1 and {*copied.refused} <= reasons
    assert find_present(third, 1, 2) == [2]


def test_what_is_gone_is_pushed_again(url, files, here, there, tmp_path):
    push_new(here, url, 1)
    before = Remote(url).fetch_index(read_trust())
    del files.files[files.find("/index")]
    save(here, 2)
    push(here, Remote(url))  # the index lists the existing pack
    after = Remote(url).fetch_index(read_trust())
    assert before.packs[0].digest in {pack.digest for pack in after.packs} and after.serial > before.serial
    assert pull(there, Remote(url)).entries == 2
    for name in [name for name in files.files if "/packs/" in name]:
        del files.files[name]
    assert push(Store.open(tmp_path / "empty", remote=""), Remote(url)).entries == 0
    assert Remote(url).fetch_index(read_trust()).packs == ()
    assert push(here, Remote(url)).entries == 2


def test_an_old_index_that_comes_again_is_refused(url, files, here, there, monkeypatch):
    monkeypatch.setattr(read_through, "FRESH_SECONDS", 0.0)
    push_new(here, url, 1)
    old = files.files[files.find("/index")]
    push_new(here, url, 2)
    assert load(process(there, url), 1)
    files.files[files.find("/index")] = old
    with pytest.raises(StoreError, match=f"{OLDER}: .* push again"):
        pull(there, Remote(f"{url}/"))
    for fresh in (0.0, 60.0):
        monkeypatch.setattr(read_through, "FRESH_SECONDS", fresh)
        files.calls.clear()
        reader = process(there, url)
        with pytest.warns(RuntimeWarning, match=OLDER):
            assert not load(reader, 2)
        assert reader.bypasses == {f"remote: {OLDER}": 1}
        assert reads(files) == ([] if fresh else ["index"])


def test_of_two_indexes_that_are_accepted_at_once_the_newer_one_stays(tmp_path, monkeypatch):
    monkeypatch.setenv("FUSIONCACHE_TRUST", "unsigned")
    older, newer = (encode_index(Index(serial, ()), None) for serial in (1, 2))
    publish, others = index.publish, list[threading.Thread]()

    def publish_late(path, content):
        if content == older:  # while another process accepts a newer one
            others.append(threading.Thread(target=index.accept_index, args=(newer, read_trust(), tmp_path)))
            others[0].start()
            others[0].join(0.2)
        publish(path, content)

    monkeypatch.setattr(index, "publish", publish_late)
    index.accept_index(older, read_trust(), tmp_path)
    others[0].join()
    with pytest.raises(Refusal, match=OLDER):
        index.accept_index(older, read_trust(), tmp_path)


@pytest.mark.parametrize(
    ("key", "trust", "message"),
    [
        (CI, CI.public, f"a key that is not trusted: {CI.public}; trusted: no key.* keys trust {CI.public}"),
        (None, "unsigned", "not signed: its writer can sign it, .* or set FUSIONCACHE_TRUST=unsigned"),
    ],
    ids=["signed", "unsigned"],
)
def test_what_is_not_trusted_is_asked_for_once_until_it_is(url, files, here, there, monkeypatch, key, trust, message):
    push_new(here, url, 1, key=key)
    monkeypatch.delenv(TRUST.name)
    with pytest.raises(StoreError, match=message):
        pull(here, Remote(url))
    files.calls.clear()
    for _ in range(3):
        with pytest.warns(RuntimeWarning, match=message):
            assert not load(process(there, url), 1)
    assert reads(files) == ["index"]
    monkeypatch.setenv(TRUST.name, trust)
    assert load(process(there, url), 1)
    assert reads(files) == ["index", "packs"]
    monkeypatch.setenv(TRUST.name, "everyone")
    with pytest.raises(ValueError, match="FUSIONCACHE_TRUST must be public keys"):
        process(there, url)


def test_what_fails_twice_is_tried_again_and_a_dead_remote_is_asked_by_no_process(url, files, here, there, monkeypatch):
    push_new(here, url, 1, 2)
    failures = [ConnectionRefusedError("no answer")] * 3

    def fault(what, path):
        if failures:
            raise failures.pop()

    files.calls.clear()
    files.fault = fault
    reader = process(there, url)
    with collect_warnings() as messages:
        assert not load(reader, 1)
        assert not load(reader, 2)
        other = process(there, url)
        assert not load(other, 1)
        save(reader, 2)
        assert load(reader, 2)
    assert len(messages) == 1
    assert "ConnectionRefusedError: no answer: check the address" in messages[0]
    assert "Compiling goes on here" in messages[0]
    assert len(files.calls) == 3
    assert (reader.bypasses, other.bypasses) == ({"remote: it failed": 1}, {})
    monkeypatch.setattr(read_through, "FAILED_SECONDS", 0.0)
    failures += [ConnectionResetError("reset")] * 2
    files.calls.clear()
    with collect_warnings() as messages:
        assert load(process(there, url), 1)
    assert (messages, len(files.calls)) == ([], 4)


@pytest.fixture
def slow(files) -> Iterator[threading.Event]:
    """Yields an event without which the remote does not answer."""
    release = threading.Event()
    yield release
    release.set()


@pytest.mark.parametrize("what", ["index", "packs"])
def test_a_slow_remote_is_waited_for_once_and_what_comes_later_is_kept(
    url, files, here, there, slow, monkeypatch, what
):
    push_new(here, url, 1, 2)
    monkeypatch.setattr(read_through, "WAIT_SECONDS", 0.05)
    files.fault = lambda _, path: slow.wait(60) if f"/{what}" in path else None
    reader = process(there, url)
    with collect_warnings() as messages:
        assert not any(load(reader, number) for number in (1, 2, 3, 4))
    assert [("takes more than" in each) for each in messages] == [True]
    assert reader.bypasses == {"remote: it failed": 1}
    if what == "index":
        files.calls.clear()
        with collect_warnings() as messages:
            assert not load(process(there, url), 1)  # a process that comes later does not wait again
        assert (messages, files.calls) == ([], [])
    slow.set()
    deadline = time.monotonic() + 60
    while not load(reader, 1) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert load(there, 1)


def test_a_remote_that_hangs_ends_a_pull(url, files, here, there, slow, monkeypatch):
    push_new(here, url, 1)
    monkeypatch.setattr(transport, "SECONDS", 0.02)
    monkeypatch.setattr(transport, "OPEN_SECONDS", 0.0)
    files.fault = lambda what, path: slow.wait(60)
    with pytest.raises(StoreError, match="no answer within"):
        pull(there, Remote(url))


def test_who_signed_is_read_from_the_pack(url, files, here, there, monkeypatch):
    monkeypatch.setenv(TRUST.name, f"{CI.public},{NEXT.public}")
    put_key(NEXT.public, "next", "trusted")
    push_new(here, url, 1, key=NEXT)
    listed = replace(Remote(url).fetch_index(read_trust()).packs[0], signer=CI.public)
    files.files[files.find("/index")] = encode_index(Index(10**13, (listed,)), CI)
    reader = process(there, url)
    told = watch(reader)
    assert load(reader, 1)
    assert told["pulled", f"next ({NEXT.public[:16]})"] == 1


SECRETS = ("AKIA5EXAMPLE", "wJal/rXUtn+FEMI", "wJal%2FrXUtn%2BFEMI", "t0ken", "s1gned")


@pytest.mark.parametrize(
    "credentials",
    ["{0}:{1}@host/shared", "{0}:{2}@host/shared", "host/shared?sig={4}&token={3}", "{0}@host/shared#{3}"],
)
@pytest.mark.parametrize("kind", [ConnectionError, PermissionError, ValueError, FileNotFoundError])
def test_credentials_are_never_shown(files, here, tmp_path, caplog, capfd, credentials, kind):
    caplog.set_level(logging.DEBUG)
    url = f"faulty://{credentials.format(*SECRETS)}&{kind.__name__}"

    def fault(what, path):
        raise kind(f"cannot {what} {url} ({path}) with {' and '.join(SECRETS[:3])}: see {url}")

    said = [str(Remote(url)), repr(Remote(url))]
    files.fault = fault
    save(here, 1)
    with pytest.raises(StoreError) as raised:
        push(here, Remote(url))
    said += [str(raised.value), "".join(traceback.format_exception(raised.value))]
    reader = Store.open(tmp_path / "reader", remote=url)
    with collect_warnings() as messages:
        load(reader, 1)
    said += [*messages, str(reader.bypasses), caplog.text, *capfd.readouterr()]
    assert "faulty://host/shared" in said[0]
    shown = "\n".join(said)
    # In a backend's message, only parts of the URL can be recognized as secrets.
    for secret in SECRETS:
        assert secret not in url or secret not in shown


def test_what_is_served_over_http_can_only_be_read(tmp_path, here, there):
    with serve(tmp_path / "served") as served:
        push_new(here, str(tmp_path / "served"), 1, 2)
        reader = process(there, served)
        assert load(reader, 1) and not load(reader, 3)
        assert not reader.bypasses
        assert pull(Store.open(tmp_path / "other", remote=""), Remote(f"{served}?token=x9")).entries == 2
        for act in (lambda: push(here, Remote(served)), lambda: prune_remote(Remote(served), Retention())):
            with pytest.raises(StoreError, match="can only be read"):
                act()


def test_a_server_that_sends_more_than_it_says_is_not_listened_to(tmp_path, there):
    sent = []

    class Endless(Handler):
        def do_GET(self):
            self.send_response(206)
            self.end_headers()
            with suppress(OSError):
                for _ in range(4000 * (self.command == "GET")):
                    self.wfile.write(b"x" * 65536)
                    sent.append(65536)

        do_HEAD = do_GET

    with serve(tmp_path / "endless", Endless) as url:
        assert len(transport.Transport(url).fetch_file("index", 1000)) == 1001
    assert sum(sent) < 50_000_000  # buffers of both ends
