"""What a run leaves on disk: that it is what was counted, and that no file and no model is ever harmed."""

from __future__ import annotations

import gc
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import warnings
from contextlib import closing
from pathlib import Path

import pytest
from recorded import STARTED, cast_template, chain_template, full_ledger, save, used

from fusioncache.cache import record, recorder
from fusioncache.cache.ledger import Ledger
from fusioncache.cache.record import DIRECTORY_VARIABLE, Record, RecordError, record_path
from fusioncache.cache.recorder import Recorder


def _warnings_of(action) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        action()
    assert all(warning.category is RuntimeWarning for warning in caught)
    return [str(warning.message) for warning in caught]


def _database() -> sqlite3.Connection:
    return sqlite3.connect(record_path())


# What is written and read


def test_a_run_is_read_as_it_was_counted(monkeypatch):
    ledger = full_ledger()
    save(monkeypatch, ledger)
    (run,) = Record().runs()
    assert (run.id, run.started, run.pid, run.command) == ("a" * 32, STARTED, 4321, "train.py --depth 4")
    assert run.stats == ledger.stats()
    assert run.stats.bypasses == {"unknown op": 2, "compile failed: ValueError": 1}


def test_templates_are_read_as_they_were_counted_the_most_expensive_first(monkeypatch):
    ledger = full_ledger()
    save(monkeypatch, ledger)
    cast, chain = ledger.templates()
    assert Record().templates("a" * 32) == (chain, cast)


def test_templates_are_those_of_the_run_asked_for(monkeypatch):
    save(monkeypatch, used(chain_template()), run="a")
    save(monkeypatch, used(cast_template()), run="b")
    assert [template.digest for template in Record().templates("a")] == [chain_template().key.digest]
    assert Record().templates("c") == ()


def test_saving_again_brings_the_run_up_to_date():
    ledger = used(chain_template())
    recorder_ = Recorder(ledger)
    recorder_.save()
    ledger.region(chain_template(), (5,), hit=True)
    ledger.region(cast_template(), (), hit=False)
    recorder_.save()
    (run,) = Record().runs()
    assert run.stats == ledger.stats()
    assert {template.digest for template in Record().templates(run.id)} == {t.digest for t in ledger.templates()}


def test_nothing_is_written_when_nothing_was_counted():
    Recorder(Ledger()).save()
    assert not record_path().exists()


def test_nothing_is_written_when_nothing_changed():
    recorder_ = Recorder(used(chain_template()))
    recorder_.save()
    record_path().unlink()
    recorder_.save()
    assert not record_path().exists()


def test_runs_are_listed_newest_first(monkeypatch):
    for run, started in (("b", 20.0), ("c", 30.0), ("a", 10.0)):
        save(monkeypatch, used(cast_template()), run=run, started=started)
    assert [run.id for run in Record().runs()] == ["c", "b", "a"]


def test_old_runs_are_forgotten_with_their_templates(monkeypatch):
    monkeypatch.setattr(recorder, "RUNS_KEPT", 2)
    save(monkeypatch, used(chain_template()), run="a", started=10.0)
    for run, started in (("b", 20.0), ("c", 30.0)):
        save(monkeypatch, used(cast_template()), run=run, started=started)
    assert [run.id for run in Record().runs()] == ["c", "b"]
    assert Record().find(chain_template().key.digest) == ()
    with closing(_database()) as database:
        assert database.execute("SELECT count(*) FROM templates").fetchone() == (1,)
        assert database.execute("SELECT DISTINCT run FROM uses ORDER BY run").fetchall() == [("b",), ("c",)]


def test_a_run_that_goes_on_is_kept_whenever_it_started(monkeypatch):
    monkeypatch.setattr(recorder, "RUNS_KEPT", 1)
    long_run = Recorder(used(chain_template()))
    save(monkeypatch, used(cast_template()), run="b", started=long_run._started + 1e-3)
    monkeypatch.setattr(recorder.time, "time", lambda: long_run._started + 1.0)
    long_run.save()
    assert [run.pid for run in Record().runs()] == [os.getpid()]


def test_an_argument_that_is_no_text_does_no_harm(monkeypatch):
    save(monkeypatch, used(cast_template()), argv=["train.py", os.fsdecode(b"caf\xe9"), "two words"])
    assert Record().runs()[0].command == "train.py 'caf\\udce9' 'two words'"


def test_counts_after_the_last_save_are_written_at_exit_even_if_the_cache_is_gone(tmp_path):
    script = """
import gc
from fusioncache.cache.cache import Cache
from recorded import chain_template
def main():
    cache = Cache()
    cache.ledger.region(chain_template(), (3,), hit=False)
    cache.save()
    cache.ledger.compiled(chain_template(), 2.5)
main()
gc.collect()
"""
    _python(script)
    (run,) = Record().runs()
    assert (run.stats.compiles, run.stats.compile_seconds) == (1, 2.5)


