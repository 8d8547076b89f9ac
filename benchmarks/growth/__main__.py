"""What each further length adds to a process's memory, to the record and to the store.

Small blocks of attention are trained at sizes that are new each time, on a CPU and with the eager backend, so that no
compiler's memory is among the figures, and all sizes are small. After so many lengths the process says its resident
memory and the bytes of its files; another process says the bytes that Python allocated since the first length. Thunder
alone, which holds each entry for ever, is set beside it for fewer lengths, as it takes seconds for each.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from benchmarks.common.environment import describe
from benchmarks.common.options import Numbers, command, json_option
from benchmarks.common.processes import ROOT, ProcessFailed, call
from benchmarks.common.report import console, make_table
from benchmarks.common.results import Point, make_result, say, write_result

_WORKER = "benchmarks.growth.worker"
_SIZES = ("resident", "allocated", "record", "store")


@command(__doc__)
@click.option("--blocks", type=Numbers(), default="2,12", help="As in 2,12: of each model.")
@click.option("--lengths", type=Numbers(), default="10,100,1000", help="After how many lengths to measure.")
@click.option("--thunder", type=Numbers(), default="5,10", help="The same for Thunder alone.")
@click.option("--no-thunder", is_flag=True, help="Leave Thunder alone out.")
@click.option("--before", type=click.Path(exists=True, file_okay=False, path_type=Path), help="An earlier checkout.")
@json_option
def main(
    blocks: tuple[int, ...],
    lengths: tuple[int, ...],
    thunder: tuple[int, ...],
    no_thunder: bool,
    before: Path | None,
    json_file: Path | None,
) -> None:
    """Runs the benchmark."""
    ways: dict[str, tuple[Path, tuple[int, ...]]] = {"fusioncache": (ROOT, lengths)}
    if before:
        ways["fusioncache before"] = before.resolve(), lengths
    if not no_thunder:
        ways["thunder"] = ROOT, thunder
    options = {"blocks": list(blocks), "lengths": list(lengths), "thunder": list(thunder), "before": before is not None}
    points: list[Point] = []
    for count in blocks:
        for way, (root, after) in ways.items():
            points += _measure(way, count, after, root)
            write_result(json_file, make_result(describe(), options, points=points))
    rows = [[point["way"], str(point["blocks"]), *map(str, _list_cells(point))] for point in points]
    columns = ("<way", "blocks", "lengths", *(f"{size}, MB" for size in _SIZES))
    console().print(make_table("after so many lengths", None, columns, rows))
    sys.exit(1 if any("error" in point for point in points) else 0)


def _measure(way: str, blocks: int, lengths: tuple[int, ...], root: Path) -> list[Point]:
    """Returns a point for each number of lengths."""
    about = {"way": way.partition(" ")[0], "blocks": blocks, "lengths": list(lengths)}
    say(f"{way}, {blocks} blocks\n")
    try:
        worker = _WORKER if root == ROOT else Path(__file__).with_name("worker.py")  # an earlier checkout has none
        found, traced = (call(worker, {**about, "traces": traces}, root=root) for traces in (False, True))
    except ProcessFailed as failure:
        say(f"{failure.message}\n")
        return [{"way": way, "blocks": blocks, "error": failure.message, "log": failure.log}]
    return [{"way": way, "blocks": blocks, **one, **other} for one, other in zip(found, traced, strict=True)]


def _list_cells(point: Point) -> list[Any]:
    if "error" in point:
        return ["failed", *[""] * len(_SIZES)]
    return [point["lengths"], *(f"{point[size] / 1e6:.2f}" for size in _SIZES)]


if __name__ == "__main__":
    main()
