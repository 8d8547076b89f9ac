"""Milliseconds to open, look up and list a store of many templates, and its bytes on disk. Needs neither torch nor GPU.

Every figure is that of a store that was just opened. The files are in the operating system's memory, as they were just
written. A look-up reads an entry and its artifacts and verifies every byte.
"""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from benchmarks.common.environment import describe
from benchmarks.common.options import command, json_option
from benchmarks.common.processes import ROOT
from benchmarks.common.results import make_result, write_result
from benchmarks.store.contents import BACKEND, fill, make_key
from fusioncache.ir import Key
from fusioncache.store import Store


def measure(path: Path, keys: list[Key], lookups: int) -> dict[str, Any]:
    """Returns milliseconds by what was done, and what it did."""
    chance = random.Random(1)
    store, opening = _time(lambda: Store.open(path, remote=""))
    chosen = chance.sample(keys, min(lookups, len(keys)))
    hits = [_time(lambda key=key: store.load(key, BACKEND)) for key in chosen]  # type: ignore[misc]
    again = [_time(lambda key=key: store.load(key, BACKEND))[1] for key in chosen]  # type: ignore[misc]
    misses = [_time(lambda n=n: store.load(make_key(-n, 100), BACKEND))[1] for n in range(1, lookups)]  # type: ignore[misc]
    assert all(found for found, _ in hits)
    listed, listing = _time(lambda: Store.open(path, remote="").entries())
    assert len(listed) == len(keys)
    swept, sweeping = _time(lambda: Store.open(path, remote="").sweep())
    assert swept is not None
    assert swept.entries == 0
    return {
        "import": _time_import(),
        "open": opening,
        "first look-up (median)": statistics.median(seconds for _, seconds in hits),
        "first look-up (99 of 100 are faster)": _find_slow([seconds for _, seconds in hits]),
        "later look-up (median)": statistics.median(again),
        "miss (median)": statistics.median(misses),
        "list": listing,
        "clean up": sweeping,
    }


def measure_disk(path: Path) -> dict[str, int]:
    """Returns the bytes of content and bytes that the file system uses for it, by part of the store."""
    sizes = {}
    for part in ("entries", "objects"):
        files = [file.stat() for file in [path / part, *(path / part).rglob("*")]]
        sizes[part] = sum(file.st_size for file in files)
        sizes[f"{part} in blocks"] = sum(512 * file.st_blocks for file in files)
    return sizes


def _time[T](work: Callable[[], T]) -> tuple[T, float]:
    start = time.perf_counter()
    result = work()
    return result, 1e3 * (time.perf_counter() - start)


def _find_slow(values: list[float]) -> float:
    return sorted(values)[int(0.99 * (len(values) - 1))]


def _time_import() -> float:
    program = "import time; start = time.perf_counter(); import fusioncache.store; print(time.perf_counter() - start)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    return 1e3 * float(done.stdout)


@command(__doc__)
@click.option("--templates", type=click.IntRange(1), default=10_000, help="How many.")
@click.option("--key-bytes", type=click.IntRange(20), default=4000, help="Of each key's text.")
@click.option("--artifact-bytes", type=click.IntRange(0), default=10_000, help="Of each template's larger artifact.")
@click.option("--lookups", type=click.IntRange(2), default=1000, help="How many templates are looked up.")
@click.option("--sync/--no-sync", default=False, help="Wait for the disk when filling the store, as saves do.")
@json_option
def main(templates: int, key_bytes: int, artifact_bytes: int, lookups: int, sync: bool, json_file: Path | None) -> None:
    """Runs the benchmark."""
    options = {name: value for name, value in locals().items() if name != "json_file"}
    if not sync:
        os.fsync = lambda descriptor: None  # type: ignore[assignment]
    keys = [make_key(number, key_bytes) for number in range(templates)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store"
        store = Store.open(path, remote="")
        _, filling = _time(lambda: fill(store, keys, artifact_bytes))
        milliseconds = {"save (mean)": filling / templates, **measure(path, keys, lookups)}
        sizes = measure_disk(path)
    for name, value in milliseconds.items():
        click.echo(f"{name:36} {value:10.3f} ms")
    for name, size in sizes.items():
        click.echo(f"{name:36} {size / 1e6:10.1f} MB")
    if json_file:  # to describe the environment imports torch
        write_result(json_file, make_result(describe(), options, milliseconds=milliseconds, bytes=sizes))


if __name__ == "__main__":
    main()