def test_a_forked_child_leaves_its_parents_run_alone():
    script = """
import os
from fusioncache.cache.recorder import Recorder
from recorded import chain_template, used
ledger = used(chain_template())
recorder = Recorder(ledger)
recorder.save()
child = os.fork()
if child == 0:
    ledger.region(chain_template(), (5,), hit=True)
    recorder.save()
else:
    assert os.waitpid(child, 0)[1] == 0
"""
    _python(script)
    (run,) = Record().runs()
    assert run.stats.regions == 1


# Where it is


def test_the_directory_is_made_for_its_owner_only(monkeypatch, tmp_path):
    directory = tmp_path / "not" / "yet"
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(directory))
    Recorder(used(chain_template())).save()
    assert (directory / "record-2.sqlite").exists()
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_without_the_variable_the_platform_says_where(monkeypatch, tmp_path):
    monkeypatch.delenv(DIRECTORY_VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert tmp_path in record_path().parents
    assert "fusioncache" in str(record_path().relative_to(tmp_path))


def test_a_directory_with_odd_characters_can_be_read(monkeypatch, tmp_path):
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path / "50% #1? &mode=x"))
    Recorder(used(chain_template())).save()
    assert len(Record().runs()) == 1


# Finding a template


def _save_named(monkeypatch, *names: str) -> None:
    templates = (cast_template(name, options=str(number)) for number, name in enumerate(names))
    save(monkeypatch, used(*templates))


def _names(prefix: str) -> set[str]:
    return {template.name for template in Record().find(prefix)}


def test_find_by_the_start_of_a_name(monkeypatch):
    _save_named(monkeypatch, "sum_one", "sum_two", "tanh")
    assert _names("sum") == {"sum_one", "sum_two"}
    assert _names("sum_t") == {"sum_two"}
    assert _names("um") == set()


def test_find_by_the_start_of_a_digest(monkeypatch):
    save(monkeypatch, full_ledger())
    chain, cast = chain_template(), cast_template()
    for template in (chain, cast):
        for length in (12, 64):
            assert _names(template.key.digest[:length]) == {template.name}
        assert _names(template.key.digest[1:]) == set()


def test_find_takes_the_whole_name_before_its_longer_siblings(monkeypatch):
    _save_named(monkeypatch, "sum", "sum_two")
    assert _names("sum") == {"sum"}


def test_find_takes_the_whole_digest_before_names(monkeypatch):
    digest = chain_template().key.digest
    save(monkeypatch, used(chain_template(), cast_template(name=f"{digest}_two")))
    assert _names(digest) == {chain_template().name}


def test_find_knows_no_wildcards_and_no_other_case(monkeypatch):
    _save_named(monkeypatch, "sum_one", "sumXtwo")
    assert _names("%") == _names("s%") == _names("SUM") == set()
    assert _names("sum_") == {"sum_one"}


def test_find_gives_the_counts_of_the_newest_run_that_had_the_template(monkeypatch):
    chain, cast = chain_template(), cast_template()
    save(monkeypatch, used(chain, seconds=2.0), run="m", started=20.0)
    save(monkeypatch, used(chain, seconds=1.0), run="a", started=10.0)
    save(monkeypatch, used(chain, seconds=3.0), run="z", started=15.0)
    save(monkeypatch, used(cast), run="n", started=30.0)
    (found,) = Record().find(chain.key.digest)
    assert found.compile_seconds == 2.0


# What cannot be read


def test_no_record():
    with pytest.raises(RecordError, match=f"no record at {record_path()}: run a model .* set {DIRECTORY_VARIABLE}"):
        Record()


def test_an_empty_file_is_no_record_yet_and_becomes_one():
    record_path().touch()
    with pytest.raises(RecordError, match="no record"):
        Record()
    Recorder(used(chain_template())).save()
    assert len(Record().runs()) == 1


def test_a_directory_that_is_a_file_holds_no_record(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("mine")
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path / "file"))
    with pytest.raises(RecordError, match="no record"):
        Record()


def test_rows_that_make_no_sense_are_an_error_and_not_a_crash(monkeypatch):
    save(monkeypatch, full_ledger())
    with closing(_database()) as database, database:
        database.execute("UPDATE templates SET ingredients = '[1, 2]'")
        database.execute("UPDATE runs SET bypasses = 'nonsense'")
    for read in (Record().runs, lambda: Record().templates("a" * 32), lambda: Record().find("residual")):
        with pytest.raises(RecordError, match="cannot be read"):
            read()


def test_a_record_that_is_being_written_is_said_to_be(monkeypatch):
    save(monkeypatch, full_ledger())
    monkeypatch.setattr(record, "LOCK_SECONDS", 0.01)
    with closing(_database()) as database:
        database.execute("BEGIN EXCLUSIVE")
        with pytest.raises(RecordError, match="another process: try again"):
            Record()


