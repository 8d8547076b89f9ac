"""Compares the saved seconds that ``stats()`` reports with the real difference between Thunder alone and fusioncache.

All processes are fresh and have the same executors. Caches are empty, except for what a second process loads. The real
difference is that of the first training step. Like ``stats()``, it excludes the one-time start of the compiler, which
is measured separately, and faster tracing: ``alone`` is Thunder with the shortcuts of
``fusioncache.tracing.install()``.

Reported and real seconds agree if they differ by no more than 20%, or half a second. Medians count. Seconds are CPU
time, of a process and of its children, or wall time. Other processes of a host change wall time by more than a tenth
from one process to the next. The clock of the whole process is replaced before fusioncache is imported, so that
reported and real seconds are from the same clock.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import click
import torch

from benchmarks import zoo
from benchmarks.common import processes
from benchmarks.common.options import Words, backend_option, command, json_option, layers_option, repeat_option
from benchmarks.common.processes import print_progress
from benchmarks.common.runner import Point, begin, pick

_INDUCTOR = "TORCHINDUCTOR_CACHE_DIR"

STARTS, ALONE, OURS = "starts", "alone", "fusioncache"
"""What a process runs: only the start of the compiler, Thunder with fusioncache's shortcuts, or all of fusioncache."""

MODELS = ("gelu-stack", "llama-2", "pythia", "nothing-repeats")
"""``gelu-stack`` is four linear layers and GELUs; in ``nothing-repeats`` no two regions are equal. The others are
narrow models of the zoo."""


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """A first step in a process of its own.

    Attributes:
        way: ``STARTS``, ``ALONE`` or ``OURS``.
        model: one of ``MODELS``.
        layers: of a model of the zoo.
        backend: the compiler of regions.
        device: ``"cpu"`` or ``"cuda"``.
        clock: ``"cpu"`` for the CPU seconds of the process and of its children, ``"wall"`` for wall seconds.
        processor: the instruction set that another process detected; empty to detect it.
    """

    way: str
    model: str
    layers: int
    backend: str
    device: str
    clock: str
    processor: str = ""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two processes whose difference is the saving of fusioncache.

    Attributes:
        name: in the table.
        alone: the role of the process without fusioncache.
        ours: the role of the process with fusioncache.
    """

    name: str
    alone: str
    ours: str


COMPARISONS = (
    Comparison("first process", "alone", "first"),
    Comparison("second process", "alone", "second"),
    Comparison("second process, TorchInductor's caches full", "alone again", "second beside"),
)


def agrees(reported: float, real: float) -> bool:
    """True if reported seconds are within 20% of the real ones, or within half a second."""
    return abs(reported - real) <= max(0.2 * abs(real), 0.5)


def measure(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the seconds of a first step without the compiler's start, those of the start, and reported seconds."""
    spec = ProcessSpec(**options)
    if spec.clock == "cpu":
        time.perf_counter = _read_cpu_seconds
    from benchmarks.common.counting import use_backend

    use_backend(spec.backend)
    if spec.processor:
        _trust_instruction_sets()
    result = _measure_ours(spec) if spec.way == OURS else _measure_alone(spec)
    processor = _find_processor(spec)
    if spec.processor not in ("", processor):
        raise ValueError(f"the processor can do {processor} here, and {spec.processor} in another process")
    return {**result, "processor": processor}


def _measure_alone(spec: ProcessSpec) -> dict[str, Any]:
    started = _start(spec)
    if spec.way == STARTS:
        return {"start": started, "step": 0.0}
    import fusioncache.tracing

    fusioncache.tracing.install()
    from benchmarks.common.counting import count_compiles

    counter = count_compiles(spec.backend)
    return {"start": started, "step": _take_step(spec, None), "compiling": counter.seconds}


