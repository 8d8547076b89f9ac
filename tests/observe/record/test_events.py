"""Events as they happen: log records, and the lines of a file that processes share, agree with the counts.

Also the saved seconds, without a clock, and the counts as a notebook shows them.
"""

import io
import json
import logging
import os
import time
import warnings
from collections import Counter
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import pytest
from recorded_templates import (
    count_compile,
    count_load,
    make_cast_template,
    make_chain_template,
    make_full_ledger,
    make_ledger,
)
from report_records import HOSTILE
from store_contents import fork, wait_for

import fusioncache
from fusioncache.observe.record.events import SCHEMA, Event, EventFile, EventStream, open_log, publish
from fusioncache.observe.record.ledger import Ledger, repeats_of
from fusioncache.observe.record.observations import ThunderCost
from fusioncache.observe.record.stats import Stats
from fusioncache.process.settings import LOG
from fusioncache.template.key import make_key

CHAIN = make_chain_template()
CAST = make_cast_template()
EAGER = replace(CAST, key=make_key(CAST.graph, {"backend": "eager"}))


@pytest.fixture
def file(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv(LOG.name, str(tmp_path / "events.jsonl"))
    return tmp_path / "events.jsonl"


def events(file: Path) -> list[Event]:
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert {line.pop("schema") for line in lines} <= {SCHEMA}
    return [Event(**line) for line in lines]


def check(told: list[Event], stats: Stats) -> None:
    """Asserts that there is one event for each count, and no other."""
    counts = Counter(event.what for event in told)
    untouched = sum(event.what == "bypass" and event.template is None for event in told)
    assert counts["hit"] + counts["miss"] + untouched == stats.regions
    assert len({event.digest for event in told if event.what in ("hit", "miss")}) == stats.templates
    made = (stats.hits, stats.misses, stats.compiles, stats.loads)
    assert tuple(counts[what] for what in ("hit", "miss", "compile", "load")) == made
    refused = ("program refused", stats.programs_refused)
    for what, reasons in (("bypass", stats.bypasses), ("unkept", stats.unkept), refused):
        assert Counter(event.reason for event in told if event.what == what) == reasons
    assert (counts["program loaded"], counts["program made"]) == (stats.programs_loaded, stats.programs_made)
    for what, seconds in (("compile", stats.compile_seconds), ("load", stats.load_seconds)):
        assert sum(event.seconds for event in told if event.what == what) == pytest.approx(seconds)


def test_each_thing_is_told_once_by_the_ledger_at_the_root(file):
    parent = Ledger(log=EventFile(file))
    ledger = Ledger(Ledger(parent))
    before = time.time()
    ledger.count_region(CHAIN, (3,), hit=True)
    ledger.count_region(EAGER, (), hit=False)
    count_compile(ledger, EAGER, 0.125)
    count_load(ledger, EAGER, 0.25)
    ledger.count_bypass("unknown op")
    ledger.count_bypass("compile failed: ValueError", CHAIN)
    ledger.emit("unkept", reason="a number among its inputs")
    ledger.count_program_loaded("GPT", 0.5, 8.0)
    ledger.emit("program made", model=None)
    ledger.emit("program refused", reason="a lock has no value to compare")
    told = events(file)
    check(told, parent.stats())
    assert all(before <= event.time <= time.time() and event.pid == os.getpid() for event in told)
    chain, cast = ((template.name, template.key.digest) for template in (CHAIN, EAGER))
    fields = [list(asdict(event).values())[2:] for event in told]
    assert fields == [
        ["hit", *chain, [3], None, None, None, None],
        ["miss", *cast, [], None, None, "eager", None],
        ["compile", *cast, None, None, 0.125, "eager", None],
        ["load", *cast, None, None, 0.25, "eager", None],
        ["bypass", None, None, None, "unknown op", None, None, None],
        ["bypass", *chain, None, "compile failed: ValueError", None, None, None],
        ["unkept", None, None, None, "a number among its inputs", None, None, None],
        ["program loaded", None, None, None, None, 0.5, None, "GPT"],
        ["program made", None, None, None, None, None, None, None],
        ["program refused", None, None, None, "a lock has no value to compare", None, None, None],
    ]


@pytest.mark.parametrize(("level", "hits"), [(logging.DEBUG, 3), (logging.INFO, 0)])
def test_log_records_have_a_line_for_people_and_the_fields(caplog, level, hits):
    caplog.set_level(level, logger="fusioncache.events")
    stats = make_full_ledger().stats()
    assert sum(record.levelno == logging.DEBUG for record in caplog.records) == hits
    assert all(record.levelno == (logging.DEBUG if record.what == "hit" else logging.INFO) for record in caplog.records)
    fields = ("time", "pid", "what", "template", "digest", "arities", "reason", "seconds", "backend")
    told = [Event(**{name: getattr(record, name) for name in fields}) for record in caplog.records]
    assert [record.getMessage() for record in caplog.records] == [str(event) for event in told]
    assert not hits or f"hit {CHAIN.name} (arities 2)" in caplog.messages
    if hits:
        check(told, stats)


def test_processes_share_a_file(file):
    file.write_text('{"schema": 1, "time": 0.0, "pid": 0, "what": "unkept"}\n')

    def work(number):
        log = open_log()
        for _ in range(500):
            publish(log, "bypass", reason=f"{number}" * 300)

    pids = {number: fork(partial(work, number)) for number in (1, 2)}
    assert [wait_for(pid) for pid in pids.values()] == [0, 0]
    first, *told = events(file)
    assert first.what == "unkept"  # earlier lines stay
    expected = {(pid, f"{number}" * 300): 500 for number, pid in pids.items()}
    assert Counter((event.pid, event.reason) for event in told) == expected


@pytest.mark.parametrize("place", ["", "missing/events.jsonl", "a pipe that is not read"])
def test_a_file_that_cannot_be_written_costs_one_warning_and_is_not_tried_again(monkeypatch, tmp_path, place):
    monkeypatch.setenv(LOG.name, str(tmp_path / place))
    if "pipe" in place:
        os.mkfifo(tmp_path / place)
    ledger = fusioncache.Cache(record=False).ledger
    with pytest.warns(RuntimeWarning, match=f"{tmp_path / place} cannot be written .* set {LOG.name} to a file"):
        ledger.count_region(CHAIN, (1,), hit=False)
    (tmp_path / "missing").mkdir()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ledger.count_region(CHAIN, (1,), hit=True)
    assert ledger.stats().regions == 2
    assert list(tmp_path.rglob("*.jsonl")) == []


@pytest.mark.parametrize(("stream", "rank"), [("stderr", None), ("stdout", "3")])
def test_what_takes_time_or_is_left_out_is_said_once_and_hits_and_misses_are_not(monkeypatch, capsys, stream, rank):
    monkeypatch.setenv(LOG.name, stream)
    if rank:
        monkeypatch.setenv("RANK", rank)
    ledger = fusioncache.Cache(record=False).ledger
    for hit in (False, True, True):
        ledger.count_region(EAGER, (), hit=hit)
    count_compile(ledger, EAGER, 1.25)
    count_load(ledger, CAST, 0.003)
    for _ in range(3):
        ledger.count_bypass("unknown op")
        ledger.count_bypass("compile failed: ValueError", EAGER)
        ledger.emit("unkept", reason="two\nlines\x1b[31m")
        ledger.emit("program refused", reason="a lock has no value")
    count_compile(ledger, EAGER, 1.25)
    ledger.count_program_loaded("GPT", 0.5, 8.0)
    ledger.emit("program made", model=None)
    told = capsys.readouterr()
    assert (told.out if stream == "stderr" else told.err) == ""
    prefix = "fusioncache [rank 3]: " if rank else "fusioncache: "
    assert [line.removeprefix(prefix) for line in getattr(told, stream[3:]).splitlines()] == [
        f"compile {CAST.name} in 1.25 s (eager)",
        f"load {CAST.name} in 3 ms",
        "bypass: unknown op",
        f"bypass {CAST.name}: compile failed: ValueError",
        "unkept: two\\nlines\\x1b[31m",
        "program refused: a lock has no value",
        f"compile {CAST.name} in 1.25 s (eager)",
        "program loaded GPT in 500 ms",
        "program made",
    ]


@pytest.mark.parametrize("stream", [None, "closed"])
def test_a_stream_that_is_gone_costs_nothing(monkeypatch, caplog, stream):
    caplog.set_level(logging.INFO, "fusioncache.events")
    gone = stream and io.StringIO()
    if gone:
        gone.close()
    monkeypatch.setattr("sys.stderr", gone)
    publish(EventStream("stderr"), "unkept", reason="one")
    assert [record.what for record in caplog.records] == ["unkept"]  # the logger gets it nevertheless


def test_hits_and_loads_save_no_more_than_what_thunder_alone_spends():
    parent = Ledger()
    ledger = Ledger(parent)
    for hit in (False, True, True):
        ledger.count_region(CAST, (), hit=hit)
    count_compile(ledger, CAST, 1.0, ThunderCost(1.25, 0.125))
    assert ledger.stats().saved_seconds == parent.stats().saved_seconds == 0.25 + 2 * 0.125
    other = Ledger(parent)  # a second model
    other.count_region(CAST, (), hit=True)
    assert (other.stats().saved_seconds, parent.stats().saved_seconds) == (0.125, 0.625)
    ledger = make_ledger()
    for hit in (False, True):
        ledger.count_region(CAST, (), hit=hit)
    count_load(ledger, CAST, 0.25, 2.0, ThunderCost(2.5, 0.5))
    assert ledger.stats().saved_seconds == 2.5 - 0.25 + 0.5  # a load saves a compile minus its own seconds


@pytest.mark.parametrize(
    ("hits", "arities", "executables", "expected"),
    [
        *((0, 1, 0, (0, 1)), (3, 1, 1, (3, 1))),
        (3, 1, 2, (3, 1)),  # a fold and a core
        *((3, 4, 4, (0, 4)), (7, 4, 4, (4, 4))),  # each arity was compiled here
        (3, 4, 2, (3, 1)),  # folds serve all arities
    ],
)
def test_the_first_region_of_each_arity_that_was_compiled_saves_nothing(hits, arities, executables, expected):
    assert repeats_of(hits, arities, executables) == expected


def test_what_fusioncache_itself_takes_is_taken_off():
    ledger = Ledger()
    ledger.count_program_loaded("GPT", 0.5, 8.0)
    ledger.count("program_seconds", 0.375, of="key")
    ledger.count("program_seconds", 0.125, of="load")
    ledger.count("canonicalize_seconds", 0.25)
    assert ledger.stats().saved_seconds == 8.0 - 0.5 - 0.25


def test_a_notebook_shows_tables_of_counts_and_of_templates_in_which_each_text_is_escaped():
    text = make_full_ledger().stats()._repr_html_()
    assert "<tr><th>hits</th><td>3</td></tr>" in text and "programs_loaded" not in text  # which is 0
    ledger = make_ledger(make_cast_template(name=HOSTILE))
    ledger.count_bypass(HOSTILE)
    for shown in (ledger.stats(), ledger.templates()):
        assert "<script>" not in shown._repr_html_()
        assert "&lt;script&gt;alert(1)&lt;/script&gt;&quot;&#x27;&amp;\\x1b" in shown._repr_html_()
