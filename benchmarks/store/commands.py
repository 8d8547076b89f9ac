"""Milliseconds of the command line on a record and a store of many templates, and what its start is made of.

Each figure is the median of fresh processes, from start to end, with everything in the operating system's memory.
Python's own start is among the figures, because it is part of every other one.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from benchmarks.common.options import NewFile
from benchmarks.store.__main__ import fill, make_key
from fusioncache.ir import Const, Graph, Op, Ref, Template, TensorType
from fusioncache.record.ledger import Ledger
from fusioncache.record.observations import Line, RegionRecord, Source
from fusioncache.record.reader import Record
from fusioncache.record.writer import Recorder
from fusioncache.store import Store, default_path
from fusioncache.template.key import make_key as template_key

SCHEMA = 1
ROOT = Path(__file__).resolve().parents[2]
ARTIFACT_BYTES = 1000
KEY_BYTES = 4000


def template(number: int, ops: int) -> Template:
    """A template with so many ops and a constant of its own."""
    matrix = TensorType("float32", (64, 64), "cuda")
    made = [Op("prims.mul", (Ref(0), Const("float", float(number).hex())), (matrix,))]
    made += [Op("prims.tanh", (Ref(place),), (matrix,)) for place in range(1, ops)]
    graph = Graph((matrix,), tuple(made), (ops,))
    return Template(graph, template_key(graph, {"backend": "nvfuser"}), f"mul_tanh_{number:06}")


def record(count: int, ops: int) -> None:
    """One run with so many templates, each of one region."""
    ledger, regions = Ledger(), []
    for number in range(count):
        one = template(number, ops)
        ledger.region(one, (), hit=False)
        ledger.compiled(one, 0.001 * (number % 1000))
        source = Source(f"layers.{number}", number, (Line("model.py", 10),))
        where = ("Model", "forward", 0, number, f"nvFusion{number}", one.key.digest, "miss", None, (), "inline")
        regions.append(RegionRecord(*where, source, ops, 1, 1))
    ledger.records.regions(regions)
    Recorder(ledger).save()


def store(count: int) -> None:
    """A store with so many entries, whose index is there."""
    opened = Store.open(remote="")
    fill(opened, [make_key(number, KEY_BYTES) for number in range(count)], ARTIFACT_BYTES)
    opened.entries()
    opened.close()


def seconds(arguments: Sequence[str], repeat: int) -> float:
    """The median of so many processes of Python with these arguments."""
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        subprocess.run([sys.executable, *arguments], check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def commands(name: str) -> dict[str, list[str]]:
    """What is timed: arguments of Python by what a person would type."""
    lines = (
        "dir",
        "stats",
        "ls",
        "ls --limit 10",
        "ls --json",
        "ls --store",
        f"show {name}",
        f"graph {name}",
        "--help",
    )
    timed = {f"fusioncache {line.replace(name, 'ID')}": ["-m", "fusioncache", *line.split()] for line in lines}
    return {"python": ["-c", ""], "import fusioncache.cli.main": ["-c", "import fusioncache.cli.main"], **timed}


def measure(count: int, repeat: int) -> dict[str, float]:
    """Milliseconds by what was done."""
    name = Record().templates(Record().runs()[0].id)[count // 2].name
    return {what: 1e3 * seconds(arguments, repeat) for what, arguments in commands(name).items()}


@click.command(context_settings={"show_default": True}, help=__doc__)
@click.option("--templates", type=click.IntRange(1), default=10_000, help="In the record, and entries in the store.")
@click.option("--ops", type=click.IntRange(1), default=40, help="Of each template.")
@click.option("--repeat", type=click.IntRange(1), default=5, help="Processes for each figure; the median counts.")
@click.option("--json", "json_file", type=NewFile(), metavar="FILE", help="Write the result as one JSON object.")
def main(templates: int, ops: int, repeat: int, json_file: Path | None) -> None:
    options = {name: value for name, value in locals().items() if name != "json_file"}
    os.fsync = lambda descriptor: None  # type: ignore[assignment]  # filling is not what is measured
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FUSIONCACHE_DIR"] = folder
        record(templates, ops)
        store(templates)
        assert len(Store.open(default_path(), remote="").entries()) == templates
        milliseconds = measure(templates, repeat)
        size = Record().path.stat().st_size
    for name, value in milliseconds.items():
        click.echo(f"{name:32} {value:10.1f} ms")
    click.echo(f"{'the record':32} {size / 1e6:10.1f} MB")
    if json_file:
        from benchmarks.common import environment  # which imports torch

        described: dict[str, Any] = environment.describe() | {"options": options}
        result = {"schema": SCHEMA, "environment": described, "milliseconds": milliseconds, "record_bytes": size}
        json_file.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
