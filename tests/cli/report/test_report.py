"""The report: that every text in it is escaped, that it needs nothing else, and how much it holds.

``tests/cli/golden/session-report.txt`` has what reports of several runs say.
"""

import re
import tomllib
from dataclasses import fields

import pytest
from commands import save_run
from report_records import (
    HOSTILE,
    SHOWN,
    Page,
    make_deep_model,
    make_places,
    make_run,
    read_newest,
    save_hostile_run,
)
from repository import ROOT

from fusioncache.cli.report import Contents, ReportTemplate, cut_slices
from fusioncache.observe.record.observations import Phases
from fusioncache.observe.record.stats import TemplateStats


def test_it_is_one_file_in_which_every_link_leads_somewhere(monkeypatch):
    save_run(monkeypatch)
    page = Page.of(read_newest())
    assert page.html == Page.of(read_newest()).html
    assert len(page.ids) == len(set(page.ids))
    assert {link.removeprefix("#") for link in page.links} <= set(page.ids)
    assert not {"link", "img", "iframe", "object", "base", "form"} & set(page.tags)
    assert page.tags.count("script") == page.tags.count("style") == 1
    assert "default-src 'none'" in page.html
    assert not re.search(r"https?:|@import|url\(", page.html.replace("http://www.w3.org/2000/svg", ""))
    for cell in ('cell once first" id="c0" href="#t2" data-r="0" data-t="2"', 'cell k0 lap0 fallback" id="c5"'):
        assert f'<a class="{cell}' in page.section("map")


def test_a_run_of_which_nothing_is_known_says_so():
    nothing = Page.of(Contents(make_run(unrecorded=7), (), (), ())).text
    said = ("There was no region to share. Thunder found nothing to fuse", "has no templates", "no misses")
    assert all(part in nothing for part in (*said, "were not measured", "No template was compiled", "A run"))
    assert "had no room for 7 regions" in nothing and "No two templates are the same" in nothing


def test_its_pages_are_installed():
    given = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    installed = {
        path for name, globs in given.items() for glob in globs for path in (ROOT / name.replace(".", "/")).glob(glob)
    }
    assert {path for path in (ROOT / "fusioncache").rglob("*.*") if path.suffix not in (".py", ".pyc")} <= installed


def test_no_text_becomes_markup(monkeypatch):
    page = Page.of(save_hostile_run(monkeypatch))
    assert page.tags.count("script") == page.tags.count("style") == 1
    assert "<script>alert" not in page.html and HOSTILE not in page.text and page.text.count(SHOWN) > 10
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", page.html)
    assert "49" not in page.section("bypasses")
    assert (
        page.section("plans").count("✓ chosen")
        == page.section("plans").count('chosen"><th scope="row">&lt;script')
        == 1
    )
    assert {link.removeprefix("#") for link in page.links if link.startswith("#")} <= set(page.ids)
    assert "signed by &lt;script&gt;" in page.section("summary")
    for name in ("summary", "map", "templates", "misses", "bypasses", "plans", "collectives"):
        assert "&lt;script&gt;alert(1)&lt;/script&gt;&#34;&#39;&amp;\\x1b[31m\\x00" in page.section(name), name


def test_what_cannot_be_read_as_a_graph_is_shown_as_text():
    stats = TemplateStats("odd", "0" * 64, 1, 1, 0, ((),), 0, 0.0, 0, 0.0, 0.0, (("ops", "<no op>"),))
    page = Page.of(Contents(make_run(), (ReportTemplate(1, stats, (), None),), (), ()))
    assert "cannot be read as a graph" in page.text
    assert "&lt;no op&gt;" in page.section("templates")


def test_phases_add_up_to_the_whole_bar_each_in_a_colour_of_its_own():
    found = cut_slices(Phases(tracing=1.0, compiling=2.5, loading=0.0, first_execution=0.5))
    assert [(item["title"], item["start"], item["share"]) for item in found] == [
        ("tracing", 0.0, 0.25),
        ("compiling", 0.25, 0.625),
        ("loading", 0.875, 0.0),
        ("first execution", 0.875, 0.125),
    ]
    assert [item["share"] for item in cut_slices(Phases(tracing=0.0))] == [0.0] and cut_slices(Phases()) == []
    found = cut_slices(Phases(**{field.name: 1.0 for field in fields(Phases)}))
    style = Page.of(Contents(make_run(), (), (), ())).html
    assert len({item["colour"] for item in found}) == len(found)
    assert all(f".phases rect.k{item['colour']} " in style and f".swatch.k{item['colour']} " in style for item in found)


@pytest.mark.parametrize(
    ("share", "text"), [(0, "0%"), (0.0001, "&lt; 0.1%"), (0.0042, "0.4%"), (0.0998, "10%"), (0.5, "50%")]
)
def test_shares(share, text):
    found = Phases(tracing=share, fusing=1 - share)
    assert f'<td class="n">{text}</td>' in Page.of(Contents(make_run(phases=found), (), (), ())).section("time")


def test_a_deep_model_is_whole():
    page = Page.of(Contents(make_run(), (), tuple(make_places(*make_deep_model(128, 5))), ()))
    assert sum(link.startswith("#r") for link in page.links) == 1280