def _measure_ours(spec: ProcessSpec) -> dict[str, Any]:
    import fusioncache

    transform = fusioncache.FusionCache(cache=fusioncache.Cache(), backend=spec.backend, jobs=0)
    total, stats = _take_step(spec, transform), transform.stats()
    started = sum(stats.start_seconds.values())
    names = ("saved_seconds", "compile_seconds", "load_seconds", "loaded_compile_seconds", "loaded_program_seconds")
    counts = ("regions", "templates", "hits", "compiles", "loads", "programs_loaded")
    reported = {name: getattr(stats, name) for name in (*names, *counts)}
    own = {"canonicalize_seconds": stats.canonicalize_seconds, "program_seconds": dict(stats.program_seconds)}
    return {"start": started, "step": total - started, "reported": reported | own}


def _take_step(spec: ProcessSpec, transform: Any) -> float:
    """Takes a first training step; returns its seconds, tracing included."""
    from benchmarks.common.steps import synchronize
    from benchmarks.common.thunder_jit import jit

    model, inputs = _make_model(spec)
    synchronize(spec.device)
    begun = time.perf_counter()
    jit(model, spec.backend, transform)(*inputs).sum().backward()
    synchronize(spec.device)
    return time.perf_counter() - begun


def _start(spec: ProcessSpec) -> float:
    """Starts the compiler and also Dynamo, which only Thunder without fusioncache uses; returns the seconds."""
    import thunder  # noqa: F401

    from fusioncache.backends.api import make_backend
    from fusioncache.backends.inductor.backend import inductor_function

    begun = time.perf_counter()
    make_backend(spec.backend).start(spec.device)
    if spec.backend == "inductor":
        inductor_function(lambda x: [torch.sigmoid(x) - 3])(torch.ones(3, 7, device=spec.device))
    return time.perf_counter() - begun


def _trust_instruction_sets() -> None:
    """Makes TorchInductor trust the processor's instruction sets: testing them takes ten seconds of CPU time.

    The test is part of the start, which no figure of a step includes, and one process measures it.
    """
    from torch._inductor.cpu_vec_isa import VecISA

    VecISA.check_build = lambda self, code: True  # type: ignore[method-assign]


def _find_processor(spec: ProcessSpec) -> str:
    if spec.device != "cpu" or spec.backend != "inductor":
        return "-"
    from torch._inductor.cpu_vec_isa import pick_vec_isa

    return str(pick_vec_isa())


def _make_model(spec: ProcessSpec) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    if spec.model == "gelu-stack":
        layers = [torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU()) for _ in range(4)]
        return torch.nn.Sequential(*layers).to(spec.device), (torch.randn(8, 64, device=spec.device),)
    if spec.model == "nothing-repeats":
        functions = (torch.nn.GELU(), torch.nn.SiLU(), torch.nn.Tanh(), torch.nn.ELU())
        widths = (64, 48, 40, 32, 24)
        pairs = zip(widths, widths[1:], functions, strict=False)
        layers = [torch.nn.Sequential(torch.nn.Linear(*sizes), function) for *sizes, function in pairs]
        return torch.nn.Sequential(*layers).to(spec.device), (torch.randn(8, 64, device=spec.device),)
    workload = zoo.make(spec.model, spec.layers, spec.device)
    return workload.model, workload.inputs


