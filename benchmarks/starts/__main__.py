"""Measures a first step in a process with empty caches, and in a second process with the caches of the first.

Each way takes one training step in a fresh process, ``cold``, and one in a process that uses the caches of the first,
``warm``. ``benchmarks/common/ways.py`` lists the ways, and ``Compiled.split`` in ``benchmarks/common/compiled.py``
defines the parts of a step. No figure includes imports. With the wall clock, the one-time start of a compiler is
excluded, too. With ``--clock cpu``, seconds are CPU time on one thread, of the process and of all processes that it
waited for, such as a C++ compiler. So they do not depend on the load of the machine.

All of Thunder's ways must compute the same bits, if the trace is the same or sums are not rounded between regions.
With ``--steps`` later steps are timed as well, and the first step's output and gradients are compared with those of
eager torch in a wider dtype: an error may be twice that of eager torch. If a process fails, only its own results are
missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from benchmarks.common.models import MODELS, TOKENS, WIDTHS
from benchmarks.common.options import (
    NewFile,
    Numbers,
    Words,
    count_option,
    limit_option,
    repeat_option,
    require_litgpt,
)
from benchmarks.common.processes import print_progress
from benchmarks.common.runner import Point, Run, benchmark, find_medians, pick, take_turns
from benchmarks.common.ways import WAYS, choose_ways
from benchmarks.figures.plot import SUFFIXES, plot_starts
from benchmarks.starts.worker import CLOCKS, FROM_HUGGING_FACE, PARTS, StartSpec
from benchmarks.zoo.catalogue import names

COLD, WARM = "cold", "warm"
_EXACT = ("float32", "float64")
"""Dtypes in which a sum has the same bits, whether or not it is passed from one kernel to another."""
_DEFAULT = ("thunder", "templates", "fusioncache", "torch.compile")


@benchmark(__doc__)
@click.option(
    "--models", type=Words((*MODELS, *names(), *FROM_HUGGING_FACE)), default="llama", help="As in llama,gemma."
)
@click.option("--width", type=click.Choice(WIDTHS), default="narrow", help="Of llama: real is Llama-2-7b, 1 x 2048.")
@click.option("--layers", type=Numbers(), default=(8, 32), help="As in 8,32.")
@click.option("--ways", type=Words(tuple(WAYS)), default=_DEFAULT, help="As in thunder,fusioncache.")
@click.option("--clock", type=click.Choice(CLOCKS), default="wall", help="Whose seconds.")
@click.option("--grad/--no-grad", default=True, help="Include a backward pass.")
@click.option("--recompute", is_flag=True, help="As NVIDIA/Fuser#2916, but for the way own.")
@count_option("--steps", 0, "Later steps to time, after as many untimed.", least=0)
@count_option("--at-once", 1, "Ways at once: for the clock cpu.")
@click.option("--dtype", type=click.Choice(["float64", "float32", "bfloat16"]), help="[default: bfloat16 on a GPU]")
@repeat_option("Pairs of processes; the median counts.")
@limit_option
@click.option("--plot", type=NewFile(SUFFIXES), metavar="FILE", help="Write a plot over the layers, SVG or PNG.")
def main(
    run: Run,
    models: Sequence[str],
    layers: Sequence[int],
    ways: tuple[str, ...],
    at_once: int,
    dtype: str | None,
    repeat: int,
    plot: Path | None,
    **options: Any,
) -> None:
    """Runs the benchmark."""
    if "llama" in models:
        require_litgpt("llama")
    chosen = choose_ways(ways, run.machine.device)
    run.notes += [f"{name} skipped: it needs a GPU" for name in ways if WAYS[name] not in chosen]
    specs = []
    # Ways that store nothing come last, because they take longest and matter least.
    for way, model, depth in product(sorted(chosen, key=lambda way: not way.stores_code), models, layers):
        identity = {"way": way.name, "model": model, "layers": depth, "tokens": TOKENS[options["width"]]}
        recompute = options["recompute"] and way.name != "own"
        specs.append(StartSpec(**{**run.machine.place(model, dtype), **options, **identity, "recompute": recompute}))
    series = _Series(run)
    with ThreadPoolExecutor(at_once) as pool:
        for _ in pool.map(series.run_pair, take_turns(specs, repeat)):
            pass
    if plot:
        plot_starts({"environment": {**run.machine.environment, "options": run.options}, "points": run.points}, plot)
    later = {"step, ms": pick("later", "step", scale=1e3), "host, ms": pick("later", "host", scale=1e3)}
    columns = {
        "<model": pick("model"),
        "layers": pick("layers"),
        "<way": pick("way"),
        "<process": pick("process"),
        **({name: pick("seconds", name, digits=3) for name in PARTS} if options["clock"] == "wall" else {}),
        "total": pick("seconds", "total", digits=3),
        **{name: pick("counts", name) for name in ("compiles", "loads", "traces")},
        **({**later, "error": pick("distance", digits=6)} if options["steps"] else {}),
    }
    run.finish("seconds to the end of the first step", columns)


@dataclass(slots=True)
class _Series:
    """Pairs of processes and their results so far.

    Attributes:
        run: contains the points.
        found: results of processes, by spec and ``COLD`` or ``WARM``.
    """

    run: Run
    found: dict[tuple[StartSpec, str], list[Point]] = field(default_factory=dict)

    def run_pair(self, spec: StartSpec) -> None:
        """Runs a process with empty cache directories and, if the way stores anything in them, a second process."""
        way = WAYS[spec.way]
        # Compile workers of the first process may still write after it has ended.
        with TemporaryDirectory(prefix="fusioncache-starts-", ignore_cleanup_errors=True) as directory:
            result: Point = {}
            for process in (COLD, WARM) if way.stores_code else (COLD,):
                failed = "error" in result
                result = {"error": "not run: first process failed"} if failed else self._run(spec, process, directory)
                self.found.setdefault((spec, process), []).append(result)
                self.run.points = make_points(self.found)
                self.run.save()

    def _run(self, spec: StartSpec, process: str, caches: str) -> Point:
        environment = {"FUSIONCACHE_STORE": "1", "FUSIONCACHE_PROGRAMS": "1", **WAYS[spec.way].environment}
        argument = asdict(spec) | ({"steps": 0} if process == WARM else {})
        identity = {"way": str(spec), "process": process}
        where = {"caches": Path(caches), "environment": environment}
        result = self.run.measure(identity, "benchmarks.starts.worker:measure", argument, **where)
        if "seconds" in result:
            print_progress(f"{spec}, {process}: {result['seconds']['total']:.2f} s\n")
        return {name: value for name, value in result.items() if name not in identity}


def make_points(found: Mapping[tuple[StartSpec, str], Sequence[Point]]) -> list[Point]:
    """Returns the points sorted by model, depth and way, with the ways in the order of ``WAYS``."""
    order = list(WAYS)
    places = sorted(found, key=lambda each: (each[0].model, each[0].layers, order.index(each[0].way), each[1]))
    return [_make_point(*place, found) for place in places]


def _make_point(spec: StartSpec, process: str, found: Mapping[tuple[StartSpec, str], Sequence[Point]]) -> Point:
    """Returns one point: medians of its processes' results, and whether these agree with all other processes."""
    point: Point = {"model": spec.model, "layers": spec.layers, "way": spec.way, "process": process}
    results = found[spec, process]
    errors, good = [one for one in results if "error" in one], [one for one in results if "error" not in one]
    if good:
        point["seconds"] = find_medians([one["seconds"] for one in good])
        point["counts"] = good[0]["counts"]
        if "later" in good[0]:
            point["later"] = find_medians([one["later"] for one in good])
            point |= {name: good[0].get(name) for name in ("worst_tensor", "distance", "eager_distance")}
        point["correct"] = all(one.get("correct", True) for one in good) and _is_same(spec, good, found)
        point["repeats"] = good
    if errors:
        point |= {"error": errors[0]["error"], "log": errors[0].get("log", "")}
    return point


def _is_same(spec: StartSpec, good: Sequence[Point], found: Mapping[tuple[StartSpec, str], Sequence[Point]]) -> bool:
    """True if a way's processes have the same bits as all other processes that must have them."""
    digests = {
        one["digest"]
        for (other, _), each in found.items()
        if (other.model, other.layers) == (spec.model, spec.layers)
        and (other.recompute == spec.recompute or spec.dtype in _EXACT)
        for one in each
        if "digest" in one
    }
    return "digest" not in good[0] or len(digests) == 1


if __name__ == "__main__":
    main()
