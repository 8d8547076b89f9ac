"""What counts as saved: what Thunder alone would have spent, less what fusioncache took. No clock is read."""

import json

import pytest
from commands import get_output
from recorded_templates import count_compile, count_load, make_cast_template, save_ledger
from report_records import Page, read_newest

from fusioncache.observe.record.ledger import Ledger, repeats_of
from fusioncache.observe.record.observations import Alone

CAST = make_cast_template()


def test_hits_do_not_multiply_a_start():
    ledger = Ledger()
    ledger.count("start_seconds", 12.0, of="TorchInductor")
    for hit in (False, True, True, True):
        ledger.count_region(CAST, (), hit=hit)
    count_compile(ledger, CAST, 0.5)
    stats, (template,) = ledger.stats(), ledger.templates()
    assert (stats.saved_seconds, stats.compile_seconds, template.compile_seconds) == (1.5, 0.5, 0.5)
    assert stats.start_seconds == {"TorchInductor": 12.0}


def test_a_hit_saves_no_more_than_what_thunder_alone_spends_on_it():
    parent = Ledger()
    ledger = Ledger(parent)
    for hit in (False, True, True):
        ledger.count_region(CAST, (), hit=hit)
    count_compile(ledger, CAST, 1.0, Alone(1.25, 0.125))
    assert ledger.stats().saved_seconds == parent.stats().saved_seconds == 0.25 + 2 * 0.125
    other = Ledger(parent)  # a second model
    other.count_region(CAST, (), hit=True)
    assert (other.stats().saved_seconds, parent.stats().saved_seconds) == (0.125, 0.625)


def test_a_load_saves_a_compile_less_what_it_took():
    ledger = Ledger()
    for hit in (False, True):
        ledger.count_region(CAST, (), hit=hit)
    count_load(ledger, CAST, 0.25, 2.0, Alone(2.5, 0.5))
    assert ledger.stats().saved_seconds == 2.5 - 0.25 + 0.5


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
    ledger.count("collector_seconds", 1.5)
    assert ledger.stats().saved_seconds == 8.0 - 0.5 - 0.25 - 1.5


def test_record_report_and_stats_show_the_same(monkeypatch):
    ledger = Ledger()
    ledger.count_region(CAST, (), hit=False)
    ledger.count("start_seconds", 12.25, of="TorchInductor")
    count_compile(ledger, CAST, 0.5)
    ledger.count("canonicalize_seconds", 0.375)
    save_ledger(monkeypatch, ledger)
    saved = ledger.stats().saved_seconds
    data = json.loads(get_output("stats", "--json"))
    assert saved == data["saved_seconds"] == data["lifetime"]["saved_seconds"] == -0.375
    assert data["start_seconds"] == {"TorchInductor": 12.25} and data["phases"]["starting"] == 12.25
    text = get_output("stats")
    assert "one-time start of TorchInductor: 12.2 s\n" in text and "cost        about 375 ms: " in text
    assert "about 375 ms lost\n" in text.partition("\nall runs")[2]
    assert "one-time starts" in get_output("stats", "-v")
    summary = Page.of(read_newest()).section("summary")
    assert "<b>about 375 ms lost</b>" in summary and "One-time start of TorchInductor: <b>12.2 s</b>" in summary
    table = ledger.stats()._repr_html_()
    assert "<th>start_seconds: TorchInductor</th><td>12.250</td>" in table and "<td>-0.375</td>" in table
