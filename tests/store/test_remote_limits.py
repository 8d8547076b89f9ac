"""What another machine says is read within limits of bytes, files and time, and taken for names alone."""

import threading
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from commands import call
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

from fusioncache.store import Store, StoreError, remote, transport
from fusioncache.store import remote as sharing
from fusioncache.store import transport as budget
from fusioncache.store.entry import ID, encode_entry
from fusioncache.store.remote import Remote, pull, push
from fusioncache.store.transport import Transport

ROOT = "faulty://host/shared"


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch):
    monkeypatch.setattr(transport, "PAUSES", ())


class Clock:
    """Time that passes where a test says so."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    for module in (budget, sharing, remote):
        monkeypatch.setattr(module, "time", clock)
    return clock


class HostileServer(ThreadingHTTPServer):
    """Answers each request by a function of the test, which gives pieces of a body, and counts what it sent."""

    daemon_threads = True

    def __init__(self, answer):
        super().__init__(("127.0.0.1", 0), Hostile)
        self.answer, self.asked, self.sent, self.ended = answer, [], 0, threading.Event()


class Hostile(BaseHTTPRequestHandler):
    server: HostileServer

    def log_message(self, *args):
        pass

    def do_GET(self):
        self.server.asked.append(self.path)
        pieces = self.server.answer(self.path)
        self.send_response(404 if pieces is None else 200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        try:
            for piece in pieces or ():
                self.wfile.write(piece)
                self.server.sent += len(piece)
        except OSError:  # the other side has enough
            self.server.ended.set()


@contextmanager
def serve(answer):
    pytest.importorskip("aiohttp")
    server = HostileServer(answer)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server, f"http://127.0.0.1:{server.server_port}/x"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def repeat(piece):
    while True:
        yield piece


@pytest.mark.parametrize("piece", [b"x" * 65536, b'<a href="ab/">' * 4096, b'<a href="' + b"a" * 65536])
def test_a_listing_without_an_end_is_not_read_to_it(monkeypatch, there, piece):
    monkeypatch.setattr(budget, "LISTING_BYTES", 1 << 20)
    with serve(lambda path: repeat(piece)) as (server, url):
        with pytest.raises(StoreError) as caught:
            pull(there, Remote(url))
        assert str(caught.value) == (
            f"{url} cannot be used, could not list: it sends more than 1048576 bytes, as no store does: check the "
            "address, or set FUSIONCACHE_REMOTE to it, by which files are asked for one by one"
        )
        assert server.ended.wait(20) and server.sent < 16 << 20  # what is under way meanwhile included
        assert server.asked == ["/x/entries/"]


def test_more_files_than_a_store_has_are_not_listed(monkeypatch, files, here, there):
    save(here, 1, 2, 3)
    push(here, Remote(ROOT))
    monkeypatch.setattr(budget, "LISTED_FILES", 2)
    result = call("pull", ROOT, "--dir", str(find_root(there)))
    assert result.exit_code == 1
    assert "could not list: it lists more than 2 files, as no store does: check the address, or set" in result.stderr
    # Whoever asks for single files lists nothing.
    reader = Store.open(find_root(there), remote=ROOT)
    assert load(reader, 1)


def list_strange_names(id_):
    """What a hostile listing says, of which the last is what it should say."""
    shard = id_[:2]
    strange = [
        *("..", ".", "", "/", "//", "../..", f"../../{shard}/{id_}", f"/etc/{shard}", "/etc/passwd", "a" * 5000),
        *(f"{shard}\n", f"{shard}\x00", f"0{shard}", shard.upper() + "g", "é1", f"{id_}.tmp", f"{id_}\n", id_.upper()),
        *(f"http://elsewhere.invalid/{shard}/{id_}", f"//elsewhere.invalid/{id_}", f"file:///{shard}/{id_}", "tmp-1"),
        *(f"javascript:{id_}", f"{id_}/..", f"{id_[2:4]}{id_}", f"%2e%2e/{id_}", f"C:\\{id_}"),
    ]
    return [*strange, id_]


def test_strange_names_in_a_listing_lead_nowhere(monkeypatch, files, here, there):
    save(here, 1)
    push(here, Remote(ROOT))
    id_ = find_entry(here, 1).name
    real = files.ls

    def ls(self, path, detail=True, **kwargs):
        found = real(self, path, detail, **kwargs)
        where = path.rstrip("/")
        for name in list_strange_names(id_)[:-1]:
            for kind in ("file", "directory", "link", "other"):
                found += [{"name": each, "size": 5, "type": kind} for each in (name, f"{where}/{name}")]
        return found

    monkeypatch.setattr(files, "ls", ls)
    assert [*Remote(ROOT).list_files().entries] == [id_]
    files.calls.clear()
    assert pull(there, Remote(ROOT)).entries == 1
    assert all(path.startswith("host/shared/") and ".." not in path for _, path in files.calls)
    assert load(there, 1)


def test_strange_links_in_a_page_lead_nowhere(here, there):
    save(here, 1)
    id_, shard = find_entry(here, 1).name, find_entry(here, 1).parent.name
    entry = here.entry(id_.partition(".")[0], BACKEND)
    objects = {part.object: find_object(here, make_artifacts(1)[part.name]).read_bytes() for part in entry.artifacts}

    def answer(path):
        names = path.removeprefix("/x/").split("/")
        if names[-1] in objects:
            return [objects[names[-1]]]
        if names[-1] == id_:
            return [encode_entry(entry)]
        shown = [each.replace("\n", "").replace("\x00", "") for each in list_strange_names(id_)]
        if names == ["entries", ""]:
            return [f'<a href="{each}/">' for each in (*shown, shard, f"/y/{shard}", f"http://127.0.0.1:1/{shard}")]
        return [f'<A HREF = "{each}">' for each in shown] if names == ["entries", shard, ""] else [b"<html>"]

    with serve(lambda path: (each if isinstance(each, bytes) else each.encode() for each in answer(path))) as (
        server,
        url,
    ):
        copied = pull(there, Remote(url))
        assert (copied.entries, copied.refused) == (1, {})
        assert all(path.startswith(("/x/entries/", "/x/objects/")) and ".." not in path for path in server.asked)
    assert load(there, 1)


def test_a_page_that_is_hard_to_read_is_read():
    """Each of these takes a search that backtracks the square of their length, or longer."""
    for text in ('<a href="' * 20_000, "href" + " " * 200_000, 'href="' + "a" * 200_000, "href =" * 50_000):
        with serve(lambda path, text=text: [text.encode()]) as (_, url):
            assert Transport(url).sizes("entries", ID) == {}


def test_a_file_that_comes_slowly_is_given_up_also_by_the_thread_that_reads_it(monkeypatch, files, here, clock):
    save(here, 1)
    push(here, Remote(ROOT))
    reads = []

    class Slow:
        def read(self, size):
            reads.append(size)
            clock.now += 4.0
            return b"x"

        def __enter__(self):
            return self

        def __exit__(self, *_):
            return None

    monkeypatch.setattr(files, "open", lambda self, *_, **__: Slow())
    with pytest.raises(StoreError, match="could not read: no answer within 10 s"):
        Remote(ROOT).entry(find_entry(here, 1).name)
    assert len(reads) == 3


def test_a_pull_that_takes_too_long_ends_and_the_next_one_goes_on(monkeypatch, files, here, there, clock):
    monkeypatch.setattr(sharing, "AT_ONCE", 1)
    numbers = range(1, 7)
    save(here, *numbers)
    push(here, Remote(ROOT))

    def fault(what, path):
        clock.now += 900.0 if what == "open" and "/entries/" in path else 0.0

    monkeypatch.setattr(budget, "time", Clock())  # each file for itself is fast enough
    files.fault = fault
    with pytest.raises(StoreError, match=r"the pull with faulty://host/shared took more than 60 min: what was copied"):
        pull(there, Remote(ROOT))
    assert len(find_present(there, *numbers)) == 5  # the fifth began within the hour
    there = Store.open(find_root(there).parent / "other", remote="")
    save(there, 1, 2)
    monkeypatch.setattr(sharing, "SECONDS", 1000.0)
    with pytest.raises(StoreError, match="took more than 17 min"):
        pull(there, Remote(ROOT))
    assert len(find_present(there, *numbers)) == 4
    copied = pull(there, Remote(ROOT))
    assert (copied.entries, copied.skipped) == (2, 4)


def test_a_remote_is_asked_in_vain_for_a_bounded_time(files, here, there, clock):
    save(here, 1, 2)
    push(here, Remote(ROOT))
    files.calls.clear()
    files.fault = lambda what, path: setattr(clock, "now", clock.now + 5.0)
    reader = Store.open(find_root(there), remote=ROOT)
    with collect_warnings() as messages:
        assert load(reader, 1)  # what it has it may have slowly
        missed = [number for number in range(100, 200) if not load(reader, number)]
        asked = len(files.calls)
        assert not load(reader, 2)
    assert len(missed) == 100 and len(files.calls) == asked == 4 + 25
    assert [f"{ROOT} took 125 s for what it does not have. It is not asked again" in each for each in messages] == [
        True
    ]
    assert reader.stats().bypasses == {"the remote failed": 1}


def plant(files, entry):
    files.files[f"host/shared/entries/{entry.id[:2]}/{entry.id}"] = encode_entry(entry)


def test_an_entry_that_is_too_large_for_memory_is_left_out(monkeypatch, files, here, there):
    save(here, 1)
    push(here, Remote(ROOT))
    entry = here.entry(make_numbered_key(1).digest, BACKEND)
    artifact = entry.artifacts[0]
    many = tuple(replace(artifact, name=f"{number:04}") for number in range(remote.MOST_ARTIFACTS + 1))
    large = (replace(artifact, size=remote.MOST_BYTES + 1),)
    for artifacts in (many, large):
        plant(files, replace(entry, artifacts=artifacts))
        files.calls.clear()
        assert pull(there, Remote(ROOT)).refused == {"an entry that is too large": 1}
        assert not any("/objects/" in path for what, path in files.calls if what == "open")


def test_a_remote_that_does_not_say_sizes_brings_no_more_than_fits(tmp_path, here):
    """What comes first would make room for what comes last, without an end."""
    save(here, *range(1, 7))
    small = Store.open(tmp_path / "small", remote="", max_bytes=12_000)

    def answer(path):
        place = find_root(here) / path.removeprefix("/x/").rstrip("/")
        if place.is_file():
            return [place.read_bytes()]
        return [f'<a href="{each.name}{"/" if each.is_dir() else ""}">'.encode() for each in place.iterdir()]

    with (
        serve(answer) as (_, url),
        pytest.raises(StoreError, match="bytes that are not here, and the store may have 12"),
    ):
        pull(small, Remote(url))
    assert not small.stats().bypasses
