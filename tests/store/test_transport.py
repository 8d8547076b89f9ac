"""What another machine says is read within limits of bytes, files and time, and taken for names alone."""

import errno
import io
import os
import uuid
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from store_contents import load, save
from threads_at_once import run_at_once

from fusioncache.cache.exchange import pull, push
from fusioncache.store import StoreError, transport
from fusioncache.store.remote import Remote
from fusioncache.store.transport import Transport, advice, find_absence

ROOT = "faulty://host/shared"


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch):
    monkeypatch.setattr(transport, "PAUSES", ())


def test_more_files_than_a_remote_has_are_not_listed(monkeypatch, files, here, there):
    for number in range(3):
        save(here, number)
        push(here, Remote(ROOT))
    monkeypatch.setattr(transport, "LISTED_FILES", 2)
    save(here, 3)
    with pytest.raises(StoreError, match="could not list: it lists more than 2 files, as no remote does"):
        push(here, Remote(ROOT))
    assert pull(there, Remote(ROOT)).entries == 3  # which lists nothing


def list_strange_names(digest: str) -> list[str]:
    """What a hostile listing says."""
    shard = digest[:2]
    return [
        *("..", ".", "", "/", "//", "../..", f"../../{shard}/{digest}", f"/etc/{shard}", "/etc/passwd", "a" * 5000),
        *(f"{shard}\n", f"{shard}\x00", f"0{shard}", shard.upper() + "g", "é1", f"{digest}.tmp", f"{digest}\n"),
        *(digest.upper() + "A", f"http://elsewhere.invalid/{shard}/{digest}", f"file:///{shard}/{digest}", "tmp-1"),
        *(f"javascript:{digest}", f"{digest}/..", f"{digest[2:4]}{digest}", f"%2e%2e/{digest}", f"C:\\{digest}"),
    ]


def test_strange_names_in_a_listing_lead_nowhere(monkeypatch, files, here, there):
    save(here, 1)
    push(here, Remote(ROOT))
    (digest,) = Remote(ROOT).list_packs()
    real = files.ls

    def ls(self, path, detail=True, **kwargs):
        found = real(self, path, detail, **kwargs)
        where = path.rstrip("/")
        for name in list_strange_names(digest):
            for kind in ("file", "directory", "link", "other"):
                found += [{"name": each, "size": 5, "type": kind} for each in (name, f"{where}/{name}")]
        return found

    monkeypatch.setattr(files, "ls", ls)
    assert [*Remote(ROOT).list_packs()] == [digest]
    files.calls.clear()
    save(here, 2)
    push(here, Remote(ROOT))
    assert pull(there, Remote(ROOT)).entries == 2
    assert all(path.startswith("host/shared/") and ".." not in path for _, path in files.calls)
    assert load(there, 1)


def test_a_file_that_comes_slowly_is_given_up_also_by_the_thread_that_reads_it(monkeypatch, files, here):
    save(here, 1)
    push(here, Remote(ROOT))
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
    assert len(Transport(ROOT).fetch_file("x", 10)) == files.reads == 11  # which shows that there is more
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


def test_a_local_file_is_created_whole(tmp_path, monkeypatch):
    """A claim that is seen empty would count as none."""
    target, seen, link = tmp_path / "claims" / "a", [], os.link

    def look_and_link(source, name):
        seen.append((target.exists(), Path(source).read_bytes()))
        link(source, name)
        seen.append((target.exists(), target.read_bytes()))

    monkeypatch.setattr(os, "link", look_and_link)
    assert Transport(str(tmp_path)).create_file("claims/a", b"mine")
    assert seen == [(False, b"mine"), (True, b"mine")]
    assert [path.name for path in target.parent.iterdir()] == ["a"]


def test_a_local_file_is_created_where_there_are_no_links(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "link", Mock(side_effect=OSError(errno.EPERM, "no links")))
    assert [Transport(str(tmp_path)).create_file("claims/a", content) for content in (b"mine", b"other")] == [
        True,
        False,
    ]
    assert [path.read_bytes() for path in (tmp_path / "claims").iterdir()] == [b"mine"]


def test_a_file_is_created_where_the_file_system_has_no_mode_for_it(files, monkeypatch):
    def pipe_file(self, path, value, **kwargs):
        if kwargs:
            raise TypeError("unexpected keyword argument 'mode'")
        self.files[path] = value

    monkeypatch.setattr(files, "pipe_file", pipe_file)
    monkeypatch.setattr(files, "exists", lambda self, path: path in self.files)
    assert Transport(ROOT).create_file("a", b"1")
    assert not Transport(ROOT).create_file("a", b"2")
    assert Transport(ROOT).fetch_file("a", 10) == b"1"


class Place:
    """A file system that has these paths."""

    def __init__(self, protocol, *paths):
        self.protocol = protocol
        self.exists = self.isdir = paths.__contains__


@pytest.mark.parametrize("protocol", [("s3", "s3a"), ("gs", "gcs"), "abfs"])
def test_a_bucket_has_to_be_there_and_elsewhere_the_folder_that_is_read_or_the_one_above_it(protocol):
    files = Place(protocol, "bucket")
    for make in (True, False):
        assert find_absence(files, "bucket/some/folder", make=make) is None
        missing = find_absence(files, "other/folder", make=make)
        assert missing == "there is no bucket other that can be seen from here: make it, or check the address"
    assert find_absence(Place(protocol, "mine/folder"), "mine/folder", make=False) is None
    elsewhere = Place("sftp", "/shared")
    assert find_absence(elsewhere, "/shared/x", make=True) is None
    assert "no such folder" in (find_absence(elsewhere, "/shared/x", make=False) or "")
    assert "no folder /shared/x" in (find_absence(elsewhere, "/shared/x/y", make=True) or "")


OF_BOTOCORE = type("EndpointConnectionError", (Exception,), {"status": None})


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (PermissionError(), "check the credentials"),
        (OF_BOTOCORE(), "something answers there"),
        (ConnectionRefusedError(), "something answers there"),
        (type("Forbidden", (OF_BOTOCORE,), {"status": 403})(), "check the credentials"),
    ],
    ids=repr,
)
def test_what_to_do_is_said_of_errors_that_are_known(error, said):
    assert said in advice("hdfs", error)
    assert advice("hdfs", KeyError("x")) == advice("hdfs", ImportError("pyarrow")) == ""
