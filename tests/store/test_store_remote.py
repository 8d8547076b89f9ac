"""Stores on other machines: what is brought is what was there, and nothing that goes wrong there costs a run."""

import hashlib
import json
import logging
import socket
import threading
import traceback
import uuid
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from file_server import serve
from kept_programs import SavedProgram
from pool_processes import wait_until
from store_contents import (
    BACKEND,
    collect_warnings,
    find_entry,
    find_object,
    find_present,
    find_root,
    fork,
    load,
    make_artifacts,
    make_numbered_key,
    save,
    wait_for,
)
from threads_at_once import run_at_once

from fusioncache.store import Store, StoreError, entry, transport
from fusioncache.store.entry import PROGRAM_FORMAT, make_entry_id
from fusioncache.store.files import Refusal
from fusioncache.store.remote import Remote, pull, push
from fusioncache.store.signing import Origin


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch):
    monkeypatch.setattr(transport, "PAUSES", (0.0, 0.0))


@pytest.fixture
def url(files):
    """Of a remote that nobody else uses."""
    return f"faulty://{uuid.uuid4().hex}/shared"


@pytest.fixture
def hang(files, monkeypatch):
    """From its call on the remote gives no answer, and nobody waits for it for long."""
    release = threading.Event()

    def hang() -> None:
        monkeypatch.setattr(transport, "SECONDS", 0.02)
        monkeypatch.setattr(transport, "OPEN_SECONDS", 0.0)
        files.fault = lambda what, path: release.wait(60)
        files.calls.clear()

    yield hang
    release.set()


def _filled(url: str, store: Store, *numbers: int) -> Remote:
    save(store, *numbers)
    remote = Remote(url)
    assert push(store, remote).entries == len(numbers)
    return remote


def _path_of(url: str, path: Path) -> str:
    """What a file on disk is called at the remote."""
    return f"{url.removeprefix('faulty://')}/{'/'.join(path.parts[-3:])}"


# Push and pull


@pytest.mark.parametrize("where", ["file", "path", "memory", "faulty"])
def test_what_was_pushed_is_pulled(tmp_path, files, here, there, where):
    url = {"path": f"{tmp_path}/shared", "file": f"file://{tmp_path}/shared"}.get(
        where, f"{where}://{uuid.uuid4().hex}/x"
    )
    save(here, 1, 2, 3)
    steps = []
    copied = push(here, Remote(url), lambda *step: steps.append(step))
    assert (copied.entries, copied.objects, copied.skipped, copied.refused) == (3, 5, 0, {})
    sizes = [file.stat().st_size for folder in ("entries", "objects") for file in _below(find_root(here) / folder)]
    assert copied.bytes == sum(sizes)
    assert steps == [(done, 8) for done in range(9)]
    again = push(here, Remote(url))
    assert (again.entries, again.objects, again.bytes, again.skipped) == (0, 0, 0, 3)

    copied = pull(there, Remote(url), lambda *step: steps.append(step))
    assert (copied.entries, copied.objects, copied.skipped) == (3, 5, 0)
    assert copied.bytes == sum(sizes) + 3 * len(Origin().line)
    assert steps[9:] == [(done, 3) for done in range(4)]
    assert all(load(there, number) for number in (1, 2, 3))
    came = there.entry(make_numbered_key(1).digest, BACKEND)
    assert came == replace(here.entry(make_numbered_key(1).digest, BACKEND), origin=Origin())
    again = pull(there, Remote(url))
    assert (again.entries, again.objects, again.bytes, again.skipped) == (0, 0, 0, 3)
    assert [summary.name for summary in there.entries()] == [summary.name for summary in here.entries()]


def _below(folder: Path) -> list[Path]:
    return [file for file in folder.rglob("*") if file.is_file()]


def test_files_have_the_names_that_they_have_on_disk_and_a_store_is_a_remote(tmp_path, here, there):
    save(here, 1, 2)
    push(here, Remote(f"file://{tmp_path}/shared"))
    names = [
        {str(file.relative_to(top / part)) for part in ("entries", "objects") for file in _below(top / part)}
        for top in (find_root(here), tmp_path / "shared")
    ]
    assert names[0] == names[1]
    assert {path.name for path in (tmp_path / "shared").iterdir()} == {"entries", "objects"}
    assert pull(there, Remote(str(find_root(here)))).entries == 2
    assert load(there, 1)


