"""The map of a model: which region stands where."""

from collections.abc import Sequence
from dataclasses import replace

from report_records import make_deep_model, make_places, make_region_record

from fusioncache.cli.report import Grid, make_grids
from fusioncache.observe.record.observations import Line, RegionRecord


def drawn(grid: Grid) -> list[str]:
    """A line a row: its label, and the regions of each side by number."""
    lines = []
    for row in grid.rows:
        sides = [" ".join("." if place is None else str(place.number) for place in side) for side in row.sides]
        lines.append(f"{row.label}: {' | '.join(sides)}")
    return lines


def arrange(*regions: RegionRecord) -> Sequence[Grid]:
    return make_grids(make_places(*regions))


def of_line(number: int, line: int, module: str = "h.0", layer: int | None = 0) -> RegionRecord:
    region = make_region_record(number, module, layer)
    return replace(region, source=replace(region.source, lines=(Line("/home/me/model.py", line),)))


def test_layers_go_down_and_regions_across():
    (grid,) = arrange(*make_deep_model(3, 2))
    assert drawn(grid) == ["model.layers.0: 0 1 | 10 11", "model.layers.1: 2 3 | 8 9", "model.layers.2: 4 5 | 6 7"]
    assert grid.titles == (("part_0", "part_1"), ("part_1", "part_0"))
    assert (grid.regions, grid.model, grid.trace_number) == (12, "Model", 0)


def test_a_region_that_a_layer_has_not_leaves_its_column_empty():
    modules = ["h.0.norm", "h.0.mlp", "h.1.norm", "h.1.attn", "h.1.attn", "h.1.mlp", "h.2.mlp", "h.2.extra"]
    (grid,) = arrange(*(make_region_record(number, name, int(name[2])) for number, name in enumerate(modules)))
    assert grid.titles[0] == ("norm", "attn", "attn", "mlp", "extra")
    assert drawn(grid) == ["h.0: 0 . . 1 . | ", "h.1: 2 3 4 5 . | ", "h.2: . . . 6 7 | "]


def test_what_is_of_no_layer_stands_where_it_runs():
    names = ["embed", "h.0", "h.1", "head"]
    forward = [
        of_line(number, 7, name, int(name[2]) if name[:2] == "h." else None) for number, name in enumerate(names)
    ]
    backward = [make_region_record(4, "loss", None, "backward"), make_region_record(5, "h.1", 1, "backward")]
    (grid,) = arrange(*forward, *backward)
    assert drawn(grid) == ["embed: 0 | .", "h.0: 1 | .", "h.1: 2 | 5", "head: 3 | .", "loss: . | 4"]


def test_a_region_of_the_model_itself_has_the_row_of_its_line():
    (grid,) = arrange(*(of_line(number, line, "", None) for number, line in enumerate((7, 9, 7))))
    assert drawn(grid) == ["me/model.py:7: 0 2 | ", "me/model.py:9: 1 . | "]


def test_two_lists_of_layers_are_told_apart():
    names = ["encoder.layers.0.mlp", "encoder.layers.1.mlp", "decoder.layers.0.mlp"]
    (grid,) = arrange(*(make_region_record(number, name, int(name[15])) for number, name in enumerate(names)))
    assert drawn(grid) == ["encoder.layers.0: 0 | ", "encoder.layers.1: 1 | ", "decoder.layers.0: 2 | "]


def test_each_compilation_has_a_map_of_its_own():
    regions = [
        make_region_record(0, trace_number=0),
        make_region_record(1, trace_number=1, model="Other"),
        make_region_record(2, None, trace_number=0),
    ]
    found = arrange(*regions)
    assert [(grid.model, grid.regions) for grid in found] == [("Model", 2), ("Other", 1)]
    assert make_grids([]) == ()
