"""The report: what it says, that every text in it is escaped, and that it needs nothing else."""

import re
import tomllib
from dataclasses import fields, replace

import pytest
from commands import CAST, CHAIN, save_run
from recorded_templates import make_cast_template, make_ledger, make_scaled_template, save_ledger
from report_records import (
    HOSTILE,
    SHOWN,
    Page,
    make_deep_model,
    make_places,
    make_region_record,
    make_run,
    read_newest,
    save_hostile_run,
)
from repository import ROOT

from fusioncache.cli.comparison import explain_templates
from fusioncache.cli.report import Contents, ReportTemplate, cut_slices
from fusioncache.humanize import format_duration
from fusioncache.observe.record.observations import ANY_SIZES, Alone, Phases
from fusioncache.observe.record.stats import TemplateStats


def test_it_is_one_file_in_which_every_link_leads_somewhere(monkeypatch):
    save_run(monkeypatch)
    page = Page(read_newest())
    assert len(page.ids) == len(set(page.ids))
    assert {link.removeprefix("#") for link in page.links} <= set(page.ids)
    assert not {"link", "img", "iframe", "object", "base", "form"} & set(page.tags)
    assert page.tags.count("script") == page.tags.count("style") == 1
    assert "default-src 'none'" in page.html
    assert not re.search(r"https?:|@import|url\(", page.html.replace("http://www.w3.org/2000/svg", ""))


def test_it_says_what_came_from_a_remote_and_what_was_refused(monkeypatch):
    ledger = make_ledger(CAST)
    ledger.count("pulled", 12, of=f"ci {HOSTILE}")
    ledger.count("pulled_seconds", 40.5)
    ledger.count("pull_refused", of="not signed")
    save_ledger(monkeypatch, ledger)
    page = Page(read_newest())
    assert "From the remote came 12 entries signed by ci " in page.html and HOSTILE not in page.html
    assert "took them <b>40.5 s</b> to make" in page.html
    assert '1 request was answered with <a href="#pull-refused">nothing that is used</a>: not signed.' in page.html
    assert {link.removeprefix("#") for link in page.links} <= set(page.ids)


def test_the_same_run_gives_the_same_file(monkeypatch):
    save_run(monkeypatch)
    assert Page(read_newest()).html == Page(read_newest()).html


@pytest.mark.parametrize(
    ("section", "text"),
    [
        ("summary", "7 regions of the model came down to 2 templates"),
        (
            "summary",
            "Compiling took <b>2.12 s</b>, loading <b>3.91 ms</b>; <b>about 6.09 s saved</b>",
        ),
        (
            "summary",
            '1 executable is <a href="#unkept">not stored</a>, so each process compiles it: a number among its',
        ),
        ("summary", "What was saved is an estimate"),
        ("summary", "1 template</a> is used by one region only"),
        ("summary", "<dt>device</dt><dd><span>cuda</span></dd>"),
        ("map", '<a class="cell once first" id="c0" href="#t2" data-r="0" data-t="2" aria-label="blocks.0, '),
        ("map", f'aria-label="blocks.2, forward: template 1, {CHAIN.name}, hit"><span>1</span></a>'),
        (
            "map",
            'href="#r4" data-r="4" aria-label="blocks.4, forward: bypass"><span>\N{EN DASH}</span></a>',
        ),
        ("map", '<a class="cell k0 lap0 fallback" id="c5"'),
        ("templates", f"<code>{CAST.key.digest}</code>"),
        ("templates", '<a href="#c1" title="Show it in the map">nvFusion1</a>'),
        ("templates", '<span title="/home/me/model.py:31">me/model.py:31</span>'),
        ("templates", '<g class="op"><title>%2: float32[10, 10] cuda = prims.tanh(%1)</title>'),
        ("templates", "<span>%3: float32[10, 10] cuda = prims.mul(%2, constant0)</span></pre>"),
        ("misses", "It was the first of the run: there was nothing to share."),
        ("misses", "They differ in an op: op 1 (residual) here, none there, and in 2 other things."),
        ("bypasses", '<tr><th scope="row">unknown op</th><td class="n">2</td></tr>'),
        ("bypasses", "nvFusion7</a> blocks.7: compile failed: ValueError"),
        ("bypasses", '<tr><th scope="row">a number among its inputs</th><td class="n">1</td></tr>'),
        ("time", '<td class="n">94%</td>'),
        ("plans", "No residual stream had sums to plan for."),
    ],
)
def test_what_it_says(monkeypatch, section, text):
    save_run(monkeypatch)
    assert text in Page(read_newest()).section(section)


