"""The record of a run on disk, during the run and later: it has each count once, and can be found.

Observations that are stored with a program are read as the run had them; anything else is refused.
"""

import gc
import json
import os
import signal
import stat
import subprocess
import sys
import threading
import weakref
from dataclasses import replace
from pathlib import Path
from typing import get_type_hints
from unittest.mock import Mock

import pytest
from commands import get_output
from hypothesis import given
from hypothesis import strategies as st
from models import train_residual
from pool_processes import wait_until
from recorded_templates import (
    count_compile,
    count_load,
    make_cast_template,
    make_chain_template,
    make_ledger,
    save_ledger,
)
from report_records import make_placement
from repository import HELPERS, ROOT, import_path

from fusioncache.cache.cache import Cache
from fusioncache.observe.record import database as recorder
from fusioncache.observe.record import ledger as ledgers
from fusioncache.observe.record.database import RecordReader, RecordWriter, record_path
from fusioncache.observe.record.ledger import Ledger
from fusioncache.observe.record.observations import (
    BoundRecord,
    ChoiceRecord,
    FlightRecord,
    Line,
    PeakRecord,
    PlacementRecord,
    PlanCost,
    RegionRecord,
    Source,
)
from fusioncache.observe.record.region_codec import decode_regions, encode_regions
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


def test_the_directory_is_made_for_its_owner_only(monkeypatch, tmp_path):
    directory = tmp_path / "not" / "yet"
    monkeypatch.setenv(DIRECTORY.name, str(directory))
    RecordWriter(make_ledger(make_chain_template())).save()
    assert (directory / "record-18.sqlite").exists()
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
    assert RecordReader().regions(RUN, "other") == RecordReader().regions("b") == ()
    assert RecordReader().records(RUN, ChoiceRecord) == (CHOICE,)
    assert RecordReader().records(RUN, PlacementRecord) == (PLACEMENT,)
    (template,) = RecordReader().templates(RUN)
    assert (template.compile_seconds, template.load_seconds) == (1.0, 0.25)
    assert RecordReader().records("b", ChoiceRecord) == ()


def test_what_there_is_no_room_for_is_counted(monkeypatch):
    monkeypatch.setattr(ledgers, "MOST_OBSERVATIONS", 2)
    ledger = make_ledger(make_chain_template())
    ledger.history.add(REGION, BYPASSED, REGION, REGION)
    save_ledger(monkeypatch, ledger)
    assert RecordReader().regions(RUN) == (REGION, BYPASSED)
    assert RecordReader().runs()[0].unrecorded == 2


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


def test_a_later_save_adds_what_is_new_mends_what_is_otherwise_and_writes_nothing_if_nothing_changed():
    ledger = make_ledger(make_chain_template())
    ledger.history.add(REGION)
    writer = RecordWriter(ledger)
    writer.save()
    ledger.history.add(BYPASSED)
    ledger.history.amend_regions(make_chain_template().key.digest, (2, 1), reason="compile failed: ValueError")
    ledger.history.add(REGION)  # of the kind that was mended
    ledger.count_region(make_cast_template(), (), hit=False)
    count_compile(ledger, make_chain_template(), 1.0)
    writer.save()
    (run,) = RecordReader().runs()
    mended = replace(REGION, reason="compile failed: ValueError")
    assert RecordReader().regions(run.id) == (mended, BYPASSED, mended)
    assert sum(each.compiles for each in RecordReader().templates(run.id)) == 2
    assert run.stats == ledger.stats()
    assert {each.digest for each in RecordReader().templates(run.id)} == {each.digest for each in ledger.templates()}
    record_path().unlink()
    writer.save()
    assert not record_path().exists()


_JOB = """
from models import train_residual
stats = train_residual().stats()
print(stats.compiles, flush=True)
input()
"""


def _read_counts():
    """Returns the rows of `stats -v` that are counts: the job may add seconds even after its last compilation."""
    rows = [line.split() for line in get_output("stats", "-v").splitlines()]
    return [row for row in rows if row and row[-1].isdecimal()]


