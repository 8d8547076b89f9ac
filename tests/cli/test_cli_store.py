"""The commands that look after the store: dir, prune, clear and verify."""

import json
import time

import pytest
from commands import call, get_error, get_output, save_run
from recorded_templates import make_chain_template, make_ledger, save_ledger
from store_contents import age_entry, find_entry, find_object, find_present, load, make_artifacts, save

from fusioncache.cli.console import AGE, BYTES
from fusioncache.observe.record.database import RecordReader, record_path
from fusioncache.store import Store, default_path, entry

_DAY = 86400.0


@pytest.fixture
def store():
    """Three entries, unused for one, two and three days."""
    opened = Store.open()
    save(opened, 1, 2, 3)
    for number in (1, 2, 3):
        age_entry(opened, number, number * _DAY)
    return opened


def _left(store: Store) -> list[int]:
    return find_present(store, 1, 2, 3)


def test_dir(monkeypatch):
    assert get_output("dir") == f"{record_path().parent}\n"
    where = {"directory": str(record_path().parent), "record": str(record_path()), "store": str(default_path())}
    assert json.loads(get_output("dir", "--json")) == {"schema": 2, **where, "remote": None}
    monkeypatch.setenv("FUSIONCACHE_REMOTE", "s3://me:secret@bucket/x")
    assert json.loads(get_output("dir", "--json"))["remote"] == "s3://bucket/x"
    assert not default_path().exists()


def test_prune_by_age(store):
    size = sum(path.stat().st_size for path in (find_entry(store, 1), find_object(store, make_artifacts(1)["code"])))
    size += sum(len(make_artifacts(1)[name]) for name in ("empty", "shared"))
    assert get_output("prune", "--max-age", "36h", "--dry-run") == (
        f"would remove 2 entries and 2 objects; {size / 1000:.1f} kB would be left\n"
    )
    assert _left(store) == [1, 2, 3]
    assert get_output("prune", "--max-age", "36h") == f"removed 2 entries and 2 objects; {size / 1000:.1f} kB left\n"
    assert _left(store) == [1]
    assert load(store, 1)


def test_prune_by_size_takes_what_was_not_used_for_longest(store):
    before = json.loads(get_output("prune", "--dry-run", "--max-bytes", "11kB", "--json"))
    after = json.loads(get_output("prune", "--max-bytes", "11kB", "--json"))
    assert before == {**after, "dry_run": True}
    assert after.pop("bytes_left") < 11_000
    counts = {"entries": 1, "objects": 1, "litter": 0}
    assert after == {"schema": 2, "store": str(default_path()), "dry_run": False, "record": None, **counts}
    assert _left(store) == [1, 2]


def test_prune_forgets_old_runs(monkeypatch):
    now = time.time()
    for run, age in (("old", 80), ("new", 5)):
        save_ledger(monkeypatch, make_ledger(make_chain_template()), run=run, started=now - age * _DAY)
    assert get_output("prune") == ""
    size = record_path().stat().st_size
    assert get_output("prune", "--max-age", "30d", "--dry-run").startswith("would forget 1 run; the record would have ")
    assert [run.id for run in RecordReader().runs()] == ["new", "old"] and record_path().stat().st_size == size
    # The newest stays.
    data = json.loads(get_output("prune", "--record-bytes", "0", "--json"))
    assert data.pop("record") == {"runs": 1, "bytes_left": record_path().stat().st_size}
    assert data == {"schema": 2, "store": None, "dry_run": False}
    assert [run.id for run in RecordReader().runs()] == ["new"]


def test_prune_of_a_store_elsewhere_leaves_the_record(store, monkeypatch):
    save_run(monkeypatch)
    before = record_path().read_bytes()
    assert get_output("prune", "--record-bytes", "0", "--dir", str(default_path())).startswith("removed 0 entries")
    assert record_path().read_bytes() == before


@pytest.mark.parametrize(("text", "expected"), [("1", 1), ("2kB", 2000), ("1.5 MiB", 1.5 * 2**20), ("3GB", 3e9)])
def test_sizes(text, expected):
    assert BYTES.convert(text, None, None) == expected


@pytest.mark.parametrize(("text", "expected"), [("90", 90), ("2h", 7200), ("1w", 7 * _DAY), ("0.5d", _DAY / 2)])
def test_ages(text, expected):
    assert AGE.convert(text, None, None) == expected


def test_clear_asks_first(store, monkeypatch):
    save_run(monkeypatch)
    result = call("clear", input="n\n")
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"Remove what is in {default_path()} and {record_path()}? [y/N]" in result.stderr
    assert (_left(store), record_path().exists()) == ([1, 2, 3], True)
    result = call("clear", input="y\n")
    assert result.exit_code == 0
    assert (_left(store), record_path().exists()) == ([], False)


@pytest.mark.parametrize(("option", "expected"), [("--store", ([], True)), ("--record", ([1, 2, 3], False))])
def test_clear_one_of_them(store, monkeypatch, option, expected):
    save_run(monkeypatch)
    get_output("clear", "-y", option)
    assert (_left(store), record_path().exists()) == expected


def test_a_damaged_record_can_be_removed():
    record_path().write_text("This is no database. " * 1000)
    assert get_output("clear", "-y", "--record") == f"removed the record {record_path()}\n"


def _damage(path) -> None:
    path.write_bytes(path.read_bytes()[:-1] + b"?")


def test_verify_finds_what_is_damaged_and_removes_it(store):
    _damage(find_entry(store, 2))
    result = call("verify")
    assert result.exit_code == 1
    head, damaged, counts = result.stdout.splitlines()
    assert head.split() == ["what", "id", "reason"]
    assert damaged == f"entry  {find_entry(store, 2).name}  a damaged entry"
    assert counts.endswith(", 1 damaged")
    result = call("verify", "--remove", "--json")
    assert result.exit_code == 0
    (found,) = json.loads(result.stdout)["damaged"]
    assert found == {"what": "entry", "id": find_entry(store, 2).name, "reason": "a damaged entry"}
    assert _left(store) == [1, 3]
    assert get_output("verify").startswith("2 entries")


def test_verify_counts_what_another_version_wrote(store, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(entry, "FORMAT", 7)
        save(store, 4)
    assert get_output("verify").endswith("0 damaged, 1 entry of another version\n")


@pytest.mark.parametrize("command", [("prune",), ("verify",), ("ls", "--store")], ids=" ".join)
def test_no_store_is_made(command):
    assert f"there is no store in {default_path()}: " in get_error(*command)
    assert not default_path().exists()


@pytest.mark.parametrize("command", [("prune",), ("verify",), ("ls", "--store")], ids=" ".join)
def test_an_empty_directory_is_left_empty(command, tmp_path):
    assert f"{tmp_path} is empty, and no store" in get_error(*command, "--dir", str(tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", [("prune",), ("verify",), ("clear", "-y"), ("ls", "--store")], ids=" ".join)
def test_a_directory_that_is_no_store(command, tmp_path):
    (tmp_path / "mine").write_text("mine")
    assert f"{tmp_path} is no store and not empty (mine)" in get_error(*command, "--dir", str(tmp_path))
    assert (tmp_path / "mine").read_text() == "mine"
