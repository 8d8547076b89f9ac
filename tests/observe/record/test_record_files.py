"""The file of the record: it keeps to its limits of size and age, and no other file and no model is harmed."""

import os
import shutil
import signal
import sqlite3
import sys
import warnings
from contextlib import closing
from functools import partial

import pytest
import torch
from commands import get_output
from models import compile_with
from recorded_templates import (
    STARTED,
    make_cast_template,
    make_chain_template,
    make_full_ledger,
    make_ledger,
    save_ledger,
)
from report_records import make_wide_ledger
from store_contents import fork, wait_for

from fusioncache.observe.record import database
from fusioncache.observe.record.database import FORMAT, RecordError, RecordReader, RecordWriter, forget, record_path
from fusioncache.observe.record.observations import RegionRecord
from fusioncache.process.settings import DIRECTORY

DAY = 86400.0


def read_ids():
    return [run.id for run in RecordReader().runs()]


def count(table):
    with closing(sqlite3.connect(record_path())) as database:
        return database.execute(f"SELECT count(*) FROM {table}").fetchone()[0]


def test_the_oldest_runs_go_where_the_file_would_be_too_large(monkeypatch):
    sizes = []
    for number in range(6):
        save_ledger(monkeypatch, make_wide_ledger(60, f"m{number}"), run=str(number), started=STARTED + number)
        sizes.append(record_path().stat().st_size)
    monkeypatch.setattr(database, "MAX_BYTES", sizes[3])
    save_ledger(monkeypatch, make_wide_ledger(60, "last"), run="last", started=STARTED + 10)
    assert read_ids()[0] == "last" and 1 < len(read_ids()) < 5
    assert record_path().stat().st_size <= sizes[3]
    assert RecordReader().lifetime().runs == 7
    assert count("templates") == 60 * len(read_ids())


def test_runs_that_were_not_saved_for_long_go_and_the_one_that_is_written_stays(monkeypatch):
    for run, age in (("old", 91), ("aging", 60), ("new", 0)):
        save_ledger(monkeypatch, make_ledger(make_cast_template(run, run)), run=run, started=STARTED - age * DAY)
    assert read_ids() == ["new", "aging"]
    assert (count("templates"), RecordReader().lifetime().runs) == (2, 3)
    save_ledger(monkeypatch, make_ledger(make_cast_template()), run="much later", started=STARTED + 1000 * DAY)
    assert read_ids() == ["much later"]
    monkeypatch.setattr(database, "MOST_RUNS", 1)
    save_ledger(monkeypatch, make_ledger(make_cast_template()), run="now", started=STARTED)  # regardless of the clock
    assert read_ids() == ["now"]


def test_a_run_that_is_too_large_itself_gets_no_more_details_and_says_so(monkeypatch):
    save_ledger(monkeypatch, make_ledger(make_cast_template()), run="b" * 32, started=STARTED - 1)
    monkeypatch.setattr(database, "MAX_BYTES", 1)
    ledger = make_wide_ledger(3)
    RecordWriter(ledger).save()
    (run,) = RecordReader().runs()
    assert (run.unrecorded, run.stats) == (3 + 3, ledger.stats())  # templates, regions
    assert RecordReader().templates(run.id) == RecordReader().regions(run.id) == ()
    assert "not listed  6 regions, streams and templates" in get_output("stats")


def test_the_regions_and_templates_of_each_length_are_on_record(monkeypatch):
    monkeypatch.setenv("FUSIONCACHE_STORE", "1")
    compiled, transform = compile_with(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU()))
    for length in range(2, 6):
        compiled(torch.randn(length, 8)).sum().backward()
        transform.cache.write_record()
    assert transform.stats().programs_filled
    (run,) = RecordReader().runs()
    regions = RecordReader().regions(run.id)
    assert regions == tuple(transform.cache.ledger.history.records(RegionRecord))
    assert (len(regions), {region.trace_number for region in regions}) == (run.stats.regions, {0, 1, 2, 3})
    assert {region.digest for region in regions} == {each.digest for each in RecordReader().templates(run.id)}


@pytest.mark.parametrize("content", ["'nonsense'", "zeroblob(100)", "substr(content, 1, 20)"])
def test_damaged_content_is_an_error_and_not_a_crash(monkeypatch, content):
    save_ledger(monkeypatch, make_wide_ledger(2))
    _execute(f"UPDATE templates SET content = {content}")
    _execute(f"UPDATE records SET content = {content} WHERE kind = 'traces'")
    for read in (lambda: RecordReader().regions("a" * 32), lambda: RecordReader().templates("a" * 32)):
        with pytest.raises(RecordError, match="cannot be read"):
            read()


def test_processes_that_write_at_once_and_one_that_is_killed_keep_to_it(monkeypatch):
    monkeypatch.setattr(database, "MAX_BYTES", 300_000)
    monkeypatch.setattr(database, "LOCK_SECONDS", 240.0)
    some, tell = os.pipe()

    def work(name, most):
        for number in range(most):
            RecordWriter(make_wide_ledger(20, f"{name} {number}")).save()
            if number == 3:
                os.write(tell, name[:1].encode())

    one, other, killed = (fork(partial(work, name, most)) for name, most in (("a", 9), ("b", 9), ("killed", 1000)))
    while os.read(some, 1) != b"k":
        pass
    os.kill(killed, signal.SIGKILL)
    assert [wait_for(child) for child in (one, other, killed)] == [0, 0, -signal.SIGKILL]
    runs = RecordReader().runs()
    assert runs and record_path().stat().st_size <= 300_000 + 100_000  # the newest run may exceed the limit
    newest = max(runs, key=lambda run: run.updated)
    assert len(RecordReader().templates(newest.id)) == 20
    known = RecordReader().lifetime().runs
    assert known >= 2 * 9 + 4
    RecordWriter(make_ledger(make_cast_template())).save()
    assert RecordReader().lifetime().runs == known + 1


