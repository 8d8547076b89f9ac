"""What a ledger counts as saved, without a clock, and what a notebook shows of its counts."""

import sys

import pytest
from recorded_templates import count_compile, count_load, make_cast_template, make_full_ledger, make_ledger
from report_records import HOSTILE

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


def test_stats_are_a_table_with_the_reasons():
    ledger = make_full_ledger()
    ledger.emit("program refused", reason="a lock")
    ledger.count("start_seconds", 12.25, of="TorchInductor")
    text = ledger.stats()._repr_html_()
    for name, value in (
        *(("hits", "3"), ("misses", "2"), ("saved_seconds", "6.090"), ("bypasses: unknown op", "2")),
        *(("unkept: a number among its inputs", "1"), ("programs_refused: a lock", "1")),
        ("start_seconds: TorchInductor", "12.250"),
    ):
        assert f"<tr><th>{name}</th><td>{value}</td></tr>" in text
    assert "programs_loaded" not in text  # of the others what is not 0


def test_templates_are_one_table_and_each_is_one():
    templates = make_full_ledger().templates()
    assert templates == tuple(templates) and isinstance(templates, tuple) and sys.getsizeof(templates) < 500
    assert templates._repr_html_().count("<tr>") == 3
    assert f"<td>{templates[1].digest[:12]}</td>" in templates[1]._repr_html_()
    assert templates[1]._repr_html_().count("<tr>") == 2


def test_every_text_is_escaped():
    ledger = make_ledger(make_cast_template(name=HOSTILE))
    ledger.count_bypass(HOSTILE)
    for shown in (ledger.stats(), ledger.templates()):
        assert "<script>" not in shown._repr_html_()
        assert "&lt;script&gt;alert(1)&lt;/script&gt;&quot;&#x27;&amp;\\x1b" in shown._repr_html_()