@pytest.mark.parametrize("broken", range(1, 14))
def test_a_push_that_breaks_off_leaves_nothing_half(url, files, here, there, broken):
    save(here, 1, 2)
    changes = iter(range(1, broken))

    def fault(what, path):
        if what in ("write", "mv") and next(changes, None) is None:
            raise PermissionError("no more")

    files.fault = fault
    total = 2 * (2 + 4)  # each file is written, then renamed
    if broken <= total:
        with pytest.raises(StoreError, match="no more"):
            push(here, Remote(url))
    else:
        push(here, Remote(url))
    files.fault = lambda what, path: None
    copied = pull(there, Remote(url))
    assert copied.refused == {}
    assert copied.entries == len(find_present(there, 1, 2))
    assert copied.entries < 2 or broken > total - 2
    push(here, Remote(url))
    pull(there, Remote(url))
    assert load(there, 1)
    assert load(there, 2)


def test_what_is_broken_there_is_pushed_again(url, files, here, there):
    remote = _filled(url, here, 1, 2, 3)
    files.files[_path_of(url, find_entry(here, 1))] = b"half"
    files.files[_path_of(url, find_object(here, make_artifacts(2)["code"]))] = b"half"
    del files.files[_path_of(url, find_object(here, make_artifacts(3)["code"]))]
    copied = push(here, remote)
    assert (copied.entries, copied.objects, copied.skipped) == (3, 2, 0)
    assert pull(there, remote).refused == {}
    assert all(load(there, number) for number in (1, 2, 3))


def test_what_is_broken_here_is_not_pushed(url, files, here):
    save(here, 1, 2, 3)
    find_entry(here, 1).write_bytes(b"half")
    find_object(here, make_artifacts(2)["code"]).write_bytes(b"x" * 3000)
    copied = push(here, Remote(url))
    assert copied.entries == 1
    assert copied.refused == {"a damaged entry": 1, "a wrong checksum": 1}
    assert [name for name in files.files if "entries" in name] == [_path_of(url, find_entry(here, 3))]


def test_an_entry_of_a_later_version_is_left_alone(url, here, there, monkeypatch):
    with monkeypatch.context() as later:
        later.setattr(entry, "FORMAT", 2)
        _filled(url, here, 1)
    save(there, 1, 2)
    assert push(there, Remote(url)).entries == 1
    fresh = Store.open(find_root(there).parent / "fresh", remote="")
    assert pull(fresh, Remote(url)).refused == {"an entry of another format": 1}
    assert find_present(fresh, 1, 2) == [2]


def test_programs_of_another_format_are_neither_pushed_nor_pulled(tmp_path, here):
    """Those before format 5 hold texts of the user's."""
    old, new = SavedProgram({"program format": "4"}), SavedProgram({"program format": str(PROGRAM_FORMAT)})
    ids = {f"{program.save(here)}.program" for program in (old, new)}
    remote = Remote(str(tmp_path / "remote"))
    pushed = push(here, remote)
    assert (pushed.entries, dict(pushed.refused)) == (1, {entry.OTHER_FORMAT: 1})
    there = Store.open(tmp_path / "again")
    assert pull(there, remote).entries == 1
    for id_ in ids:  # as an earlier version pushed it
        remote.put(id_, entry.encode_entry(here.disk.entries.get(id_)))
    assert dict(pull(there, remote).refused) == {entry.OTHER_FORMAT: 1}
    assert {f"{each.digest}.program" for each in there.entries()} == {f"{new.make_key().digest}.program"}


def test_what_has_no_room_is_not_begun(url, here, tmp_path):
    _filled(url, here, 1, 2, 3)
    small = Store.open(tmp_path / "small", max_bytes=9000, remote="")
    with pytest.raises(StoreError, match="the store may have 9000"):
        pull(small, Remote(url))
    assert find_present(small, 1, 2, 3) == []


# A load that misses


def test_a_load_that_misses_brings_it_and_the_next_one_finds_it(url, files, here, there):
    _filled(url, here, 1, 2)
    reader = Store.open(find_root(there), remote=url)
    assert load(reader, 1)
    calls = len(files.calls)
    assert load(reader, 1)
    assert len(files.calls) == calls
    assert load(there, 1)
    assert not load(there, 2)
    assert not load(reader, 3)
    stats = reader.stats()
    assert (stats.hits, stats.misses, stats.pulls, stats.saves, stats.bypasses) == (2, 1, 1, 0, {})
    came = there.entry(make_numbered_key(1).digest, BACKEND)
    assert came == replace(here.entry(make_numbered_key(1).digest, BACKEND), origin=Origin())


def test_the_variable_names_the_remote(url, here, there, monkeypatch):
    _filled(url, here, 1)
    monkeypatch.setenv("FUSIONCACHE_REMOTE", url)
    assert not load(Store.open(find_root(there), remote=""), 1)
    assert load(Store.open(find_root(there)), 1)


