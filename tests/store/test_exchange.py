"""A push uploads entries that a remote lacks, in one pack for each model; a pull fetches entries the store lacks.

Keys of these entries name no operations, so all are in the pack without a model; programs have their own packs.
"""

import errno
import io
import os
import uuid
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from saved_programs import SavedProgram
from signing_keys import make_signing_key
from store_contents import (
    BACKEND,
    find_entry,
    find_object,
    find_present,
    load,
    make_artifacts,
    make_numbered_key,
    push_new,
    save,
)
from threads_at_once import run_at_once

import fusioncache
from fusioncache.cache.exchange import Retention, prune_remote, pull, push
from fusioncache.process.settings import TRUST
from fusioncache.store import Store, StoreError, entry, transport
from fusioncache.store.entry import PROGRAM_FORMAT
from fusioncache.store.index import Index, encode_index
from fusioncache.store.remote import Remote
from fusioncache.store.signing import put_key, read_trust
from fusioncache.store.transport import Transport, find_absence

CI, NEXT = make_signing_key("ci"), make_signing_key("next")


def index_of(url: str) -> Index:
    return Remote(url).fetch_index(read_trust()) or Index(0, ())


def fresh(tmp_path: Path) -> Store:
    return Store.open(tmp_path / uuid.uuid4().hex, remote="")


@pytest.mark.parametrize("where", ["file", "path", "memory", "faulty"])
def test_what_was_pushed_is_pulled(tmp_path, files, here, there, where):
    urls = {"path": f"{tmp_path}/shared", "file": f"file://{tmp_path}/shared"}
    url = urls.get(where, f"{where}://{uuid.uuid4().hex}/x")
    save(here, 1, 2, 3)
    steps = []
    copied = push(here, Remote(url), lambda *step: steps.append(step))
    assert (copied.entries, copied.packs, copied.skipped, copied.claimed, copied.refused) == (3, 1, 0, 0, {})
    assert steps == [(0, 1), (1, 1)]
    again = push(here, Remote(url))
    assert (again.entries, again.packs, again.bytes, again.skipped) == (0, 0, 0, 3)

    brought = pull(there, Remote(url), lambda *step: steps.append(step))
    assert (brought.entries, brought.packs, brought.bytes, brought.skipped) == (3, 1, copied.bytes, 0)
    assert all(load(there, number) for number in (1, 2, 3))
    again = pull(there, Remote(url))
    assert (again.entries, again.packs, again.bytes, again.skipped) == (0, 0, 0, 3)
    assert [summary.name for summary in there.entries()] == [summary.name for summary in here.entries()]


@pytest.mark.parametrize("broken", range(1, 8))
def test_a_push_that_breaks_off_leaves_nothing_half_and_is_repeated_at_once(url, files, here, there, broken):
    save(here, 1, 2)
    changes = iter(range(1, broken))

    def fault(what, path):
        if what in ("write", "mv") and next(changes, None) is None:
            raise PermissionError("no more")

    files.fault = fault
    try:
        push(here, Remote(url))
    except StoreError as error:
        assert "no more" in str(error)
        assert broken <= 5  # the claim; the pack and the index, which are written and then renamed
    else:
        assert broken > 5
    files.fault = lambda what, path: None
    push(here, Remote(url))  # its own claim does not block it
    assert pull(there, Remote(url)).entries == 2
    assert load(there, 1) and load(there, 2)


def test_machines_that_push_at_once_upload_the_same_once_and_lose_no_pack(url, files, here, there, tmp_path):
    stores = [fresh(tmp_path) for _ in range(4)]
    for number, store in enumerate(stores):
        save(store, number)
    run_at_once(*[lambda store=store: push(store, Remote(url)) for store in stores])
    assert len(index_of(url).packs) == 4
    assert pull(fresh(tmp_path), Remote(url)).entries == 4

    other = f"{url}/other"
    for store in (here, there):
        save(store, 1, 2)
    files.calls.clear()
    results = []
    run_at_once(*[lambda store=store: results.append(push(store, Remote(other))) for store in (here, there)])
    assert sorted((result.entries, result.claimed) for result in results) in ([(0, 2), (2, 0)], [(0, 0), (2, 0)])
    assert sum(what == "write" and "packs/" in path for what, path in files.calls) == 1
    assert len(index_of(other).packs) == 1


