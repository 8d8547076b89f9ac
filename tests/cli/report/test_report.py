"""The report: its texts are escaped, it needs no other file, and how much it contains.

``tests/cli/golden/session-report.txt`` contains the texts of reports of several runs.
"""

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import fields, replace
from pathlib import Path

import pytest
import thunder
import thunder.distributed
import torch
from commands import save_run
from models import compile_with
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
from torch.testing._internal.distributed.fake_pg import FakeStore

import fusioncache
from fusioncache.cli.picture import picture_of, svg_text
from fusioncache.cli.report import Contents, Grid, ReportTemplate, cut_slices, make_grids
from fusioncache.ir import Const, Graph, Op, Ref, TensorType
from fusioncache.observe.record.observations import Line, Phases, RegionRecord
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


def test_no_text_becomes_markup(monkeypatch):
    page = Page.of(save_hostile_run(monkeypatch))
    assert page.tags.count("script") == page.tags.count("style") == 1
    assert "<script>alert" not in page.html and HOSTILE not in page.text and page.text.count(SHOWN) > 10
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", page.html)
    assert "49" not in page.section("bypasses")
    assert [page.section("plans").count(part) for part in ("✓ chosen", 'chosen"><th scope="row">&lt;script')] == [1, 1]
    assert {link.removeprefix("#") for link in page.links if link.startswith("#")} <= set(page.ids)
    assert "signed by &lt;script&gt;" in page.section("summary")
    for name in ("summary", "map", "templates", "misses", "bypasses", "plans", "collectives"):
        assert "&lt;script&gt;alert(1)&lt;/script&gt;&#34;&#39;&amp;\\x1b[31m\\x00" in page.section(name), name


def test_what_cannot_be_read_as_a_graph_is_shown_as_text_and_a_deep_model_is_whole():
    stats = TemplateStats("odd", "0" * 64, 1, 1, 0, ((),), 0, 0.0, 0, 0.0, 0.0, (("ops", "<no op>"),))
    page = Page.of(Contents(make_run(), (ReportTemplate(1, stats, (), None),), (), ()))
    assert "cannot be read as a graph" in page.text
    assert "&lt;no op&gt;" in page.section("templates")
    page = Page.of(Contents(make_run(), (), tuple(make_places(*make_deep_model(64, 2))), ()))
    assert sum(link.startswith("#r") for link in page.links) == 256


def test_phases_add_up_to_the_whole_bar_each_in_a_colour_of_its_own():
    found = cut_slices(Phases(tracing=1.0, compiling=2.5, loading=0.0, first_execution=0.5))
    assert [(item["start"], item["share"]) for item in found] == [(0, 0.25), (0.25, 0.625), (0.875, 0), (0.875, 0.125)]
    assert [item["share"] for item in cut_slices(Phases(tracing=0.0))] == [0.0] and cut_slices(Phases()) == []
    found = cut_slices(Phases(**{field.name: 1.0 for field in fields(Phases)}))
    style = Page.of(Contents(make_run(), (), (), ())).html
    assert len({item["colour"] for item in found}) == len(found)
    assert all(f".phases rect.k{item['colour']} " in style and f".swatch.k{item['colour']} " in style for item in found)


def draw(grid: Grid) -> list[str]:
    """Returns a line for each row: its label, and the regions of each side by number."""
    lines = []
    for row in grid.rows:
        sides = [" ".join("." if place is None else str(place.number) for place in side) for side in row.sides]
        lines.append(f"{row.label}: {' | '.join(sides)}")
    return lines


def read_region(number: int, text: str) -> RegionRecord:
    """Returns a region of ``module:line``, of the layer that the module names, or of ``module backward``."""
    module, _, trace = text.partition(" ")
    module, _, line = module.partition(":")
    layer = next((int(part) for part in module.split(".") if part.isdecimal()), None)
    region = make_region_record(number, module, layer, trace or "forward")
    if line:
        region = replace(region, source=replace(region.source, lines=(Line("/home/me/model.py", int(line)),)))
    return region


@pytest.mark.parametrize("case", Path(__file__).with_name("grids.txt").read_text().split("\n\n## "))
def test_regions_stand_in_rows_of_layers(case):
    _, regions, expected = (part.splitlines() for part in case.split("\n\n"))
    (grid,) = make_grids(make_places(*(read_region(number, text) for number, text in enumerate(regions))))
    assert [f"> {line}".rstrip() for line in draw(grid)] == expected


def test_each_compilation_has_a_map_of_its_own():
    other = make_region_record(1, trace_number=1, model="Other")
    grid, second = make_grids(make_places(*make_deep_model(3, 2), other, make_region_record(2, None)))
    assert (grid.model, grid.regions) == ("Model", 13)
    assert (second.model, second.regions) == ("Other", 1)
    assert make_grids([]) == ()


def test_a_run_leaves_behind_what_its_transform_says(request):
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)  # collectives do nothing
    request.addfinalizer(torch.distributed.destroy_process_group)
    cache = fusioncache.Cache(store=False)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8))
    jitted = fusioncache.distributed.tensor_parallel(
        model, column=["0"], row=["2"], cache=cache, backend="eager", jobs=0, programs=False
    )
    jitted(torch.ones(4, 8, requires_grad=True)).sum().backward()
    (transform,) = (one for one in jitted._lc_transforms if isinstance(one, fusioncache.FusionCache))
    cache.write_record()
    found = read_newest().placements
    assert [placement.trace for placement in found] == ["forward", "backward"]
    for recorded, placement in zip(found, transform.placements(), strict=True):
        assert len(recorded.flights) == placement.collectives == 1
        assert recorded.after.alive == placement.after().alive == max(recorded.alive)
        assert len(recorded.calls) == len(placement.schedule.steps)
        assert [flight.name for flight in recorded.flights] == ["all_reduce SUM float32 (4, 8)"]
        assert recorded.bounds[0].bound == placement.bounds.reducing and recorded.model == "Sequential"


def test_placements_of_a_filled_in_program_have_its_number(request, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "0")
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    request.addfinalizer(torch.distributed.destroy_process_group)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8))
    compiled, transform = compile_with(model, cache=fusioncache.Cache(store=True), jobs=0)
    shared = thunder.distributed.ddp(compiled)
    for rows in (4, 6, 8, 10):
        shared(torch.ones(rows, 8)).sum().backward()
    assert transform.stats().programs_filled == 2
    transform.cache.write_record()
    found = [(each.model, each.trace_number) for each in read_newest().placements]
    assert found == [("Sequential", number) for number in range(4)]


def test_every_text_is_escaped():
    vector = TensorType("float32", (4,), "cpu")
    op = Op("prims.<script>", (Ref(0), Const("str", 'a"\\b\n</text>')), (vector,))
    picture = picture_of(Graph((vector,), (op,), (1,)))
    ElementTree.fromstring(svg_text(picture, "x"))
    assert "<script>" not in svg_text(picture, "x")