def test_a_run_of_which_little_is_known_says_so(monkeypatch):
    save_ledger(monkeypatch, make_ledger(make_cast_template()))
    text = Page(read_newest()).text
    said = ("has no regions of this run", "has none of its regions", "No region was bypassed", "The store holds all")
    assert all(part in text for part in said)
    nothing = Page(Contents(make_run(), (), (), ())).text
    said = ("There was no region to share. Thunder found nothing to fuse", "has no templates", "no misses")
    assert all(part in nothing for part in (*said, "were not measured", "No template was compiled", "A run"))


def test_what_the_record_had_no_room_for_is_told():
    assert "had no room for 7 regions" in Page(Contents(make_run(unrecorded=7), (), (), ())).text


def test_its_pages_are_installed():
    given = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    installed = {
        path for name, globs in given.items() for glob in globs for path in (ROOT / name.replace(".", "/")).glob(glob)
    }
    assert {path for path in (ROOT / "fusioncache").rglob("*.*") if path.suffix not in (".py", ".pyc")} <= installed


def test_no_text_becomes_markup(monkeypatch):
    page = Page(save_hostile_run(monkeypatch))
    assert page.tags.count("script") == page.tags.count("style") == 1
    assert "<script>alert" not in page.html
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", page.html)
    assert "49" not in page.section("bypasses")
    for name in ("summary", "map", "templates", "misses", "bypasses", "plans", "collectives"):
        assert "&lt;script&gt;alert(1)&lt;/script&gt;&#34;&#39;&amp;\\x1b[31m\\x00" in page.section(name), name


def test_every_text_is_shown_as_it_is(monkeypatch):
    page = Page(save_hostile_run(monkeypatch))
    assert page.text.count(SHOWN) > 10
    assert HOSTILE not in page.text


def test_what_cannot_be_read_as_a_graph_is_shown_as_text():
    stats = TemplateStats("odd", "0" * 64, 1, 1, 0, ((),), 0, 0.0, 0, 0.0, 0.0, (("ops", "<no op>"),))
    page = Page(Contents(make_run(), (ReportTemplate(1, stats, (), None),), (), ()))
    assert "cannot be read as a graph" in page.text
    assert "&lt;no op&gt;" in page.section("templates")


def test_a_miss_is_compared_with_what_was_known_by_then(monkeypatch):
    save_run(monkeypatch)
    one, other = explain_templates([each.stats for each in read_newest().met])
    assert (one.template.digest, one.nearest and one.nearest.digest) == (CHAIN.key.digest, CAST.key.digest)
    assert (other.template.digest, other.nearest) == (CAST.key.digest, None)


def test_phases_add_up_to_the_whole_bar():
    found = cut_slices(Phases(tracing=1.0, compiling=2.5, loading=0.0, first_execution=0.5))
    assert [(item["title"], item["start"], item["share"]) for item in found] == [
        ("tracing", 0.0, 0.25),
        ("compiling", 0.25, 0.625),
        ("loading", 0.875, 0.0),
        ("first execution", 0.875, 0.125),
    ]
    assert len({item["colour"] for item in found}) == 4


def test_every_phase_has_a_colour_of_its_own():
    found = cut_slices(Phases(**{field.name: 1.0 for field in fields(Phases)}))
    style = Page(Contents(make_run(), (), (), ())).html
    assert len({item["colour"] for item in found}) == len(found)
    assert all(f".phases rect.k{item['colour']} " in style and f".swatch.k{item['colour']} " in style for item in found)