def test_a_push_that_uploads_notes_uses_in_the_index(url, here, there):
    push_new(here, url, 1)
    pull(there, Remote(url))
    before = index_of(url)
    load(there, 1)
    push_new(there, url, 2)
    after = index_of(url)
    assert [pack.used > before.packs[0].used for pack in after.packs if pack.digest == before.packs[0].digest] == [True]


def test_what_is_broken_here_is_not_pushed_and_is_pulled_again(url, here, there):
    push_new(here, url, 1, 2)
    pull(there, Remote(url))
    find_object(there, make_artifacts(1)["code"]).unlink()
    find_entry(there, 2).write_bytes(b"half")
    assert pull(there, Remote(url)).entries == 2
    assert load(there, 1) and load(there, 2)

    save(here, 3)
    find_entry(here, 1).write_bytes(b"half")
    find_object(here, make_artifacts(2)["code"]).write_bytes(b"x" * 3000)
    find_object(here, make_artifacts(3)["code"]).unlink()
    copied = push(here, Remote(f"{url}/other"))
    assert (copied.entries, copied.packs) == (0, 0)
    assert copied.refused == {"a wrong checksum": 1, "an entry without its artifacts": 1}


def test_programs_of_another_format_are_not_pushed(url, here, there):
    """Programs before format 5 contain texts of the user."""
    old, new = SavedProgram({"program format": "4"}), SavedProgram({"program format": str(PROGRAM_FORMAT)})
    for program in (old, new):
        program.save(here)
    pushed = push(here, Remote(url))
    assert (pushed.entries, dict(pushed.refused)) == (1, {entry.OTHER_FORMAT: 1})
    assert pull(there, Remote(url)).entries == 1


def test_what_has_no_room_is_not_begun(url, here, tmp_path):
    push_new(here, url, 1, 2, 3)
    small = Store.open(tmp_path / "small", max_bytes=9000, remote="")
    with pytest.raises(StoreError, match="the store may have 9000"):
        pull(small, Remote(url))
    assert find_present(small, 1, 2, 3) == []


@pytest.mark.parametrize("wrong", ["signature", "name"])
def test_a_pack_under_another_name_or_that_no_trusted_key_signed_is_not_listed(
    url, files, here, there, monkeypatch, wrong
):
    push_new(here, url, 1)
    pack = files.find("/packs/")
    if wrong == "name":
        files.files[f"{pack.partition('/packs/')[0]}/packs/00/{'0' * 64}"] = files.files.pop(pack)
    else:
        monkeypatch.setenv(TRUST.name, CI.public)
    del files.files[files.find("/index")]
    push_new(there, url, 2, key=CI if wrong == "signature" else None)
    assert [len(pack.entries) for pack in index_of(url).packs] == [1]


@pytest.mark.parametrize("act", [push, lambda here, remote: prune_remote(remote, Retention())], ids=["push", "prune"])
def test_a_file_that_is_not_ours_stays(url, files, here, act):
    save(here, 1)
    name = f"{files._strip_protocol(url)}/index"
    files.files[name] = b"<html>"
    with pytest.raises(StoreError, match="a file 'index' that is not fusioncache's: give another address"):
        act(here, Remote(url))
    assert files.files[name] == b"<html>"


@pytest.mark.parametrize("since", [1, 9_000_000_000], ids=["over", "of a clock that was ahead"])
def test_a_claim_that_is_over_and_clocks_that_were_ahead_lock_no_machine_out(url, files, here, there, since):
    push_new(here, url, 1)
    claim = files.find("/claims/")
    files.files[files.find("/index")] = encode_index(replace(index_of(url), serial=10**16), None)
    assert pull(there, Remote(url)).entries == 1
    for name in {*files.files} - {claim}:
        del files.files[name]
    assert push(there, Remote(url)).claimed == 1
    files.files[claim] = b"%b %d" % (files.files[claim].partition(b" ")[0], since)
    assert push(there, Remote(url)).entries == 1
    there.remove(make_numbered_key(1), BACKEND)
    assert pull(there, Remote(url)).entries == 1