def _warnings_of(action) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        action()
    assert all(warning.category is RuntimeWarning for warning in caught)
    return [str(warning.message) for warning in caught]


def _execute(statement: str) -> None:
    with closing(sqlite3.connect(record_path())) as database, database:
        database.execute(statement)


def _save() -> None:
    RecordWriter(make_ledger(make_chain_template())).save()


def test_a_record_that_is_being_written_is_said_to_be(monkeypatch):
    save_ledger(monkeypatch, make_full_ledger())
    monkeypatch.setattr(database, "LOCK_SECONDS", 0.01)
    with closing(sqlite3.connect(record_path())) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(RecordError, match="another process: try again"):
            RecordReader()


def test_what_a_killed_process_left_half_written_is_undone(monkeypatch, tmp_path):
    save_ledger(monkeypatch, make_full_ledger())
    (before,) = RecordReader().runs()
    with closing(sqlite3.connect(record_path())) as other:
        other.execute("PRAGMA cache_size = 1")  # so that pages reach the file before the transaction ends
        other.execute("UPDATE runs SET content = 'half'")
        for number in range(500):
            other.execute("INSERT INTO records VALUES (0, 'x', ?, ?)", (number, b"x" * 1000))
        for act in ("read", "write"):
            shutil.copytree(record_path().parent, tmp_path / act)
    monkeypatch.setenv(DIRECTORY.name, str(tmp_path / "read"))
    assert record_path().with_name(f"{record_path().name}-journal").exists()
    assert RecordReader().runs() == (before,)
    monkeypatch.setenv(DIRECTORY.name, str(tmp_path / "write"))
    save_ledger(monkeypatch, make_ledger(make_chain_template()), run="b" * 32, started=STARTED + 1)
    assert RecordReader().runs()[1:] == (before,)
    with closing(sqlite3.connect(record_path())) as other:
        assert other.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


SPOILED = {
    "short": lambda: record_path().write_bytes(b"short"),
    "long": lambda: record_path().write_bytes(b"This is no database. " * 1000),
    "cut off": lambda: (_save(), os.truncate(record_path(), record_path().stat().st_size // 3)),
    "foreign": lambda: _execute("CREATE TABLE precious (thing)"),
    "later format": lambda: (_save(), _execute(f"PRAGMA user_version = {FORMAT + 1}")),
}


@pytest.mark.parametrize("spoil", SPOILED.values(), ids=SPOILED)
def test_a_file_that_is_no_record_of_this_format_is_left_alone_with_one_warning(spoil):
    spoil()
    before = record_path().read_bytes()
    ledger = make_ledger(make_chain_template())
    writer = RecordWriter(ledger)
    (message,) = _warnings_of(writer.save)
    assert str(record_path()) in message and DIRECTORY.name in message
    ledger.count_region(make_chain_template(), (5,), hit=True)
    assert _warnings_of(writer.save) == []
    assert record_path().read_bytes() == before
    assert os.listdir(record_path().parent) == ["record-18.sqlite"]
    with pytest.raises(RecordError, match=f"{record_path()} (cannot be read|has format)"):
        RecordReader().runs()


@pytest.mark.parametrize("make", [os.mkdir, lambda path: path.symlink_to(record_path()), os.mkfifo])
def test_a_journal_that_is_no_file_is_refused_and_removed_with_the_record(make):
    _save()
    make(record_path().with_name(f"{record_path().name}-journal"))
    with pytest.raises(RecordError, match="-journal is no file"):
        RecordReader()
    assert forget(record_path()) and os.listdir(record_path().parent) == []


def test_a_record_directory_that_is_a_file_costs_one_warning(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("mine")
    monkeypatch.setenv(DIRECTORY.name, str(tmp_path / "file"))
    writer = RecordWriter(make_ledger(make_chain_template()))
    (message,) = _warnings_of(writer.save)
    assert f"{record_path()} cannot be written" in message and f"set {DIRECTORY.name}" in message
    assert _warnings_of(writer.save) == [] and (tmp_path / "file").read_text() == "mine"


def test_a_failure_in_the_middle_does_not_reach_the_model_and_leaves_nothing_half_written(monkeypatch):
    save_ledger(monkeypatch, make_full_ledger())
    before = RecordReader().runs()
    with monkeypatch.context() as patch:
        patch.setattr(database, "make_room", lambda *_: 1 / 0)
        assert len(_warnings_of(_save)) == 1
    assert RecordReader().runs() == before
    monkeypatch.delattr(sys, "argv")
    (message,) = _warnings_of(_save)
    assert "argv" in message


def test_the_record_of_an_older_version_stays_beside_the_new_one():
    older = record_path().with_name("record-3.sqlite")
    with closing(sqlite3.connect(older)) as database, database:
        database.execute("CREATE TABLE runs (id TEXT PRIMARY KEY)")
        database.execute("PRAGMA user_version = 3")
    before = older.read_bytes()
    with pytest.raises(RecordError, match=r"no record at .* \(record-3.sqlite is there, of another version of fusion"):
        RecordReader()
    assert _warnings_of(_save) == []
    assert len(RecordReader().runs()) == 1 and older.read_bytes() == before
