"""Checks that every model computes the same with fusioncache as with Thunder alone.

``training`` compares the results of a training step, and counts templates; ``programs`` compares a second process that
uses the programs of the first; ``lengths`` each batch size and length; ``traces`` the text of traces with shortcuts.
The modules of these names in ``benchmarks/equality`` describe the details. Each model at each depth has processes of
its own. The exit code is 1 if a result differs that must not, or if a model fails.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from itertools import product
from types import MappingProxyType
from typing import Any

import click

from benchmarks.common import processes
from benchmarks.common.options import Numbers, Words, count_option
from benchmarks.common.processes import ProcessFailed, print_progress
from benchmarks.common.runner import Point, Run, benchmark, describe_failure, name_point, pick
from benchmarks.equality import lengths, programs, traces, training
from benchmarks.zoo.catalogue import names

_DEFAULTS: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {"training": (2, 3), "programs": (2,), "lengths": (2,), "traces": (2, 4, 6)}
)
"""The default depths of each comparison."""
_OPTIONS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "training": ("reference", "width", "rounds"),
        "programs": (),
        "lengths": ("batches", "lengths", "epsilons"),
        "traces": ("kinds",),
    }
)
"""The options of each comparison in addition to the common ones."""
_COLUMNS = MappingProxyType(
    {each.__name__.rpartition(".")[2]: each.COLUMNS for each in (training, programs, lengths, traces)}
)


@benchmark(__doc__)
@click.argument("what", type=click.Choice(tuple(_DEFAULTS)))
@click.option("--models", type=Words(names()), help="As in llama-3,hf-bert.  [default: all]")
@click.option("--layers", type=Numbers(real=True), help="As in 2,4,real; real: as many as it really has.")
@click.option("--dtype", type=click.Choice(["float32", "bfloat16", "float16"]), help="[default: bfloat16 with a GPU]")
@count_option("--jobs", 1, "Processes at a time.")
@click.option(
    "--reference", type=click.Choice(training.REFERENCES), default="plain", help="training: or nvFuser's cache."
)
@click.option("--width", type=click.Choice(["narrow", "real"]), default="narrow", help="training: of the layers.")
@click.option("--host-time", is_flag=True, help="training: take the host time of a step as well.")
@click.option("--batches", type=Numbers(), default=(2, 3, 1), help="lengths: rows, in order.")
@click.option("--lengths", type=Numbers(), default=(64, 96, 65, 200, 128, 257, 1, 8), help="lengths: tokens, in order.")
@click.option("--epsilons", type=click.FloatRange(min=0.0), default=64.0, help="lengths: by which sums may differ.")
@click.option("--kinds", type=Words(traces.KINDS), default=traces.KINDS, help="traces: which sets of groups.")
def main(run: Run, what: str, **options: Any) -> None:
    """Runs the benchmark."""
    options["layers"] = options["layers"] or _DEFAULTS[what]
    more = {"rounds": 30 * options.pop("host_time"), **options}
    if what == "training" and options["reference"] == "lru" and run.machine.backend != "nvfuser":
        raise click.UsageError("--reference lru is nvFuser's own cache, which is for --backend nvfuser")
    identities: list[Point] = [
        {"model": model, "layers": layers, **run.machine.place(model, options["dtype"])}
        for model, layers in product(options["models"] or names(), options["layers"])
    ]
    found: dict[int, Point] = {}
    with ThreadPoolExecutor(options["jobs"]) as pool:
        measure = partial(compare, what, {name: more[name] for name in _OPTIONS[what]})
        futures = {pool.submit(measure, identity): number for number, identity in enumerate(identities)}
        for future in as_completed(futures):
            found[futures[future]] = future.result()
            run.points = [found[number] for number in sorted(found)]
            run.save()
    if what == "training":
        training.mark_growth(run.points)
    columns = {"<model": pick("model"), "layers": pick("layers"), "<way": pick("way"), **_COLUMNS[what]}
    for point in run.points:
        reasons = point.get("bypasses", {}).items()
        run.notes += [
            f"bypassed: {point['model']}, {point['layers']} layers: {count} x {why}" for why, count in reasons
        ]
    run.finish(f"{what} on {run.machine.environment['gpu'] or run.machine.device}", columns)


def compare(what: str, more: Mapping[str, Any], identity: Point) -> Point:
    """Returns the comparison of one model at one depth, with ``error`` if it failed or found a problem."""
    find_problem: Callable[[Point], str | None]
    try:
        if what == "programs":
            point = programs.compare(identity)
        else:
            module = {"training": training, "lengths": lengths, "traces": traces}[what]
            result = processes.call(f"benchmarks.equality.{what}:measure", {**identity, **more})
            point = {**identity, **result}
            find_problem = module.find_problem
            problem = find_problem({**more, **point})
            point |= {"error": problem} if problem else {}
    except ProcessFailed as failure:
        return describe_failure(identity, failure)
    print_progress(f"{name_point(identity)}: {point.get('error', 'right')}\n")
    return point


if __name__ == "__main__":
    main()
