"""Milliseconds to open, look up and list a store of many templates, and its bytes on disk. Needs neither torch nor GPU.

Every figure is that of a store that was just opened. The files are in the operating system's memory, as they were just
written. A look-up reads an entry and its artifacts and verifies every byte.
"""

from __future__ import annotations

import hashlib
import json
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

from benchmarks.common.options import NewFile
from fusioncache.ir import Ingredient, Key
from fusioncache.store import Store

SCHEMA = 1
BACKEND = "eager"


def make_key(number: int, size: int) -> Key:
    """A key with a text of about this many characters."""
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
    """Milliseconds by what was done, and what it did."""
    chance = random.Random(1)
    store, opening = _timed(lambda: Store.open(path, remote=""))
    chosen = chance.sample(keys, min(lookups, len(keys)))
    hits = [_timed(lambda key=key: store.load(key, BACKEND)) for key in chosen]  # type: ignore[misc]
    again = [_timed(lambda key=key: store.load(key, BACKEND))[1] for key in chosen]  # type: ignore[misc]
    misses = [_timed(lambda n=n: store.load(make_key(-n, 100), BACKEND))[1] for n in range(1, lookups)]  # type: ignore[misc]
    assert all(found for found, _ in hits)
    store.close()
    listed, listing = _timed(lambda: Store.open(path, remote="").entries())
    assert len(listed) == len(keys)
    (path / "index.sqlite").unlink()
    _, rebuilding = _timed(lambda: Store.open(path, remote="").entries())
    swept, sweeping = _timed(lambda: Store.open(path, remote="").sweep())
    assert swept is not None
    assert swept.entries == 0
    return {
        "import": _import(),
        "open": opening,
        "first look-up (median)": statistics.median(seconds for _, seconds in hits),
        "first look-up (99 of 100 are faster)": _slow([seconds for _, seconds in hits]),
        "later look-up (median)": statistics.median(again),
        "miss (median)": statistics.median(misses),
        "list": listing,
        "list without an index": rebuilding,
        "clean up": sweeping,
    }


def disk_bytes(path: Path) -> dict[str, int]:
    """Bytes of content and bytes that the file system uses for it, by part of the store."""
    sizes = {}
    for part in ("entries", "objects", "index.sqlite"):
        files = [file.stat() for file in [path / part, *(path / part).rglob("*")]]
        sizes[part] = sum(file.st_size for file in files)
        sizes[f"{part} in blocks"] = sum(512 * file.st_blocks for file in files)
    return sizes


def _timed[T](work: Callable[[], T]) -> tuple[T, float]:
    start = time.perf_counter()
    result = work()
    return result, 1e3 * (time.perf_counter() - start)


def _slow(values: list[float]) -> float:
    return sorted(values)[int(0.99 * (len(values) - 1))]


def _import() -> float:
    program = "import time; start = time.perf_counter(); import fusioncache.store; print(time.perf_counter() - start)"
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=root)
    return 1e3 * float(done.stdout)


@click.command(context_settings={"show_default": True}, help=__doc__)
@click.option("--templates", type=click.IntRange(1), default=10_000, help="How many.")
@click.option("--key-bytes", type=click.IntRange(20), default=4000, help="Of each key's text.")
@click.option("--artifact-bytes", type=click.IntRange(0), default=10_000, help="Of each template's larger artifact.")
@click.option("--lookups", type=click.IntRange(2), default=1000, help="How many templates are looked up.")
@click.option("--sync/--no-sync", default=False, help="Wait for the disk when filling the store, as saves do.")
@click.option("--json", "json_file", type=NewFile(), metavar="FILE", help="Write the result as one JSON object.")
def main(templates: int, key_bytes: int, artifact_bytes: int, lookups: int, sync: bool, json_file: Path | None) -> None:
    options = {name: value for name, value in locals().items() if name != "json_file"}
    if not sync:
        os.fsync = lambda descriptor: None  # type: ignore[assignment]
    keys = [make_key(number, key_bytes) for number in range(templates)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store"
        store = Store.open(path, remote="")
        _, filling = _timed(lambda: fill(store, keys, artifact_bytes))
        store.entries()
        store.close()
        milliseconds = {"save (mean)": filling / templates, **measure(path, keys, lookups)}
        sizes = disk_bytes(path)
    for name, value in milliseconds.items():
        click.echo(f"{name:36} {value:10.3f} ms")
    for name, size in sizes.items():
        click.echo(f"{name:36} {size / 1e6:10.1f} MB")
    if json_file:
        from benchmarks.common import environment  # which imports torch

        described = environment.describe() | {"options": options}
        result = {"schema": SCHEMA, "environment": described, "milliseconds": milliseconds, "bytes": sizes}
        json_file.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
