"""Milliseconds of the command line on a record and a store of many templates, and what its start is made of.

Each figure is the median of fresh processes, from start to end, with everything in the operating system's memory.
Python's own start is among the figures, because it is part of every other one.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common.options import command, count_option, json_option, repeat_option
from benchmarks.common.processes import ROOT
from benchmarks.common.runner import begin, print_table
from benchmarks.store import fill, make_key
from fusioncache.ir import Const, Graph, Op, Ref, Template, TensorType
from fusioncache.observe.record.database import RecordReader, RecordWriter
from fusioncache.observe.record.events import CompileEvent
from fusioncache.observe.record.ledger import Ledger
from fusioncache.observe.record.observations import Line, RegionRecord, Source
from fusioncache.store import Store, default_path
from fusioncache.template.key import make_key as make_template_key

ARTIFACT_BYTES = 1000
KEY_BYTES = 4000


def time_process(arguments: Sequence[str], repeat: int) -> float:
    """Returns the median of so many processes of Python with these arguments."""
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        subprocess.run([sys.executable, *arguments], check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def list_commands(name: str) -> dict[str, list[str]]:
    """Returns what is timed: arguments of Python by what a person would type."""
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
    """Returns milliseconds by what was done."""
    name = RecordReader().templates(RecordReader().runs()[0].id)[count // 2].name
    return {what: 1e3 * time_process(arguments, repeat) for what, arguments in list_commands(name).items()}


def make_template(number: int, ops: int) -> Template:
    """Makes a template with so many ops and a constant of its own."""
    matrix = TensorType("float32", (64, 64), "cuda")
    written = [Op("prims.mul", (Ref(0), Const("float", float(number).hex())), (matrix,))]
    written += [Op("prims.tanh", (Ref(index),), (matrix,)) for index in range(1, ops)]
    graph = Graph((matrix,), tuple(written), (ops,))
    return Template(graph, make_template_key(graph, {"backend": "nvfuser"}), f"mul_tanh_{number:06}")


def fill_record(count: int, ops: int) -> None:
    """Records one run with so many templates, each of one region."""
    ledger, regions = Ledger(), []
    for number in range(count):
        one = make_template(number, ops)
        ledger.count_region(one, (), hit=False)
        ledger.tell(one, CompileEvent("nvfuser", 0.001 * (number % 1000), template=one))
        source = Source(f"layers.{number}", number, (Line("model.py", 10),))
        where = ("Model", "forward", 0, number, f"nvFusion{number}", one.key.digest, "miss", None, (), "inline")
        regions.append(RegionRecord(*where, source, ops, 1, 1))
    ledger.history.add(*regions)
    RecordWriter(ledger).save()


def fill_store(count: int) -> None:
    """Fills a store with so many entries."""
    opened = Store.open(remote="")
    fill(opened, [make_key(number, KEY_BYTES) for number in range(count)], ARTIFACT_BYTES)


@command(__doc__)
@count_option("--templates", 10_000, "In the record, and entries in the store.")
@count_option("--ops", 40, "Of each template.")
@repeat_option("Processes for each figure; the median counts.", default=5)
@json_option
def main(json_file: Path | None, **options: int) -> None:
    """Runs the benchmark."""
    run, templates = begin(json_file, options, "eager"), options["templates"]
    os.fsync = lambda descriptor: None  # type: ignore[assignment]  # filling is not what is measured
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FUSIONCACHE_DIR"] = folder
        fill_record(templates, options["ops"])
        fill_store(templates)
        assert len(Store.open(default_path(), remote="").entries()) == templates
        milliseconds = measure(templates, options["repeat"])
        run.more = {"milliseconds": milliseconds, "record_bytes": RecordReader().path.stat().st_size}
    run.save()
    print_table("milliseconds", ("<what", "ms"), [[name, f"{value:.1f}"] for name, value in milliseconds.items()])


if __name__ == "__main__":
    main()