def test_a_job_that_goes_on_and_one_that_was_killed():
    before = train_residual().stats()
    environment = {**os.environ, "PYTHONPATH": import_path(HELPERS)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-W", "ignore", "-c", _JOB], env=environment, text=True, **pipes) as job:
        assert job.stdout is not None and int(job.stdout.readline()) == before.compiles > 0
        said = []

        def is_written():
            """True if the job's compilations are in the record, which it writes while its steps go on."""
            said.append(_read_counts())
            return ["compiles", str(before.compiles)] in said[-1]

        wait_until(is_written)
        job.send_signal(signal.SIGKILL)
    assert job.returncode == -signal.SIGKILL
    assert _read_counts() == said[-1]
    assert "\nIt is still running, or was killed after " in get_output("stats")
    run, first = RecordReader().runs()
    assert (run.pid, first.pid, run.models) == (job.pid, os.getpid(), ("Residual",))
    assert sum(each.compiles for each in RecordReader().templates(run.id)) == before.compiles


@pytest.mark.parametrize("threads", [True, False])
def test_what_many_templates_do_is_written_together_without_threads_at_the_end(monkeypatch, threads):
    timers = Mock(side_effect=None if threads else RuntimeError("can't start new thread"))
    monkeypatch.setattr(threading.Timer, "start", lambda timer: timers(timer))
    writer = recorder.RecordWriter(ledger := Ledger())
    for number in range(5):
        ledger.history.begin_trace()
        ledger.emit("program made", model=f"model {number}")
        writer.append()
    if threads:
        timers.call_args.args[0].function()
        assert timers.call_count == 1
    else:
        writer.end()
    (run,) = RecordReader().runs()
    assert (run.stats.programs_made, run.ended) == (5, not threads)


def test_counts_after_the_last_save_are_written_at_exit_and_those_of_a_forked_child_are_not():
    script = """
import gc, os, sys
from fusioncache.cache.cache import Cache
from recorded_templates import count_compile, make_chain_template
def main():
    cache = Cache()
    cache.ledger.count_region(make_chain_template(), (3,), hit=False)
    cache.write_record()
    child = os.fork()
    if child == 0:
        cache.ledger.count_region(make_chain_template(), (5,), hit=True)
        cache.write_record()
        sys.exit()
    assert os.waitpid(child, 0)[1] == 0
    count_compile(cache.ledger, make_chain_template(), 2.5)
main()
gc.collect()
"""
    environment = {**os.environ, "PYTHONPATH": import_path(HELPERS)}
    command = [sys.executable, "-W", "error::RuntimeWarning", "-c", script]
    done = subprocess.run(command, env=environment, cwd=ROOT, text=True, capture_output=True)
    assert (done.returncode, done.stderr) == (0, "")
    (run,) = RecordReader().runs()
    assert (run.stats.regions, run.stats.compiles, run.stats.compile_seconds, run.ended) == (1, 1, 2.5, True)


def test_a_cache_in_use_is_not_kept_alive_by_its_record():
    cache = Cache()
    cache.ledger.count_region(make_chain_template(), (), hit=False)
    cache.write_record()
    gone = weakref.ref(cache)
    del cache
    gc.collect()
    assert gone() is None


TEXTS, NUMBERS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8), st.integers(0, 2**63 - 1)
OF_TYPE = {
    **{str: TEXTS, str | None: st.none() | TEXTS, int: NUMBERS, int | None: st.none() | NUMBERS},
    **{bool: st.booleans(), tuple[int, ...]: st.lists(NUMBERS, max_size=2).map(tuple)},
}


def build(kind, /, **given):
    """Returns a strategy for a class: fields that are not given have any value. Registers it for fields of others."""
    types = get_type_hints(kind)
    strategy = st.builds(kind, **{name: given[name] if name in given else OF_TYPE[types[name]] for name in types})
    OF_TYPE.update({kind: strategy, tuple[kind, ...]: st.lists(strategy, max_size=3).map(tuple)})
    return strategy


PLACE = {"model": st.just("GPT"), "trace": st.sampled_from(["forward", "backward"]), "trace_number": st.just(7)}
for each in (Line, Source, PlanCost, PeakRecord, BoundRecord):
    build(each)
build(FlightRecord, kind=st.sampled_from(["gather", "reduce"]), start=st.integers(0, 1), end=st.integers(2, 3))
REGIONS = build(RegionRecord, **PLACE, outcome=st.sampled_from(["hit", "miss", "bypass"]))
CHOICES = build(ChoiceRecord, **PLACE)
CALLS = {"calls": st.tuples(TEXTS, TEXTS, TEXTS, TEXTS), "alive": st.tuples(NUMBERS, NUMBERS, NUMBERS, NUMBERS)}
PLACEMENTS = build(PlacementRecord, **PLACE, **CALLS)
ONE, STREAM = (replace(record, trace_number=7) for record in (REGION, CHOICE))


@given(st.lists(REGIONS, max_size=5), st.lists(CHOICES, max_size=3), st.lists(PLACEMENTS, max_size=2))
def test_what_comes_back_is_what_was_there(regions, choices, placements):
    content, given = encode_regions(regions, choices, placements), (regions, choices, placements)
    kept = decode_regions(content)
    stored = [tuple(replace(each, model=None, trace_number=0) for each in kind) for kind in given]
    assert [kept.regions, kept.choices, kept.placements] == stored
    assert encode_regions(kept.regions, kept.choices, kept.placements) == content


@pytest.mark.parametrize("case", Path(__file__).with_name("refused_fields.txt").read_text().splitlines())
def test_any_other_field_is_refused(case):
    place, _, fields = case.partition(" ")
    content = json.loads(encode_regions([ONE], [STREAM], [make_placement(model="GPT", trace_number=7)]))
    (content if place == "all" else content["kept"][place][0]).update(json.loads(fields))
    with pytest.raises(ValueError, match=r"regions|a placement"):
        decode_regions(json.dumps(content).encode())