def test_after_a_key_was_revoked_a_model_is_pushed_again(url, files, here, there, tmp_path, monkeypatch):
    """The index still lists packs of the old key, and both machines have entries of it."""
    monkeypatch.setenv(TRUST.name, f"{CI.public},{NEXT.public}")
    push_new(here, url, 1, key=CI)
    reader = fresh(tmp_path)
    for store in (there, reader):
        assert pull(store, Remote(url)).entries == 1
    put_key(CI.public, "ci", "revoked")
    with pytest.warns(RuntimeWarning, match="signed by a key that was revoked"):
        assert not load(there, 1)
    pushed = push(there, Remote(url), key=NEXT)
    assert (pushed.entries, pushed.refused) == (0, {"signed by a key that was revoked": 1})  # it is not passed on
    push_new(there, url, 1, key=NEXT)
    assert [pack.signer for pack in index_of(url).packs] == [NEXT.public]
    brought = pull(reader, Remote(url))
    assert (brought.entries, brought.skipped) == (1, 0)
    assert reader.entry(make_numbered_key(1).digest, BACKEND).origin.key == NEXT.public
    assert len(packs_of(url)) == 2
    assert prune_remote(Remote(url), Retention(), key=NEXT).packs_left == 1
    assert len(packs_of(url)) == 1  # that of the revoked key is gone


def test_a_pack_whose_key_was_revoked_after_another_key_listed_it_is_not_there(url, here, there, monkeypatch):
    monkeypatch.setenv(TRUST.name, f"{CI.public},{NEXT.public}")
    for number, key in ((1, CI), (2, NEXT)):
        push_new(here, url, number, key=key)
    assert [pack.signer for pack in index_of(url).packs] == [CI.public, NEXT.public]
    put_key(CI.public, "ci", "revoked")
    assert [pack.signer for pack in index_of(url).packs] == [NEXT.public]
    push_new(there, url, 1, key=NEXT)


def packs_of(url: str) -> set[str]:
    return set(Remote(url).list_packs())


@pytest.mark.parametrize(
    ("leases", "left"),
    [
        (Retention(), 2),
        *((Retention(unused=50.0), 1), (Retention(unused=200.0), 2)),
        *((Retention(age=50.0), 1), (Retention(age=200.0), 2)),
        *((Retention(version="0.0.0"), 0), (Retention(version=fusioncache.__version__), 2)),
    ],
)
def test_what_had_its_time_is_removed(url, files, here, there, leases, left):
    push_new(here, url, 1)
    index = index_of(url)  # which will say that all packs are older by 100 seconds
    packs = tuple(replace(pack, written=pack.written - 100.0, used=pack.used - 100.0) for pack in index.packs)
    files.files[files.find("/index")] = encode_index(replace(index, packs=packs), None)
    push_new(there, url, 2)
    planned = prune_remote(Remote(url), leases, dry_run=True)
    assert len(packs_of(url)) == 2
    assert prune_remote(Remote(url), leases) == planned
    assert (planned.packs, planned.packs_left) == (2 - left, left)
    assert packs_of(url) == {pack.digest for pack in index_of(url).packs}
    assert len(packs_of(url)) == left


def test_each_model_is_pushed_whole_and_a_pack_of_which_a_newer_one_has_all_is_removed(url, files, here):
    save(here, 1)
    for arguments, name in (("1", "GPT"), ("1", "Llama"), ("2", "Llama")):
        SavedProgram({"program format": str(PROGRAM_FORMAT), "arguments": f"{name} {arguments}"}, name=name).save(here)
        push(here, Remote(url))
    packs = [("", 1), ("GPT", 1), ("Llama", 1), ("Llama", 2)]
    assert sorted((pack.model, len(pack.entries)) for pack in index_of(url).packs) == packs
    assert prune_remote(Remote(url), Retention()).packs == 1
    packs.remove(("Llama", 1))
    assert sorted((pack.model, len(pack.entries)) for pack in index_of(url).packs) == packs


def test_a_pack_that_is_just_being_pushed_stays(url, files, here, there):
    """Its machine has uploaded it, and not written the index yet."""
    push_new(here, url, 1)
    before = files.files[files.find("/index")]
    push_new(there, url, 2)
    files.files[files.find("/index")] = before
    assert prune_remote(Remote(url), Retention(age=1000.0, version=fusioncache.__version__)).packs_left == 2
    assert len(packs_of(url)) == 2


ROOT = "faulty://host/shared"


def test_more_files_than_a_remote_has_are_not_listed(monkeypatch, files, here, there):
    for number in range(3):
        push_new(here, ROOT, number)
    monkeypatch.setattr(transport, "LISTED_FILES", 2)
    save(here, 3)
    with pytest.raises(StoreError, match="could not list: it lists more than 2 files, as no remote does"):
        push(here, Remote(ROOT))
    assert pull(there, Remote(ROOT)).entries == 3  # a pull lists nothing


