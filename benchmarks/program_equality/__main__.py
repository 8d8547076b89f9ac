"""Does a second process train every model with what the first one left, and compute what Thunder computes?

Every model at every depth is trained for three steps in three fresh processes: by Thunder without fusioncache; with
fusioncache and empty cache directories; and once more with fusioncache's directory, which was moved to another path.
Each has a ``PYTHONHASHSEED`` of its own, and in the last one Thunder's interpreter must not be called. Output, loss and
all gradients of each step, and the parameters in the end, must have the same bits. Exit code 1 if one has not, if
anything is traced or compiled in the last process, or if a model fails.
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.common import processes
from benchmarks.common.environment import inspect_machine
from benchmarks.common.options import command, json_option
from benchmarks.common.results import Point, make_result, say, write_result
from benchmarks.program_equality.report import make_point, print_points
from benchmarks.program_equality.spec import FIRST, HASH_SEEDS, SECOND, THUNDER
from benchmarks.zoo.comparison import compare_all, list_specs, zoo_options
from benchmarks.zoo.spec import ZooSpec

_KEPT = "fusioncache_dir"
"""What fusioncache keeps, in the cache directories of a process."""


@command(__doc__)
@zoo_options(layers="2")
@json_option
def main(json_file: Path | None, **options: Any) -> None:
    """Runs the benchmark."""
    machine = inspect_machine(options["backend"])
    chosen = {**options, "backend": machine.backend}
    points: list[Point] = []
    for points in compare_all(list(list_specs(ZooSpec, machine, options)), compare, options["jobs"]):
        write_result(json_file, make_result(machine.environment, chosen, points=points))
    print_points(points, machine.environment["gpu"] or machine.device)
    sys.exit(1 if any("error" in point for point in points) else 0)


def compare(spec: ZooSpec) -> Point:
    """Compares what the three processes compute."""
    with TemporaryDirectory(prefix="fusioncache-programs-") as directory:
        thunder, before, after = (Path(directory, process) for process in (THUNDER, FIRST, SECOND))
        said = {THUNDER: _call(spec, THUNDER, thunder), FIRST: _call(spec, FIRST, before)}
        after.mkdir()
        (before / _KEPT).rename(after / _KEPT)
        said[SECOND] = _call(spec, SECOND, after)
    point = make_point(spec, said)
    say(f"{spec}: {point.get('error', 'alike')}\n")
    return point


def _call(spec: ZooSpec, process: str, caches: Path) -> dict[str, Any]:
    caches.mkdir(exist_ok=True)
    variables = {"PYTHONHASHSEED": HASH_SEEDS[process], "FUSIONCACHE_STORE": "1", "FUSIONCACHE_PROGRAMS": "1"}
    argument = {"spec": asdict(spec), "process": process}
    said: dict[str, Any] = processes.call(
        "benchmarks.program_equality.worker", argument, caches=caches, environment=variables
    )
    return said


if __name__ == "__main__":
    main()
