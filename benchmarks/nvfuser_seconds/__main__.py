"""Where nvFuser's seconds for the templates of a Llama go, and what its options would spare.

One training step fills a store. Each way to compile is a fresh process then, which compiles every template of it once.
Compiling includes the first execution. Outputs, and the CUDA of the kernels, are compared with those of the first way.
``benchmarks/nvfuser_seconds/spec.py`` lists the ways.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from benchmarks.common.environment import inspect_machine
from benchmarks.common.options import Words, command, json_option
from benchmarks.common.report import console, make_table
from benchmarks.common.results import Outcome, Point, make_result, write_result
from benchmarks.common.spec import ModelSpec
from benchmarks.first_step.spec import WIDTHS, PointSpec
from benchmarks.nvfuser_seconds.run import compare, fill_store, run_variants, sum_turns
from benchmarks.nvfuser_seconds.spec import VARIANTS, preload_library


@command(__doc__)
@click.option("--width", type=click.Choice(WIDTHS), default="narrow", help="real: Llama-2-7b, 1 x 2048 tokens.")
@click.option("--layers", type=click.IntRange(min=1), default=2)
@click.option("--variants", type=Words(tuple(VARIANTS)), default=tuple(VARIANTS), help="The first is the base.")
@click.option("--parallel", type=click.IntRange(min=1), default=1, help="Ways at once, each on cores of its own.")
@click.option("--dump", type=click.Path(file_okay=False, path_type=Path), help="Write definitions and CUDA there.")
@click.option("--preload", type=click.Path(exists=True, path_type=Path), multiple=True, help="One more way: a library.")
@json_option
def main(
    json_file: Path | None,
    width: str,
    layers: int,
    variants: Sequence[str],
    parallel: int,
    dump: Path | None,
    preload: Sequence[Path],
) -> None:
    """Runs the benchmark."""
    machine = inspect_machine("nvfuser")
    model = ModelSpec("llama", layers, machine.backend, machine.device, machine.choose_dtype("llama"))
    options = {"width": width, "layers": layers, "parallel": parallel, "dtype": model.dtype}
    outcome = Outcome()
    if dump:
        dump.mkdir(parents=True, exist_ok=True)

    def save(point: Point) -> None:
        base = outcome.points[0] if outcome.points else point
        if "templates" in point and "templates" in base and "seconds" in point["templates"][0]:
            point |= {"compared": compare(point, base)}
        outcome.points.append(point)
        write_result(json_file, make_result(machine.environment, options, points=outcome.points))

    with TemporaryDirectory(prefix="fusioncache-nvfuser-") as directory:
        store = fill_store(PointSpec(model, width, "fast", store=True), Path(directory, "caches"))
        chosen = [*(VARIANTS[name] for name in variants), *map(preload_library, preload)]
        run_variants(store, chosen, parallel, dump and dump.resolve(), save)
    _print(outcome.points)
    sys.exit(1 if outcome.failed else 0)


def _print(points: Sequence[Point]) -> None:
    columns = ("<way", "seconds", "to base", "CPU", "kernels", "other bits", "other CUDA")
    rows = (_row(point["variant"], point["compared"]) for point in points if "compared" in point)
    console().print(make_table("seconds of compiling all templates", None, columns, rows))
    for point in points:
        for option, seconds in sum_turns(point.get("templates", ())).items():
            click.echo(f"in turns, without {option or 'nothing'}: {seconds:.2f} s")


def _row(name: str, found: Mapping[str, Any]) -> list[str]:
    seconds = [f"{found['seconds']:.2f}", f"{found['ratio']:.2f}", f"{found['cpu']:.2f}"]
    return [name, *seconds, *(str(found[count]) for count in ("kernels", "other_bits", "other_code"))]


if __name__ == "__main__":
    main()
