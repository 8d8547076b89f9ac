"""The scaling plot of the report: from the benchmark's JSON to places in a picture."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from report_records import HOSTILE, SCALING, Page, make_run, make_scaling_result

from benchmarks.scaling.plot import title
from fusioncache.report.contents import Contents
from fusioncache.report.scaling import HEIGHT, WIDTH, plot, read_scaling


def test_points_are_read_by_mode_and_depth():
    found = read_scaling(
        json.dumps({**SCALING, "points": [*SCALING["points"], {"mode": "lru", "layers": 1, "error": "x"}]})
    )
    assert [(point.mode, point.layers, point.seconds) for point in found.points] == [
        ("uncached", 1, (4.0, 2.0)),
        ("uncached", 2, (8.0, 4.0)),
        ("cached", 1, (1.0, 0.5)),
        ("cached", 4, (2.0, 0.5)),
    ]
    assert found.title == title(SCALING) == "llama without recompute, forward and backward, nvfuser, 2 CPUs"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "no result"),
        ("[]", "no result"),
        ('{"points": []}', "no result"),
        (json.dumps(make_scaling_result()), "none of its points has seconds"),
        (json.dumps(make_scaling_result(("cached", 0, 1.0, 1.0))), "cannot be drawn"),
        (json.dumps(make_scaling_result(("cached", 1, float("nan"), 1.0))), "cannot be drawn"),
    ],
)
def test_what_cannot_be_plotted_is_refused(text, reason):
    with pytest.raises(ValueError, match=reason):
        read_scaling(text)


def test_both_axes_are_logarithmic_and_everything_is_inside():
    found = plot(read_scaling(json.dumps(SCALING)))
    first = {curve.label: [(x, y) for x, y, _ in curve.points] for curve in found.curves}
    (x1, y1), (x2, y2) = first["uncached: first step"]
    (x4, y4) = first["cached: first step"][1]
    assert x2 - x1 == pytest.approx(x4 - x2, abs=0.2)
    assert y1 - y2 == pytest.approx(y4 - y1, abs=0.2)  # 8, 4 and 2 seconds
    assert all(0 < x < WIDTH and 0 < y < HEIGHT for places in first.values() for x, y in places)
    assert [text for _, text in found.x_ticks] == ["1", "2", "4"]
    assert [text for _, text in found.y_ticks] == ["0.5", "1", "2", "5", "10"]


def test_labels_are_apart():
    places = sorted(curve.label_y for curve in plot(read_scaling(json.dumps(SCALING))).curves)
    assert all(low - high >= 14.9 for high, low in pairwise(places))


@pytest.mark.parametrize("seconds", [0.0, 1.0])
def test_one_point_alone_can_be_plotted(seconds):
    found = plot(read_scaling(json.dumps(make_scaling_result(("cached", 8, seconds, seconds)))))
    assert len(found.curves) == 2 and found.y_ticks


def test_it_is_in_the_report_and_escaped():
    scaling = read_scaling(json.dumps(make_scaling_result((HOSTILE, 1, 1.0, 1.0), model=HOSTILE)))
    page = Page(Contents(make_run(), (), (), ()), scaling)
    assert page.tags.count("script") == 1 and page.tags.count("polyline") == 2
    assert "#scaling" in page.links
    assert "scaling" not in Page(Contents(make_run(), (), (), ())).ids
