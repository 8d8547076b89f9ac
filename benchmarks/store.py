"""Milliseconds to open, look up and list a store of many templates, and its bytes on disk.

Every figure is that of a store that was just opened. The files are in the operating system's memory, as they were just
written. A look-up reads an entry and its artifacts and verifies every byte.
"""

from __future__ import annotations

import hashlib
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

from benchmarks.common.options import command, count_option, json_option
from benchmarks.common.processes import ROOT
from benchmarks.common.runner import begin, print_table
from fusioncache.ir import Ingredient, Key
from fusioncache.store import Store

BACKEND = "eager"


def make_key(number: int, size: int) -> Key:
    """Makes a key with a text of about this many characters."""
    text = (f"template {number}\n" * (size // 14 + 1))[:size]
    digest = hashlib.sha256(text.encode()).hexdigest()
    return Key(digest, text, (Ingredient("ops", text, digest),))


def fill(store: Store, keys: list[Key], size: int) -> None:
    """Saves two artifacts for each key: one of this many bytes, and a small one."""
    chance = random.Random(0)
    for number, key in enumerate(keys):
        artifacts = {"code": chance.randbytes(size), "meta": b"%d" % number}
        assert store.save(key, BACKEND, artifacts, name=f"template_{number}", seconds=1.0)


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
@count_option("--templates", 10_000, "How many.")
@count_option("--key-bytes", 4000, "Of each key's text.", least=20)
@count_option("--artifact-bytes", 10_000, "Of each template's larger artifact.", least=0)
@count_option("--lookups", 1000, "How many templates are looked up.", least=2)
@click.option("--sync/--no-sync", default=False, help="Wait for the disk when filling the store, as saves do.")
@json_option
def main(json_file: Path | None, **options: Any) -> None:
    """Runs the benchmark."""
    run, templates = begin(json_file, options, "eager"), options["templates"]
    if not options["sync"]:
        os.fsync = lambda descriptor: None  # type: ignore[assignment]
    keys = [make_key(number, options["key_bytes"]) for number in range(templates)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store"
        store = Store.open(path, remote="")
        _, filling = _time(lambda: fill(store, keys, options["artifact_bytes"]))
        milliseconds = {"save (mean)": filling / templates, **measure(path, keys, options["lookups"])}
        sizes = measure_disk(path)
    run.more = {"milliseconds": milliseconds, "bytes": sizes}
    run.save()
    print_table("milliseconds", ("<what", "ms"), [[name, f"{value:.3f}"] for name, value in milliseconds.items()])
    print_table("megabytes", ("<what", "MB"), [[name, f"{size / 1e6:.1f}"] for name, size in sizes.items()])


if __name__ == "__main__":
    main()