def test_threads_and_forked_children_ask(url, here, there):
    _filled(url, here, *range(6))
    reader = Store.open(find_root(there), remote=url)
    found = []
    run_at_once(*[lambda: found.extend(load(reader, n) for n in range(4))] * 8)
    assert found == [True] * 32
    assert not reader.stats().bypasses

    def child():
        assert load(reader, 4)
        assert not load(reader, 7)

    assert wait_for(fork(child)) == 0
    assert load(there, 4)


# What a remote sends is not trusted

DAMAGE = {
    "empty": lambda content: b"",
    "truncated": lambda content: content[:-1],
    "longer": lambda content: content + b"x",
    "flipped": lambda content: content[:-3] + bytes([content[-3] ^ 1]) + content[-2:],
    "foreign": lambda content: b"<html>Sign in</html>",
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("what", ["entry", "object"])
def test_what_is_not_what_was_pushed_is_refused(url, files, here, there, damage, what):
    remote = _filled(url, here, 1, 2)
    path = find_entry(here, 1) if what == "entry" else find_object(here, make_artifacts(1)["code"])
    name = _path_of(url, path)
    files.files[name] = DAMAGE[damage](files.files[name])
    reason = "a damaged entry" if what == "entry" else "a wrong checksum"
    copied = pull(there, remote)
    assert (copied.entries, copied.refused) == (1, {reason: 1})
    assert find_present(there, 1, 2) == [2]

    reader = Store.open(find_root(there), remote=url)
    with collect_warnings() as messages:
        assert not load(reader, 1)
        assert not load(reader, 1)
    assert len(messages) == 1
    assert reason in messages[0]
    assert reader.stats().bypasses == {f"remote: {reason}": 2}
    save(reader, 1)
    assert load(reader, 1)


def _planted(url: str, files, planted: entry.Entry, id_: str) -> None:
    files.files[f"{url.removeprefix('faulty://')}/entries/{id_[:2]}/{id_}"] = entry.encode_entry(planted)


def test_another_entry_in_its_place_is_refused(url, files, here, there):
    remote = _filled(url, here, 1, 2)
    one, two = (here.entry(make_numbered_key(number).digest, BACKEND) for number in (1, 2))
    _planted(url, files, two, one.id)
    assert pull(there, remote).refused == {"an entry in the place of another": 1}
    assert find_present(there, 1, 2) == [2]
    # With the digest of one key and the text of another it would keep the right one out for ever.
    _planted(url, files, replace(two, digest=one.digest), one.id)
    assert pull(there, remote).refused == {"an entry whose key has another digest": 1}
    with collect_warnings():
        assert not load(Store.open(find_root(there), remote=url), 1)
    save(there, 1)
    assert load(there, 1)


def test_the_text_of_the_key_decides(url, here, there):
    _filled(url, here, 1)
    reader = Store.open(find_root(there), remote=url)
    with collect_warnings():
        assert reader.load(replace(make_numbered_key(2), digest=make_numbered_key(1).digest), BACKEND) is None
    assert reader.stats().bypasses == {"remote: an entry for another key with the same digest": 1}


def test_what_is_too_large_is_not_read(url, files, here, there):
    remote = _filled(url, here, 1)
    content = make_artifacts(1)["code"]
    files.files[_path_of(url, find_object(here, content))] = content + b"x" * 10**7
    files.reads = 0
    assert pull(there, remote).refused == {"a wrong checksum": 1}
    assert files.reads < 10_000

    one = here.entry(make_numbered_key(1).digest, BACKEND)
    _planted(url, files, replace(one, artifacts=(replace(one.artifacts[0], size=1 << 40),)), one.id)
    reader, files.calls[:] = Store.open(find_root(there), remote=url), []
    with collect_warnings():
        assert not load(reader, 1)
    assert reader.stats().bypasses == {"remote: larger than the store may be": 1}
    assert len(files.calls) == 1

    files.files[_path_of(url, find_entry(here, 1))] = b"x" * (entry.LARGEST + 10)
    with pytest.raises(Refusal, match="too long"):
        remote.entry(one.id)


WRONG_FIELDS = {
    "digest": (5, "A" * 64),
    "backend": ("../x",),
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
        [{"name": "a", "object": "../../etc/passwd", "size": 1}],
        *([{"name": "a", "object": "a" * 64, "size": size}] for size in (-1, "1")),
    ),
    "surplus": (1,),
}


@pytest.mark.parametrize(("field", "value"), [(name, value) for name in WRONG_FIELDS for value in WRONG_FIELDS[name]])
def test_an_entry_with_a_right_checksum_and_wrong_fields_is_refused(here, field, value):
    save(here, 1)
    fields = {**asdict(here.entry(make_numbered_key(1).digest, BACKEND)), field: value}
    body = json.dumps(fields).encode()
    content = b"fusioncache entry 1 %s\n%s" % (hashlib.sha256(body).hexdigest().encode(), body)
    with pytest.raises(Refusal, match="a damaged entry"):
        entry.decode_entry(content, make_entry_id(make_numbered_key(1), BACKEND))


