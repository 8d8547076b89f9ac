"""Runs the processes of ``benchmarks/nvfuser_seconds``, some at once, and compares what they say."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.common import processes
from benchmarks.common.cores import share_cores
from benchmarks.common.nvfuser_trace import VARIABLE, read_calls
from benchmarks.common.results import Point, say
from benchmarks.first_step.spec import PointSpec
from benchmarks.nvfuser_seconds.spec import Variant

_WORKER = "benchmarks.nvfuser_seconds.worker"
_LEAST_SECONDS = 0.02
"""In functions in which nvFuser is for less nothing is to be spared."""
_DUMPED = "fusion_ir_math,fusion_ir_preseg,segmented_fusion,scheduler_params"


def fill_store(spec: PointSpec, caches: Path) -> Path:
    """Trains one step, and returns the directory with the templates that it asked for."""
    caches.mkdir()
    environment = {"FUSIONCACHE_STORE": "1", "FUSIONCACHE_JOBS": "0"}
    processes.call("benchmarks.first_step.worker", asdict(spec), caches=caches, environment=environment)
    (store,) = Path(caches, "fusioncache_dir").glob("store-*")
    return store


def run_variants(
    store: Path, variants: Sequence[Variant], parallel: int, dump: Path | None, save: Callable[[Point], None]
) -> None:
    """Compiles all templates of a store in each way.

    Args:
        store: its directory, beside which nvFuser's traces are written.
        variants: the ways.
        parallel: how many processes run at once, each on cores of its own.
        dump: a folder for definitions and their CUDA, and of the process with a trace for all that nvFuser prints.
        save: is given each point.
    """
    with ThreadPoolExecutor(parallel, initializer=share_cores(parallel)) as pool:
        found = [pool.submit(_run_variant, variant, store, dump) for variant in variants]
        for future in found:
            save(future.result())


def _run_variant(variant: Variant, store: Path, dump: Path | None) -> Point:
    point: Point = {"variant": variant.name, "meaning": variant.meaning}
    traced = variant.way == "trace"
    trace = store.with_name(f"trace-{variant.name}.json")
    environment = {**variant.environment, **({VARIABLE: str(trace)} if traced else {})}
    if traced and dump:
        environment["NVFUSER_DUMP"] = _DUMPED
    said = str(dump / f"{variant.name}.txt") if dump else None
    options = {"variant": asdict(variant), "store": str(store), "dump": said}
    try:
        templates = processes.call(_WORKER, options, environment=environment)
    except processes.ProcessFailed as failure:
        say(f"{variant.name}: failed, {failure.format_message()}\n")
        return point | {"error": str(failure)}
    if traced:
        _add_scopes(templates, trace)
    say(f"{variant.name}: {sum(template.get('seconds', 0.0) for template in templates):.2f} s\n")
    return point | {"templates": templates}


def _add_scopes(templates: Sequence[dict[str, Any]], trace: Path) -> None:
    """Adds to each template what nvFuser's trace says of its compile: each was called once more, to be compared."""
    _, *calls = read_calls(trace)
    for template, scopes in zip(templates, calls[::2], strict=True):
        long = {name: scope for name, scope in scopes.items() if scope.seconds >= _LEAST_SECONDS}
        template["scopes"] = {name: asdict(scope) for name, scope in sorted(long.items())}


def compare(point: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    """Returns how a point differs from the base: seconds, their ratio, templates with other bits and other kernels."""
    pairs = list(zip(point["templates"], base["templates"], strict=True))
    seconds, before = (sum(template["seconds"] for template in column) for column in zip(*pairs, strict=True))
    return {
        "seconds": seconds,
        "ratio": seconds / before,
        "cpu": sum(template["cpu"] for template, _ in pairs),
        "other_bits": sum(one["bits"] != other["bits"] for one, other in pairs),
        "other_code": sum(one["code"] != other["code"] for one, other in pairs) if "code" in pairs[0][0] else None,
        "kernels": sum(template.get("kernels", 0) for template, _ in pairs),
    }


def sum_turns(templates: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Returns the seconds of all templates by the option that was off; nothing if they were not compiled in turns."""
    turns = [template["in_turns"] for template in templates if "in_turns" in template]
    return {option: sum(turn[option] for turn in turns) for option in (turns[0] if turns else ())}
