"""How long ``fusioncache warm`` takes with more processes and with fewer.

A training step fills a store as another version of the compiler would. Each number of processes then gets a copy of
that store, of which nothing is ready, and compiles all of it in a fresh process of the command line. ``whole`` are the
seconds from that process's start to its end, with its imports; ``compiling`` are those that it says it took.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from benchmarks.common import processes
from benchmarks.common.models import MODELS, ModelSpec, make_model
from benchmarks.common.options import Numbers, backend_option, command, json_option, layers_option
from benchmarks.common.processes import say
from benchmarks.common.runner import Point, begin, pick
from benchmarks.common.steps import synchronize

_STORE = {"FUSIONCACHE_STORE": "1"}


def fill(options: Mapping[str, Any]) -> int:
    """Takes a training step whose keys no other process has, and returns how many templates were compiled."""
    import fusioncache
    from benchmarks.common.thunder_jit import jit
    from fusioncache.backends.api import backend_class

    spec = ModelSpec.read(options)
    backend = backend_class(spec.backend)
    environment = backend.environment
    backend.environment = lambda self: {**environment(self), "versions": "another"}  # type: ignore[method-assign]
    cache = fusioncache.Cache(record=False)
    transform = fusioncache.FusionCache(cache=cache, backend=spec.backend, programs=False, jobs=0)
    model, example = make_model(spec)
    jit(model, spec.backend, transform)(example).sum().backward()
    synchronize(spec.device)
    return transform.stats().compiles


@command(__doc__)
@click.option("--model", type=click.Choice(MODELS), default="llama")
@layers_option(8)
@click.option("--jobs", type=Numbers(), default=(1, 2, 4, 8), help="As in 1,2,4,8.")
@backend_option("nvfuser", "inductor")
@json_option
def main(json_file: Path | None, model: str, layers: int, jobs: Sequence[int], backend: str) -> None:
    """Runs the benchmark."""
    run = begin(json_file, {"model": model, "layers": layers}, backend)
    machine = run.machine
    spec = ModelSpec(model, layers, machine.backend, machine.device, machine.choose_dtype(model))
    with TemporaryDirectory(prefix="fusioncache-ahead-", ignore_cleanup_errors=True) as directory:
        filled = Path(directory, "filled")
        filled.mkdir()
        templates = processes.call("benchmarks.warm_ahead:fill", asdict(spec), caches=filled, environment=_STORE)
        run.more["templates"] = templates
        for number in jobs:
            point = _warm(filled, Path(directory, str(number)), number)
            run.keep({**point, "correct": point["compiled"] == templates})
            say(f"{number} processes: {point['seconds']['whole']:.2f} s\n")
    columns = {"processes": pick("jobs"), **{part: pick("seconds", part) for part in ("whole", "compiling")}}
    run.finish(f"seconds to compile {templates} templates ahead", {**columns, "compiled": pick("compiled")})


def _warm(filled: Path, caches: Path, jobs: int) -> Point:
    """Compiles what a copy of a store lacks, and returns what that took and made."""
    shutil.copytree(filled, caches)
    arguments = [sys.executable, "-m", "fusioncache", "warm", "--jobs", str(jobs), "--json"]
    environment = {**processes.environment_in(str(caches)), **_STORE}
    start = time.perf_counter()
    done = subprocess.run(arguments, cwd=processes.ROOT, env=environment, stdout=subprocess.PIPE)
    whole = time.perf_counter() - start
    said = json.loads(done.stdout)
    counts = {name: said[name] for name in ("known", "ready", "compiled", "refused")}
    return {"jobs": jobs, "seconds": {"whole": whole, "compiling": said["seconds"]}, **counts}


if __name__ == "__main__":
    main()