def _read_cpu_seconds() -> float:
    """Returns the CPU seconds of this process and of the children that it waited for."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)


@command(__doc__)
@click.option("--models", type=Words(MODELS), default=MODELS, help="As in llama-2,pythia.")
@layers_option(2)
@backend_option("nvfuser", "inductor")
@repeat_option("How often all processes of a model run; the median counts.")
@click.option("--clock", type=click.Choice(["auto", "cpu", "wall"]), default="auto", help="auto is wall on a GPU.")
@json_option
def main(json_file: Path | None, models: Sequence[str], layers: int, backend: str, repeat: int, clock: str) -> None:
    """Runs the benchmark."""
    run = begin(json_file, {"layers": layers, "repeat": repeat}, backend)
    if clock == "auto":
        clock = "cpu" if run.machine.device == "cpu" else "wall"
    run.options = {**run.options, "clock": clock}
    about = {name: run.options[name] for name in ("layers", "backend", "device", "clock")}
    with TemporaryDirectory(prefix="fusioncache-saved-", ignore_cleanup_errors=True) as directory:
        series = _Series(Path(directory), about)
        run.more["start_seconds"] = series.start()
        for model in models:
            found: dict[str, list[Mapping[str, Any]]] = {}
            earlier = len(run.points)
            for _ in range(repeat):
                for role, result in series.run(model).items():
                    found.setdefault(role, []).append(result)
                run.points[earlier:] = [_compare(model, each, found) for each in COMPARISONS if each.alone in found]
                run.save()
    run.notes.append(f"one-time start of the compiler: {run.more['start_seconds']:.1f} s, part of no figure above")
    names = ("alone", "fusioncache", "real", "reported")
    columns = {
        "<model": pick("model"),
        "<process": pick("comparison"),
        **{name: pick("seconds", name) for name in names},
    }
    columns |= {"agree": pick("agrees")}
    for point in run.points:
        point["correct"] = point["agrees"]
    run.finish("seconds of the first step", columns)


@dataclass(slots=True)
class _Series:
    """Runs the processes of a model.

    Attributes:
        directory: of their caches.
        about: fields of their specs.
        processor: the instruction set that the first process detected.
        number: how often the processes of a model ran.
    """

    directory: Path
    about: Mapping[str, Any]
    processor: str = ""
    number: int = field(default=0)

    def start(self) -> float:
        """Runs a process that only starts the compiler; returns its seconds. Others use its instruction set."""
        result = self._call(STARTS, MODELS[0], "seed", self.directory / "inductor-seed")
        self.processor = result["processor"]
        return float(result["start"])

    def run(self, model: str) -> dict[str, Mapping[str, Any]]:
        """Runs each process once; returns the results by role."""
        self.number += 1

        def call(way: str, caches: str, inductor: str) -> Mapping[str, Any]:
            folder = self.directory / f"inductor-{self.number}-{inductor}"
            return self._call(way, model, f"{self.number}-{caches}", folder)

        found = {
            "alone": call(ALONE, "alone", "alone"),
            "first": call(OURS, "ours", "first"),
            "second": call(OURS, "ours", "second"),
        }
        if self.about["backend"] == "inductor":
            found["alone again"] = call(ALONE, "alone", "alone")
            found["second beside"] = call(OURS, "ours", "alone")
        return found

    def _call(self, way: str, model: str, caches: str, inductor: Path) -> Mapping[str, Any]:
        spec = ProcessSpec(way, model, **self.about, processor=self.processor)
        folder = self.directory / caches
        folder.mkdir(exist_ok=True)
        about: dict[str, Any] = {"caches": folder, "environment": {_INDUCTOR: str(inductor), **self._headers()}}
        result: Mapping[str, Any] = processes.call("benchmarks.saved_seconds:measure", asdict(spec), **about)
        print_progress(f"{model}, {way}: start {result['start']:.2f} s, step {result['step']:.2f} s\n")
        return result

    def _headers(self) -> dict[str, str]:
        """Returns the variable by which all processes find the headers that the first one precompiled at its start."""
        if self.about["backend"] != "inductor":
            return {}
        folder = self.directory / "headers"
        folder.mkdir(exist_ok=True)
        return {"TMPDIR": str(folder)}


def _compare(model: str, comparison: Comparison, found: Mapping[str, Sequence[Mapping[str, Any]]]) -> Point:
    """Returns one point: medians of the reported seconds and of the real difference."""

    def median_of(role: str, read: Callable[[Mapping[str, Any]], float]) -> float:
        return median(map(read, found[role]))

    alone, ours = (median_of(role, lambda each: each["step"]) for role in (comparison.alone, comparison.ours))
    reported = median_of(comparison.ours, lambda each: each["reported"]["saved_seconds"])
    return {
        "model": model,
        "comparison": comparison.name,
        "seconds": {"alone": alone, "fusioncache": ours, "real": alone - ours, "reported": reported},
        "start": {role: median_of(role, lambda each: each["start"]) for role in (comparison.alone, comparison.ours)},
        "agrees": agrees(reported, alone - ours),
        "repeats": {role: list(found[role]) for role in (comparison.alone, comparison.ours)},
    }


if __name__ == "__main__":
    main()
