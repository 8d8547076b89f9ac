"""Regions, streams and executables one by one: as much as there is room for, on disk as they were, and once."""

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

from fusioncache.observe.record import ledger as ledgers
from fusioncache.observe.record.database import RecordReader
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


def test_what_there_is_no_room_for_is_counted(monkeypatch):
    monkeypatch.setattr(ledgers, "MOST_OBSERVATIONS", 2)
    ledger = ledger_of(REGION, BYPASSED, REGION, REGION)
    count_compile(ledger, make_chain_template(), 1.0)
    count_compile(ledger, make_chain_template(), 1.0)
    save_ledger(monkeypatch, ledger)
    assert RecordReader().regions(RUN) == (REGION, BYPASSED)
    assert len(RecordReader().records(RUN, CompileRecord)) == 2
    assert RecordReader().runs()[0].unrecorded == 3


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


def test_a_later_save_adds_what_is_new_and_mends_what_is_otherwise():
    ledger = ledger_of(REGION)
    recorder_ = begin_run(ledger)
    ledger.history.add(BYPASSED)
    ledger.history.amend_regions(make_chain_template().key.digest, (2, 1), reason="compile failed: ValueError")
    ledger.history.add(REGION)  # of the kind that was mended
    count_compile(ledger, make_chain_template(), 1.0)
    recorder_.save()
    (run,) = RecordReader().runs()
    mended = replace(REGION, reason="compile failed: ValueError")
    assert RecordReader().regions(run.id) == (mended, BYPASSED, mended)
    assert len(RecordReader().records(run.id, CompileRecord)) == 2
