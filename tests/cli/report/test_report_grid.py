"""The map of a model: which region stands where."""

from dataclasses import replace

import pytest
from report_records import make_deep_model, make_places, make_region_record

from fusioncache.cli.report import Grid, make_grids
from fusioncache.observe.record.observations import Line, RegionRecord


def draw(grid: Grid) -> list[str]:
    """A line a row: its label, and the regions of each side by number."""
    lines = []
    for row in grid.rows:
        sides = [" ".join("." if place is None else str(place.number) for place in side) for side in row.sides]
        lines.append(f"{row.label}: {' | '.join(sides)}")
    return lines


def read_region(number: int, text: str) -> RegionRecord:
    """A region of ``module:line``, of the layer that the module names, or of ``module backward``."""
    module, _, trace = text.partition(" ")
    module, _, line = module.partition(":")
    layer = next((int(part) for part in module.split(".") if part.isdecimal()), None)
    region = make_region_record(number, module, layer, trace or "forward")
    if line:
        region = replace(region, source=replace(region.source, lines=(Line("/home/me/model.py", int(line)),)))
    return region


CASES = {
    "a region that a layer has not leaves its column empty": (
        ["h.0.norm", "h.0.mlp", "h.1.norm", "h.1.attn", "h.1.attn", "h.1.mlp", "h.2.mlp", "h.2.extra"],
        ["h.0: 0 . . 1 . | ", "h.1: 2 3 4 5 . | ", "h.2: . . . 6 7 | "],
    ),
    "what is of no layer stands where it runs": (
        ["embed:7", "h.0:7", "h.1:7", "head:7", "loss backward", "h.1 backward"],
        ["embed: 0 | .", "h.0: 1 | .", "h.1: 2 | 5", "head: 3 | .", "loss: . | 4"],
    ),
    "a region of the model itself has the row of its line": (
        [":7", ":9", ":7"],
        ["me/model.py:7: 0 2 | ", "me/model.py:9: 1 . | "],
    ),
    "two lists of layers are told apart": (
        ["encoder.layers.0.mlp", "encoder.layers.1.mlp", "decoder.layers.0.mlp"],
        ["encoder.layers.0: 0 | ", "encoder.layers.1: 1 | ", "decoder.layers.0: 2 | "],
    ),
}


@pytest.mark.parametrize(("regions", "expected"), CASES.values(), ids=CASES)
def test_regions_stand_in_rows_of_layers(regions, expected):
    (grid,) = make_grids(make_places(*(read_region(number, text) for number, text in enumerate(regions))))
    assert draw(grid) == expected


def test_each_compilation_has_a_map_of_its_own_with_layers_down_and_regions_across():
    other = make_region_record(1, trace_number=1, model="Other")
    grid, second = make_grids(make_places(*make_deep_model(3, 2), other, make_region_record(2, None)))
    assert draw(grid)[:3] == [
        "model.layers.0: 0 1 . | 10 11",
        "model.layers.1: 2 3 . | 8 9",
        "model.layers.2: 4 5 . | 6 7",
    ]
    assert grid.titles == (("part_0", "part_1", ""), ("part_1", "part_0"))
    assert (grid.regions, grid.model, grid.trace_number) == (13, "Model", 0)
    assert (second.model, second.regions) == ("Other", 1)
    assert make_grids([]) == ()