def test_strange_names_in_a_listing_lead_nowhere(monkeypatch, files, here, there):
    push_new(here, ROOT, 1)
    (digest,) = Remote(ROOT).list_packs()
    shard, real = digest[:2], files.ls
    strange = [
        *("..", ".", "", "/", "//", "../..", f"../../{shard}/{digest}", f"/etc/{shard}", "/etc/passwd", "a" * 5000),
        *(f"{shard}\n", f"{shard}\x00", f"0{shard}", shard.upper() + "g", "é1", f"{digest}.tmp", f"{digest}\n"),
        *(digest.upper() + "A", f"http://elsewhere.invalid/{shard}/{digest}", f"file:///{shard}/{digest}", "tmp-1"),
        *(f"javascript:{digest}", f"{digest}/..", f"{digest[2:4]}{digest}", f"%2e%2e/{digest}", f"C:\\{digest}"),
    ]

    def ls(self, path, detail=True, **kwargs):
        found = real(self, path, detail, **kwargs)
        where = path.rstrip("/")
        for name in strange:
            for kind in ("file", "directory", "link", "other"):
                found += [{"name": each, "size": 5, "type": kind} for each in (name, f"{where}/{name}")]
        return found

    monkeypatch.setattr(files, "ls", ls)
    assert [*Remote(ROOT).list_packs()] == [digest]
    files.calls.clear()
    push_new(here, ROOT, 2)
    assert pull(there, Remote(ROOT)).entries == 2
    assert all(path.startswith("host/shared/") and ".." not in path for _, path in files.calls)
    assert load(there, 1)


def test_a_file_that_comes_slowly_is_given_up_also_by_the_thread_that_reads_it(monkeypatch, files, here):
    push_new(here, ROOT, 1)
    reads, clock = [], SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(transport, "time", clock)

    class Slow(io.BytesIO):
        def read(self, size):
            reads.append(size)
            clock.now += 4.0
            return b"x"

    monkeypatch.setattr(files, "open", lambda self, *_, **__: Slow())
    with pytest.raises(StoreError, match="could not read: no answer within 10 s"):
        Transport(ROOT).fetch_file("index", 100)
    assert len(reads) == 3


def test_no_more_is_read_than_is_wanted(files):
    Transport(ROOT).put_file("x", b"x" * 1_000_000)
    assert len(Transport(ROOT).fetch_file("x", 10)) == files.reads == 11  # one byte more shows that the file is longer
    assert Transport(ROOT).fetch_file("y", 10) is None


@pytest.mark.parametrize("where", ["file", "memory", "faulty"])
def test_one_of_many_creates_a_file(tmp_path, files, where):
    url = f"file://{tmp_path}/x" if where == "file" else f"{where}://{uuid.uuid4().hex}/x"
    results = []
    run_at_once(
        *[lambda n=n: results.append(Transport(url).create_file("claims/a", str(n).encode())) for n in range(8)]
    )
    assert sorted(results) == [False] * 7 + [True]
    Transport(url).remove_file("claims/a")
    Transport(url).remove_file("claims/a")
    assert Transport(url).create_file("claims/a", b"")


def test_a_file_is_created_once_where_there_are_no_links(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "link", Mock(side_effect=OSError(errno.EPERM, "no links")))
    local = Transport(str(tmp_path))
    assert local.create_file("claims/a", b"mine") and not local.create_file("claims/a", b"other")
    assert [path.read_bytes() for path in (tmp_path / "claims").iterdir()] == [b"mine"]


def make_place(protocol, *paths):
    return SimpleNamespace(protocol=protocol, exists=paths.__contains__, isdir=paths.__contains__)


@pytest.mark.parametrize("protocol", [("s3", "s3a"), ("gs", "gcs"), "abfs"])
def test_a_bucket_has_to_be_there_and_elsewhere_the_folder_that_is_read_or_the_one_above_it(protocol):
    files = make_place(protocol, "bucket")
    for make in (True, False):
        assert find_absence(files, "bucket/some/folder", make=make) is None
        missing = find_absence(files, "other/folder", make=make)
        assert missing == "there is no bucket other that can be seen from here: make it, or check the address"
    elsewhere = make_place("sftp", "/shared")
    assert find_absence(elsewhere, "/shared/x", make=True) is None
    assert "no such folder" in (find_absence(elsewhere, "/shared/x", make=False) or "")
    assert "no folder /shared/x" in (find_absence(elsewhere, "/shared/x/y", make=True) or "")
