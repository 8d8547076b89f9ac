"""What the commands say when the record cannot be read, or an id names nothing or too much."""

import sqlite3
from contextlib import closing

import pytest
from commands import CHAIN, get_error, save_run
from recorded_templates import make_cast_template, make_ledger, save_ledger

from fusioncache.observe.record.database import FORMAT, record_path

_READERS = [("stats",), ("stats", "--runs"), ("ls",), ("ls", "--json")]
_READERS += [("show", "x"), ("graph", "x"), ("diff",), ("diff", "a", "b")]


@pytest.fixture
def _run(monkeypatch):
    save_run(monkeypatch)


@pytest.mark.parametrize("command", _READERS, ids=" ".join)
def test_a_corrupt_record(command):
    record_path().write_text("This is no database. " * 1000)
    message = get_error(*command)
    assert message.startswith(f"Error: {record_path()} cannot be read (file is not a database)")
    assert "move it away" in message


@pytest.mark.usefixtures("_run")
@pytest.mark.parametrize("command", [("stats",), ("ls",), ("show", CHAIN.name), ("graph", CHAIN.name)], ids=" ".join)
def test_a_record_that_was_damaged_after_it_was_opened(command):
    with closing(sqlite3.connect(record_path())) as database, database:
        database.execute("UPDATE templates SET content = '[1]'")
        database.execute("UPDATE runs SET content = '[1]'")
    assert "cannot be read" in get_error(*command)


@pytest.mark.usefixtures("_run")
@pytest.mark.parametrize("command", _READERS, ids=" ".join)
def test_a_record_of_another_format(command):
    with closing(sqlite3.connect(record_path())) as database:
        database.execute(f"PRAGMA user_version = {FORMAT + 1}")
    formats = f"has format {FORMAT + 1} and this fusioncache reads format {FORMAT}"
    assert get_error(*command).startswith(f"Error: {record_path()} {formats}: move it away")


@pytest.mark.usefixtures("_run")
def test_a_record_without_runs():
    with closing(sqlite3.connect(record_path())) as database, database:
        database.execute("DELETE FROM runs")
    assert f"{record_path()} has no runs: run a model" in get_error("stats")


def test_an_ambiguous_template_does_not_fill_the_screen(monkeypatch):
    save_ledger(monkeypatch, make_ledger(*(make_cast_template(f"cast_{number}", str(number)) for number in range(13))))
    said = get_error("show", "cast").splitlines()
    assert len(said) == 12
    assert said[-1] == "  and 3 more"
