"""What a run leaves on disk: that it is what was counted, once, where it is, and how a template in it is found."""

import os
import stat
from dataclasses import replace

from recorded_templates import (
    begin_run,
    count_compile,
    count_load,
    make_cast_template,
    make_chain_template,
    make_ledger,
    save_ledger,
)
from report_records import make_placement

from fusioncache.observe.record import database
from fusioncache.observe.record import ledger as ledgers
from fusioncache.observe.record.database import RecordReader, RecordWriter, record_path
from fusioncache.observe.record.ledger import Ledger
from fusioncache.observe.record.observations import (
    ChoiceRecord,
    CompileRecord,
    Line,
    Phases,
    PlacementRecord,
    PlanCost,
    RegionRecord,
    Source,
)
from fusioncache.process.settings import DIRECTORY


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


RUN = "a" * 32
SOURCE = Source("h.3.norm", 3, (Line("/home/me/model.py", 7), Line("/lib/torch/nn.py", 229, True)))
REGION = RegionRecord(
    "GPT", "forward", 0, 12, "nvFusion3", make_chain_template().key.digest, "hit", None, (2, 1), "fold", SOURCE, 9, 4, 2
)
BYPASSED = replace(
    REGION, position=13, digest=None, outcome="bypass", reason="why", plan=None, arities=(), source=Source()
)
CHOICE = ChoiceRecord("GPT", "backward", 0, "t7", 5, "carry", (PlanCost("inline", 9, 0, 1), PlanCost("carry", 3, 4, 2)))

PLACEMENT = make_placement(trace="backward", trace_number=0)


def ledger_of(*regions: RegionRecord) -> Ledger:
    ledger = make_ledger(make_chain_template())
    ledger.history.add(*regions)
    return ledger


def test_what_a_transform_took_down_its_cache_has_and_is_read_as_it_was(monkeypatch):
    parent = Ledger()
    ledger = Ledger(parent)
    ledger.history.add(REGION, BYPASSED, CHOICE, PLACEMENT)
    ledger.count_region(make_chain_template(), (), hit=False)
    count_compile(ledger, make_chain_template(), 1.0)
    count_load(ledger, make_chain_template(), 0.25)
    save_ledger(monkeypatch, parent)
    assert RecordReader().regions(RUN) == (REGION, BYPASSED)
    assert RecordReader().regions(RUN, REGION.digest) == (REGION,)
    assert RecordReader().regions(RUN, "other") == RecordReader().regions("b", REGION.digest) == ()
    assert RecordReader().records(RUN, ChoiceRecord) == (CHOICE,)
    assert RecordReader().records(RUN, PlacementRecord) == (PLACEMENT,)
    assert RecordReader().records(RUN, CompileRecord) == parent.history.records(CompileRecord)
    made = RecordReader().records(RUN, CompileRecord)
    assert [(each.loaded, each.seconds) for each in made] == [(False, 1.0), (True, 0.25)]
    assert RecordReader().regions("b") == ()
    assert all(RecordReader().records("b", kind) == () for kind in (ChoiceRecord, PlacementRecord, CompileRecord))


def test_phases_are_read_as_they_were_and_what_was_not_measured_is_none(monkeypatch):
    ledger = ledger_of(REGION)
    ledger.history.add_seconds("tracing", 1.5)
    ledger.history.add_seconds("tracing", 0.5)
    ledger.history.add_seconds("planning", 0.25)
    ledger.count("canonicalize_seconds", 1.0)
    save_ledger(monkeypatch, ledger)
    phases = RecordReader().runs()[0].phases
    assert phases == Phases(tracing=2.0, planning=0.25, canonicalizing=0.75, compiling=1.0, loading=0.0)
    assert (phases.fusing, phases.first_execution, phases.recording) == (None, None, None)


def test_counts_of_few_templates_are_kept_apart_and_all_are_in_the_total(monkeypatch):
    monkeypatch.setattr(ledgers, "MOST_TEMPLATES", 2)
    parent = Ledger()
    ledger = Ledger(parent)
    first, second, third = (make_cast_template(f"cast_{number}", str(number)) for number in range(3))
    for template in (first, second, first, third):
        ledger.count_region(template, (), hit=ledger.has(template))
        count_compile(ledger, template, 1.0)
    for each in (ledger, parent):
        assert (each.stats().regions, each.stats().hits, each.stats().templates, each.stats().compiles) == (4, 1, 3, 4)
        assert [stats.name for stats in each.templates()] == ["cast_0", "cast_2"]  # as they were first seen
        assert [each.has(template) for template in (first, second, third)] == [True, False, True]
    before = parent.templates()
    parent.count_region(third, (), hit=True)
    after = parent.templates()
    assert [(stats.name, stats.regions) for stats in after] == [("cast_0", before[0].regions), ("cast_2", 2)]
    assert [one is other for one, other in zip(before, after, strict=True)] == [True, False]


def test_a_later_save_adds_what_is_new_mends_what_is_otherwise_and_writes_nothing_if_nothing_changed():
    ledger = ledger_of(REGION)
    writer = begin_run(ledger)
    ledger.history.add(BYPASSED)
    ledger.history.amend_regions(make_chain_template().key.digest, (2, 1), reason="compile failed: ValueError")
    ledger.history.add(REGION)  # of the kind that was mended
    ledger.count_region(make_cast_template(), (), hit=False)
    count_compile(ledger, make_chain_template(), 1.0)
    writer.save()
    (run,) = RecordReader().runs()
    mended = replace(REGION, reason="compile failed: ValueError")
    assert RecordReader().regions(run.id) == (mended, BYPASSED, mended)
    assert len(RecordReader().records(run.id, CompileRecord)) == 2
    assert run.stats == ledger.stats()
    assert {each.digest for each in RecordReader().templates(run.id)} == {each.digest for each in ledger.templates()}
    record_path().unlink()
    writer.save()
    assert not record_path().exists()