@pytest.mark.parametrize("body", [b"", b"[]", b"null", b"{}", b"[" * 100_000, b'{"pid": ' + b"9" * 5000 + b"}"])
def test_an_entry_with_a_right_checksum_that_is_none_is_refused(body):
    content = b"fusioncache entry 1 %s\n%s" % (hashlib.sha256(body).hexdigest().encode(), body)
    with pytest.raises(Refusal, match="a damaged entry"):
        entry.decode_entry(content, make_entry_id(make_numbered_key(1), BACKEND))


# A remote that does not answer as it should


@pytest.mark.parametrize("failures", [0, 1, 2])
def test_what_fails_is_tried_again(url, files, here, there, failures):
    _filled(url, here, 1)
    reader, left = Store.open(find_root(there), remote=url), iter(range(failures))

    def fault(what, path):
        if next(left, None) is not None:
            raise ConnectionResetError("reset")

    files.calls.clear()
    files.fault = fault
    with collect_warnings() as messages:
        assert load(reader, 1)
    assert messages == []
    assert len(files.calls) == 1 + 3 + failures


def test_a_dead_remote_costs_one_warning_and_is_not_asked_again(url, files, here, there):
    _filled(url, here, 1, 2)

    def fault(what, path):
        raise ConnectionRefusedError("nobody there")

    files.calls.clear()
    files.fault = fault
    reader = Store.open(find_root(there), remote=url)
    with collect_warnings() as messages:
        assert not load(reader, 1)
        assert len(files.calls) == 3
        files.fault = lambda what, path: None
        assert not load(reader, 2)
        save(reader, 2)
        assert load(reader, 2)
    assert len(messages) == 1
    assert "ConnectionRefusedError: nobody there: check the address" in messages[0]
    assert "It is not asked again" in messages[0]
    assert len(files.calls) == 3
    assert reader.stats().bypasses == {"the remote failed": 1}


def test_a_remote_that_hangs_costs_one_wait(url, files, here, there, hang):
    _filled(url, here, 1, 2)
    hang()
    reader = Store.open(find_root(there), remote=url)
    with collect_warnings() as messages:
        assert not load(reader, 1)
        assert not load(reader, 2)
    wait_until(lambda: files.calls)  # the thread that was left behind may not have begun
    assert len(messages) == len(files.calls) == 1
    assert "no answer within" in messages[0]
    with pytest.raises(StoreError, match="no answer within"):
        Remote(url).entry(f"{make_numbered_key(1).digest}.{BACKEND}")


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
    said += [*messages, str(reader.stats()), caplog.text, *capfd.readouterr()]
    assert "faulty://host/shared" in said[0]
    shown = "\n".join(said)
    # In a message of the backend, only what is in the URL can be known to be secret.
    for secret in SECRETS:
        assert secret not in url or secret not in shown


# HTTP


@pytest.fixture
def served(tmp_path):
    with serve(tmp_path / "served") as url:
        yield url


def test_what_is_served_over_http_can_be_read_only(tmp_path, here, there, served):
    save(here, 1, 2)
    push(here, Remote(str(tmp_path / "served")))
    reader = Store.open(find_root(there), remote=served)
    assert load(reader, 1)
    assert not load(reader, 3)
    assert not reader.stats().bypasses
    copied = pull(there, Remote(served))
    assert (copied.entries, copied.skipped, copied.refused) == (1, 1, {})
    assert load(there, 2)
    with pytest.raises(StoreError, match="can only be read"):
        push(here, Remote(served))
    find_object(there, make_artifacts(2)["code"]).unlink()
    path = tmp_path / "served" / find_object(here, make_artifacts(2)["code"]).relative_to(find_root(here))
    path.write_bytes(b"x" * 3000)
    assert pull(there, Remote(served)).refused == {"a wrong checksum": 1}
    assert Remote(f"{served}?token=x9").entry(f"{make_numbered_key(1).digest}.{BACKEND}")
    with pytest.raises(StoreError, match="behind a query cannot be listed"):
        pull(there, Remote(f"{served}?token=x9"))


def test_over_http_a_missing_file_is_a_miss_and_a_missing_server_is_dead(served):
    id_ = f"{make_numbered_key(1).digest}.{BACKEND}"
    assert Remote(served).entry(id_) is None
    with pytest.raises(StoreError, match="could not read"):
        Remote(served.replace("http:", "https:")).entry(id_)
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        with pytest.raises(StoreError, match="could not read"):
            Remote(f"http://127.0.0.1:{free.getsockname()[1]}").entry(id_)
