"""What a notebook shows of stats and templates."""

import sys

from recorded_templates import make_cast_template, make_full_ledger, make_ledger
from report_records import HOSTILE


def test_stats_are_a_table():
    text = make_full_ledger().stats()._repr_html_()
    assert "<tr><th>hits</th><td>3</td></tr>" in text
    assert "<tr><th>saved_seconds</th><td>6.090</td></tr>" in text
    assert "<tr><th>bypasses: unknown op</th><td>2</td></tr>" in text
    assert "<tr><th>unkept: a number among its inputs</th><td>1</td></tr>" in text
    assert "<tr><th>misses</th><td>2</td></tr>" in text and "programs_loaded" not in text  # of the others what is not 0


def test_programs_that_are_refused_stand_in_it_with_their_reasons():
    ledger = make_full_ledger()
    ledger.emit("program refused", reason="a lock")
    assert "<tr><th>programs_refused: a lock</th><td>1</td></tr>" in ledger.stats()._repr_html_()


def test_templates_are_one_table_and_each_is_one():
    templates = make_full_ledger().templates()
    assert templates._repr_html_().count("<tr>") == 3
    assert f"<td>{templates[1].digest[:12]}</td>" in templates[1]._repr_html_()
    assert templates[1]._repr_html_().count("<tr>") == 2


def test_every_text_is_escaped():
    ledger = make_ledger(make_cast_template(name=HOSTILE))
    ledger.count_bypass(HOSTILE)
    for shown in (ledger.stats(), ledger.templates()):
        assert "<script>" not in shown._repr_html_()
        assert "&lt;script&gt;alert(1)&lt;/script&gt;&quot;&#x27;&amp;\\x1b" in shown._repr_html_()


def test_templates_are_a_tuple_like_any_other():
    templates = make_full_ledger().templates()
    assert templates == tuple(templates) and isinstance(templates, tuple)
    assert sys.getsizeof(templates) < 500
