"""Measures opening, looking up and listing a store of many templates, its bytes on disk, and commands on it.

Every figure of the store is for a store that was just opened. The files are in the operating system's page cache,
because they were just written. A look-up reads an entry and its artifacts and verifies every byte. There is also a
record of as many templates. A command's figure is the median of fresh processes, from start to end, including the start
of Python.
"""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median

import click

from benchmarks.common.options import count_option, repeat_option
from benchmarks.common.processes import ROOT
from benchmarks.common.runner import Point, Run, benchmark, pick
from fusioncache.ir import Const, Graph, Ingredient, Key, Op, Ref, Template, TensorType
from fusioncache.observe.record.database import RecordReader, RecordWriter
from fusioncache.observe.record.events import CompileEvent
from fusioncache.observe.record.ledger import Ledger
from fusioncache.observe.record.observations import Line, RegionRecord, Source
from fusioncache.store import Store, default_path
from fusioncache.template.key import make_key as make_template_key

BACKEND = "eager"


def make_key(number: int, size: int) -> Key:
    """Returns a key with a text of about ``size`` characters."""
    text = (f"template {number}\n" * (size // 14 + 1))[:size]
    digest = hashlib.sha256(text.encode()).hexdigest()
    return Key(digest, text, (Ingredient("ops", text, digest),))


def fill(store: Store, keys: Sequence[Key], size: int) -> None:
    """Saves two artifacts for each key: one of ``size`` bytes, and a small one."""
    chance = random.Random(0)
    for number, key in enumerate(keys):
        artifacts = {"code": chance.randbytes(size), "meta": b"%d" % number}
        assert store.save(key, BACKEND, artifacts, name=f"template_{number}", seconds=1.0)


def measure(keys: Sequence[Key], lookups: int) -> dict[str, float]:
    """Returns the milliseconds of each operation on a store with these keys."""
    chance = random.Random(1)
    store, opening = _time(lambda: Store.open(remote=""))
    chosen = chance.sample(keys, min(lookups, len(keys)))
    hits = [_time(lambda key=key: store.load(key, BACKEND)) for key in chosen]  # type: ignore[misc]
    again = [_time(lambda key=key: store.load(key, BACKEND))[1] for key in chosen]  # type: ignore[misc]
    misses = [_time(lambda n=n: store.load(make_key(-n, 100), BACKEND))[1] for n in range(1, lookups)]  # type: ignore[misc]
    assert all(found for found, _ in hits)
    listed, listing = _time(lambda: Store.open(remote="").entries())
    assert len(listed) == len(keys)
    swept, sweeping = _time(lambda: Store.open(remote="").sweep())
    assert swept is not None
    assert swept.entries == 0
    first = sorted(milliseconds for _, milliseconds in hits)
    return {
        "open": opening,
        "first look-up (median)": median(first),
        "first look-up (99 of 100 are faster)": first[int(0.99 * (len(first) - 1))],
        "later look-up (median)": median(again),
        "miss (median)": median(misses),
        "list": listing,
        "clean up": sweeping,
    }


def measure_disk(path: Path) -> Iterator[Point]:
    """Yields the bytes of content, and the bytes that the file system uses for it, by part of the store."""
    for part in ("entries", "objects"):
        files = [file.stat() for file in [path / part, *(path / part).rglob("*")]]
        yield {"what": part, "bytes": sum(file.st_size for file in files)}
        yield {"what": f"{part} in blocks", "bytes": sum(512 * file.st_blocks for file in files)}


def _time[T](work: Callable[[], T]) -> tuple[T, float]:
    start = time.perf_counter()
    result = work()
    return result, 1e3 * (time.perf_counter() - start)


def time_process(arguments: Sequence[str], repeat: int) -> float:
    """Returns the median milliseconds of ``repeat`` Python processes with these arguments."""
    command = [sys.executable, *arguments]
    return median(
        _time(lambda: subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL))[1]
        for _ in range(repeat)
    )


def list_commands(name: str) -> dict[str, list[str]]:
    """Returns the timed commands: arguments of Python, by the command line that a user types."""
    listings = ("ls", "ls --limit 10", "ls --json", "ls --store")
    shown = ("dir", "stats", *listings, f"show {name}", f"graph {name}", "--help")
    timed = {f"fusioncache {line.replace(name, 'ID')}": ["-m", "fusioncache", *line.split()] for line in shown}
    imports = {f"import {each}": ["-c", f"import {each}"] for each in ("fusioncache.store", "fusioncache.cli.main")}
    return {"python": ["-c", ""], **imports, **timed}


def make_template(number: int, ops: int) -> Template:
    """Returns a template with ``ops`` operations and a constant of its own."""
    matrix = TensorType("float32", (64, 64), "cuda")
    written = [Op("prims.mul", (Ref(0), Const("float", float(number).hex())), (matrix,))]
    written += [Op("prims.tanh", (Ref(index),), (matrix,)) for index in range(1, ops)]
    graph = Graph((matrix,), tuple(written), (ops,))
    return Template(graph, make_template_key(graph, {"backend": "nvfuser"}), f"mul_tanh_{number:06}")


def fill_record(count: int, ops: int) -> None:
    """Records one run with ``count`` templates, each of one region."""
    ledger, regions = Ledger(), []
    for number in range(count):
        one = make_template(number, ops)
        ledger.count_region(one, (), hit=False)
        ledger.count_build(one, CompileEvent("nvfuser", 0.001 * (number % 1000), template=one))
        source = Source(f"layers.{number}", number, (Line("model.py", 10),))
        where = ("Model", "forward", 0, number, f"nvFusion{number}", one.key.digest, "miss", None, (), "inline")
        regions.append(RegionRecord(*where, source, ops, 1, 1))
    ledger.history.add(*regions)
    RecordWriter(ledger).save()


@benchmark(__doc__, "eager")
@count_option("--templates", 10_000, "How many, in the store and in the record.")
@count_option("--key-bytes", 4000, "Of each key's text.", least=20)
@count_option("--artifact-bytes", 10_000, "Of each template's larger artifact.", least=0)
@count_option("--lookups", 1000, "How many templates are looked up.", least=2)
@count_option("--ops", 40, "Of each template of the record.")
@repeat_option("Processes for each command; the median counts.", default=5)
@click.option("--sync/--no-sync", default=False, help="Wait for the disk when filling the store, as saves do.")
def main(
    run: Run, templates: int, key_bytes: int, artifact_bytes: int, lookups: int, ops: int, repeat: int, sync: bool
) -> None:
    """Runs the benchmark."""
    if not sync:
        os.fsync = lambda descriptor: None  # type: ignore[assignment]
    keys = [make_key(number, key_bytes) for number in range(templates)]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FUSIONCACHE_DIR"] = folder
        _, filling = _time(lambda: fill(Store.open(remote=""), keys, artifact_bytes))
        milliseconds = {"save (mean)": filling / templates, **measure(keys, lookups)}
        run.add(*({"what": what, "milliseconds": taken} for what, taken in milliseconds.items()))
        run.add(*measure_disk(default_path()))
        fill_record(templates, ops)
        run.add({"what": "record", "bytes": RecordReader().path.stat().st_size})
        name = RecordReader().templates(RecordReader().runs()[0].id)[templates // 2].name
        for what, arguments in list_commands(name).items():
            run.add({"what": what, "milliseconds": time_process(arguments, repeat)})
    columns = {"<what": pick("what"), "ms": pick("milliseconds", digits=3)}
    run.finish(f"a store of {templates} templates", {**columns, "MB": _write_megabytes})


def _write_megabytes(point: Point) -> str | None:
    return f"{point['bytes'] / 1e6:.1f}" if "bytes" in point else None


if __name__ == "__main__":
    main()