def test_what_a_killed_process_left_half_written_is_undone(monkeypatch, tmp_path):
    save(monkeypatch, full_ledger())
    with closing(_database()) as database:
        # So small a cache that pages reach the file before the transaction ends, as in a big one.
        database.execute("PRAGMA cache_size = 1")
        database.execute("UPDATE runs SET command = 'half'")
        for number in range(500):
            database.execute("INSERT INTO templates VALUES (?, ?, '[]')", (f"{number}", "x" * 1000))
        shutil.copytree(record_path().parent, tmp_path / "killed")
        database.rollback()
    assert (tmp_path / "killed" / "record-2.sqlite-journal").exists()
    (run,) = Record(tmp_path / "killed" / "record-2.sqlite").runs()
    assert run.command == "train.py --depth 4"


# What must not be written


def _foreign_database() -> None:
    with closing(_database()) as database, database:
        database.execute("CREATE TABLE precious (thing)")


def _later_format() -> None:
    Recorder(used(chain_template())).save()
    with closing(_database()) as database:
        database.execute(f"PRAGMA user_version = {record.SCHEMA_VERSION + 1}")


def _cut_off() -> None:
    Recorder(used(chain_template())).save()
    content = record_path().read_bytes()
    record_path().write_bytes(content[: len(content) // 3])


@pytest.mark.parametrize(
    "spoil",
    [
        lambda: record_path().write_bytes(b"short"),
        lambda: record_path().write_bytes(b"This is no database. " * 1000),
        _cut_off,
        _foreign_database,
        _later_format,
    ],
    ids=["short", "long", "cut off", "foreign", "later format"],
)
def test_a_file_that_is_no_record_of_this_format_is_left_alone_with_one_warning(spoil):
    spoil()
    before = record_path().read_bytes()
    ledger = used(chain_template())
    recorder_ = Recorder(ledger)
    (message,) = _warnings_of(recorder_.save)
    assert str(record_path()) in message
    assert DIRECTORY_VARIABLE in message
    ledger.region(chain_template(), (5,), hit=True)
    assert _warnings_of(recorder_.save) == []
    assert record_path().read_bytes() == before
    assert os.listdir(record_path().parent) == ["record-2.sqlite"]
    with pytest.raises(RecordError, match=f"{record_path()} (cannot be read|has format)"):
        Record().runs()


def test_a_file_in_place_of_the_directory_costs_one_warning(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("mine")
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path / "file"))
    recorder_ = Recorder(used(chain_template()))
    (message,) = _warnings_of(recorder_.save)
    assert f"{tmp_path / 'file' / 'record-2.sqlite'} cannot be written" in message
    assert f"set {DIRECTORY_VARIABLE}" in message
    assert _warnings_of(recorder_.save) == []
    assert (tmp_path / "file").read_text() == "mine"


def test_a_directory_that_cannot_be_written_costs_one_warning(monkeypatch, tmp_path):
    tmp_path.chmod(0o500)
    if os.access(tmp_path, os.W_OK):
        pytest.skip("this user may write everywhere")
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path))
    assert len(_warnings_of(Recorder(used(chain_template())).save)) == 1


def test_after_a_failure_nothing_is_tried_again(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("mine")
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path / "file"))
    recorder_ = Recorder(used(chain_template()))
    assert len(_warnings_of(recorder_.save)) == 1
    (tmp_path / "file").unlink()
    recorder_.save()
    assert not (tmp_path / "file").exists()


def test_a_failure_nobody_thought_of_does_not_reach_the_model(monkeypatch):
    monkeypatch.delattr(sys, "argv")
    (message,) = _warnings_of(Recorder(used(chain_template())).save)
    assert "argv" in message


def test_a_failed_save_leaves_nothing_half_written(monkeypatch):
    ledger = full_ledger()
    save(monkeypatch, ledger)
    before = Record().runs()
    monkeypatch.setattr(recorder, "_forget_old_runs", lambda database: 1 / 0)
    assert len(_warnings_of(Recorder(used(chain_template())).save)) == 1
    assert Record().runs() == before


# Several at once


def _start(script: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, "-W", "error::RuntimeWarning", "-c", script]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    root = Path(__file__).parent.parent
    return subprocess.Popen(command, env=environment, cwd=root, text=True, **pipes)


def _python(script: str) -> None:
    process = _start(script)
    _, errors = process.communicate()
    assert (process.returncode, errors) == (0, "")


def test_processes_that_write_at_the_same_time_all_succeed():
    script = """
from fusioncache.cache.recorder import Recorder
from recorded import cast_template, chain_template, used
recorders = [Recorder(used(chain_template(), cast_template())) for _ in range(8)]
print("ready", flush=True)
input()
for recorder in recorders:
    recorder.save()
"""
    processes = [_start(script) for _ in range(4)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    assert [(process.communicate()[1], process.returncode) for process in processes] == [("", 0)] * 4
    runs = Record().runs()
    assert sorted(run.pid for run in runs) == sorted([process.pid for process in processes] * 8)
    assert all(len(Record().templates(run.id)) == 2 for run in runs)


def test_a_cache_in_use_is_not_kept_alive_by_its_record():
    import weakref

    from fusioncache.cache.cache import Cache

    cache = Cache()
    cache.ledger.region(chain_template(), (), hit=False)
    cache.save()
    gone = weakref.ref(cache)
    del cache
    gc.collect()
    assert gone() is None
