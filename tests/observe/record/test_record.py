"""What a run leaves on disk: that it is what was counted, where it is, and how a template in it is found."""

import os
import stat

from recorded_templates import (
    begin_run,
    make_cast_template,
    make_chain_template,
    make_ledger,
    save_ledger,
)

from fusioncache.observe.record import database
from fusioncache.observe.record.database import RecordReader, RecordWriter, record_path
from fusioncache.observe.record.ledger import Ledger
from fusioncache.process.settings import DIRECTORY


def test_saving_again_brings_the_run_up_to_date_and_writes_nothing_if_nothing_changed():
    ledger = make_ledger(make_chain_template())
    writer = begin_run(ledger)
    ledger.count_region(make_chain_template(), (5,), hit=True)
    ledger.count_region(make_cast_template(), (), hit=False)
    writer.save()
    (run,) = RecordReader().runs()
    assert run.stats == ledger.stats()
    assert {template.digest for template in RecordReader().templates(run.id)} == {t.digest for t in ledger.templates()}
    record_path().unlink()
    writer.save()
    assert not record_path().exists()


def test_counts_of_programs_come_back_and_go_to_the_parent():
    parent = Ledger()
    ledger = Ledger(parent)
    ledger.count("program_seconds", 0.25, of="key")
    ledger.count("program_seconds", 0.25, of="key")
    ledger.count("program_seconds", 1.0, of="record")
    ledger.count_program_loaded("GPT", 0.5, 8.0)
    ledger.emit("program made", model="GPT")
    assert [ledger.emit("program refused", reason="a lock") for _ in range(2)] == [True, False]
    stats = ledger.stats()
    assert stats == parent.stats()
    assert (stats.programs_loaded, stats.programs_made, dict(stats.programs_refused)) == (1, 1, {"a lock": 2})
    assert (dict(stats.program_seconds), stats.loaded_program_seconds) == ({"key": 0.5, "record": 1.0}, 8.0)
    RecordWriter(ledger).save()
    (run,) = RecordReader().runs()
    assert (run.stats, run.models) == (stats, ("GPT",))
    assert (run.phases.loading_programs, run.phases.keeping_programs) == (0.5, 1.0)


def test_a_run_that_goes_on_is_kept_whenever_it_started(monkeypatch):
    monkeypatch.setattr(database, "MOST_RUNS", 1)
    monkeypatch.setattr(database.time, "time", lambda: 10.0)
    long_run = RecordWriter(make_ledger(make_chain_template()))
    save_ledger(monkeypatch, make_ledger(make_cast_template()), run="b", started=10.5)
    monkeypatch.setattr(database.time, "time", lambda: 11.0)
    long_run.save()
    assert [run.pid for run in RecordReader().runs()] == [os.getpid()]


def test_the_directory_is_made_for_its_owner_only(monkeypatch, tmp_path):
    directory = tmp_path / "not" / "yet"
    monkeypatch.setenv(DIRECTORY.name, str(directory))
    RecordWriter(make_ledger(make_chain_template())).save()
    assert (directory / "record-17.sqlite").exists()
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_find_gives_the_counts_of_the_newest_run_and_knows_no_wildcards_and_no_other_case(monkeypatch):
    chain = make_chain_template()
    for run, started, seconds in (("m", 20.0, 2.0), ("a", 10.0, 1.0), ("z", 15.0, 3.0)):
        save_ledger(monkeypatch, make_ledger(chain, seconds=seconds), run=run, started=started)
    save_ledger(monkeypatch, make_ledger(make_cast_template()), run="n", started=30.0)
    for text in (chain.key.digest, chain.name[:4]):
        (found,) = RecordReader().find_templates(text)
        assert found.compile_seconds == 2.0
    assert RecordReader().find_templates("%") == RecordReader().find_templates(chain.name[:4].upper()) == ()