def test_what_loading_whole_programs_took_out(monkeypatch):
    ledger = make_ledger(make_cast_template())
    for part, seconds in (("key", 0.25), ("reads", 0.125), ("record", 4.0)):
        ledger.count("program_seconds", seconds, of=part)
    ledger.count_program_loaded("GPT", 0.375, 37.5)
    ledger.emit("program refused", reason="a lock has no value to compare")
    save_ledger(monkeypatch, ledger)
    page = Page(read_newest())
    time = page.section("time")
    assert 'loading programs</th><td class="n">375 ms' in time and 'storing programs</th><td class="n">4 s' in time
    assert "1 program was loaded from the store" in time and '<td class="n">37.5 s</td>' in time
    assert "Of loading: key 250 ms, reads 125 ms." in time
    assert '1 program was <a href="#loaded">loaded from the store</a>' in page.section("summary")
    assert '<tr><th scope="row">a lock has no value to compare</th><td class="n">1</td></tr>' in page.section(
        "bypasses"
    )


def test_templates_that_differ_in_sizes_stand_together(monkeypatch):
    alike = [make_scaled_template(2, 64), make_scaled_template(2, 96), make_scaled_template(3, 200)]
    ledger = make_ledger(*alike[:2], make_cast_template())
    ledger.count_region(alike[2], (), hit=False)
    ledger.count("generalizations")
    ledger.count_general_hit(alike[2], Alone(0.25, 0.25))
    ledger.count("reused_sizes")
    ledger.count("own_sizes", of="random numbers")
    regions = [make_region_record(number, digest=template.key.digest) for number, template in enumerate(alike)]
    ledger.history.add(regions[0], *(replace(region, plan=ANY_SIZES) for region in regions[1:]))
    save_ledger(monkeypatch, ledger)
    contents = read_newest()
    assert [each.is_general for each in contents.met] == [False, True, True, False]
    assert contents.run.stats.saved_seconds == contents.run.stats.general_saved_seconds == 0.25
    page = Page(contents).section("sizes")
    assert "served 1 executable without a compile, which saved about <b>250 ms</b>" in page
    assert "1 executable was called so often that code for its sizes alone was compiled as well" in page
    for name in ("dimension 0 of %0", "dimension 1 of %0"):
        assert f'<th scope="col" class="n">{name}</th>' in page
    rows = re.findall(r'<td class="n">(\d+)</td><td class="n">(\d+)</td><td>(\w+) sizes</td>', page)
    assert rows == [("2", "64", "these"), ("2", "96", "any"), ("3", "200", "any")]
    assert "<li>random numbers: 1</li>" in page
    assert "No two templates are the same" in Page(Contents(make_run(), (), (), ())).section("sizes")


def test_phases_without_a_second_in_them():
    assert [item["share"] for item in cut_slices(Phases(tracing=0.0))] == [0.0]
    assert cut_slices(Phases()) == []


def test_the_plan_that_was_chosen_is_marked(monkeypatch):
    plans = Page(save_hostile_run(monkeypatch)).section("plans")
    assert plans.count("✓ chosen") == 1
    assert re.search(r'class="chosen"><th scope="row">&lt;script', plans)
    assert '<td class="n">1.0 MB</td><td class="n">2.0 kB</td><td class="n">3</td>' in plans


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 ms"), (0.0123456, "12.3 ms"), (0.99949, "999 ms"), (0.9996, "1 s"), (2.5, "2.5 s"), (1234.5, "1,234 s")],
)
def test_seconds(seconds, text):
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("share", "text"), [(0, "0%"), (0.0001, "&lt; 0.1%"), (0.0042, "0.4%"), (0.0998, "10%"), (0.5, "50%")]
)
def test_shares(share, text):
    found = Phases(tracing=share, fusing=1 - share)
    assert f'<td class="n">{text}</td>' in Page(Contents(make_run(phases=found), (), (), ())).section("time")


def test_a_deep_model_is_whole():
    found = Contents(make_run(), (), tuple(make_places(*make_deep_model(128, 5))), ())
    page = Page(found)
    assert sum(link.startswith("#r") for link in page.links) == 1280
