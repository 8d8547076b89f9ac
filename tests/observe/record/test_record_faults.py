"""Records that cannot be read, and files that must not be written: no file and no model is ever harmed."""

import os
import shutil
import sqlite3
import sys
import warnings
from contextlib import closing

import pytest
from recorded_templates import make_chain_template, make_full_ledger, make_ledger, save_ledger

from fusioncache.observe.record import database as record
from fusioncache.observe.record.database import FORMAT, RecordError, RecordReader, RecordWriter, record_path
from fusioncache.process.settings import DIRECTORY


def _warnings_of(action) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        action()
    assert all(warning.category is RuntimeWarning for warning in caught)
    return [str(warning.message) for warning in caught]


def _database() -> sqlite3.Connection:
    return sqlite3.connect(record_path())


def _execute(statement: str) -> None:
    with closing(_database()) as database, database:
        database.execute(statement)


def _save() -> None:
    RecordWriter(make_ledger(make_chain_template())).save()


def test_a_record_that_is_being_written_is_said_to_be(monkeypatch):
    save_ledger(monkeypatch, make_full_ledger())
    monkeypatch.setattr(record, "LOCK_SECONDS", 0.01)
    with closing(_database()) as database:
        database.execute("BEGIN EXCLUSIVE")
        with pytest.raises(RecordError, match="another process: try again"):
            RecordReader()


def test_what_a_killed_process_left_half_written_is_undone(monkeypatch, tmp_path):
    save_ledger(monkeypatch, make_full_ledger())
    with closing(_database()) as database:
        # So small a cache that pages reach the file before the transaction ends, as in a big one.
        database.execute("PRAGMA cache_size = 1")
        database.execute("UPDATE runs SET content = 'half'")
        for number in range(500):
            database.execute("INSERT INTO records VALUES (0, 'x', ?, ?)", (number, b"x" * 1000))
        shutil.copytree(record_path().parent, tmp_path / "killed")
        database.rollback()
    assert (tmp_path / "killed" / "record-17.sqlite-journal").exists()
    (run,) = RecordReader(tmp_path / "killed" / "record-17.sqlite").runs()
    assert run.command == "train.py --depth"


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
    assert os.listdir(record_path().parent) == ["record-17.sqlite"]
    with pytest.raises(RecordError, match=f"{record_path()} (cannot be read|has format)"):
        RecordReader().runs()


def test_a_file_in_place_of_the_directory_costs_one_warning(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("mine")
    monkeypatch.setenv(DIRECTORY.name, str(tmp_path / "file"))
    writer = RecordWriter(make_ledger(make_chain_template()))
    (message,) = _warnings_of(writer.save)
    assert f"{tmp_path / 'file' / 'record-17.sqlite'} cannot be written" in message
    assert f"set {DIRECTORY.name}" in message
    assert _warnings_of(writer.save) == []
    assert (tmp_path / "file").read_text() == "mine"


def test_a_failure_in_the_middle_does_not_reach_the_model_and_leaves_nothing_half_written(monkeypatch):
    save_ledger(monkeypatch, make_full_ledger())
    before = RecordReader().runs()
    with monkeypatch.context() as patch:
        patch.setattr(record, "make_room", lambda *_: 1 / 0)
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
