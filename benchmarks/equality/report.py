"""The comparison of models as a table."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.common.report import console, make_table, print_line
from benchmarks.common.results import Point
from benchmarks.zoo.comparison import name_point, print_error

_COUNTS = ("regions", "templates", "hits", "compiles", "reference_compiles", "folded")


def print_points(points: Sequence[Point], machine: str) -> None:
    """Prints a table of all points, then what went wrong or was left alone, with the reason."""
    out = console()
    timed = any("host" in point for point in points)
    caption = "bitwise: outputs, loss, gradients and parameters after a step that have the reference's bits"
    caption += "; host: microseconds of a step, and fusioncache's to the reference's" * timed
    columns = ["<model", "layers", *(name.replace("reference_", "its ") for name in _COUNTS), "bitwise", "largest"]
    columns += ["host", "reference", "ratio"] * timed
    rows = [_cells(point, timed) for point in points]
    out.print(make_table(f"Thunder with fusioncache on {machine}", caption, columns, rows, wrap=False, sections=True))
    for point in points:
        model, depth = name_point(point)
        name = f"{model}, {depth} layers"
        for reason, count in point.get("bypasses", {}).items():
            print_line(out, f"bypassed: {name}: {count} x {reason}")
        if point.get("not_repeatable"):
            others = f"{len(point['not_repeatable'])} tensors, the first of them {point['not_repeatable'][0]}"
            print_line(out, f"not repeatable: {name}: the reference computes {others}")
        print_error(out, point)


def _cells(point: Point, timed: bool) -> list[str]:
    cells = name_point(point)
    if "tensors" not in point:
        return [*cells, "failed"]
    cells += [str(point[name]) for name in _COUNTS]
    cells += [f"{point['bitwise']}/{point['tensors']}", f"{point['largest_epsilons']:.2g} eps"]
    if timed:
        microseconds = point["host"]["microseconds"]
        cells += [f"{microseconds['fusioncache']:.0f}", f"{microseconds[point['reference']]:.0f}"]
        cells.append(f"{point['host']['ratio']:.3f}")
    return cells
