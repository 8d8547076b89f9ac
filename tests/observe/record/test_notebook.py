"""What a notebook shows of stats and templates."""

import sys

from recorded_templates import make_cast_template, make_full_ledger, make_ledger
from report_records import HOSTILE


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
