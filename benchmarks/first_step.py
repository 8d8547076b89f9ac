"""Measures the phases of a first step: Thunder's interpreter and each pass, fusioncache, compiling, running.

Every point is a fresh process with empty cache directories. ``--tracing own`` is Thunder's original tracing, ``fast``
that of ``FusionCache(fast_tracing=True)``. No figure includes imports, the start of the device, or the one-time start
of the compiler. Each phase is the time inside some of Thunder's functions, less that inside other phases:

- ``interpret``: the interpretation of the model's bytecode, which yields the first traces.
- ``prologue``: the guards that run before every call are made executable.
- ``grad``: the backward pass is derived, and later split off.
- ``claim``: executors claim the operations that they run.
- ``fuse``: the fusion executor groups operations into regions.
- ``rematerialize``: the values that regions pass to each other are reduced.
- ``cleanup``: dead code is removed, and ``del`` statements are inserted.
- ``codegen``: traces are printed as Python and compiled by it.
- ``fusioncache``: regions become templates, keys and calls.
- ``compile``: the backend compiles in this process, each time up to the end of the first execution.
- ``rest``: the rest of ``total``: execution, autograd, Thunder's work between passes, waiting for other processes.

``total`` is the wall time from the construction of ``FusionCache`` to the end of the backward pass, synchronized.
``trace`` is the part up to the first call of the prologue, which runs when all is traced, and ``after_trace`` the
remainder. ``longest`` is the longest compile time of a template, in any process. No step can end sooner than that after
tracing, so ``over`` is the excess of ``after_trace``.
"""

from __future__ import annotations

import gc
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import wraps
from itertools import product
from typing import Any

import click

from benchmarks.common.models import MODELS, TOKENS, WIDTHS, ModelSpec, count_layers, make_model
from benchmarks.common.options import (
    Numbers,
    Words,
    repeat_option,
)
from benchmarks.common.processes import print_progress
from benchmarks.common.runner import Point, Run, benchmark, find_medians, pick
from benchmarks.common.steps import synchronize

TRACINGS = ("own", "fast")
PASSES = ("interpret", "prologue", "grad", "claim", "fuse", "rematerialize", "cleanup", "codegen", "fusioncache")
"""The phases of tracing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstStepSpec(ModelSpec):
    """A first step in a process of its own.

    Attributes:
        tracing: one of ``TRACINGS``.
        jobs: number of compile workers; None for fusioncache's default.
        store: whether fusioncache stores compiled code. Workers only compile into its store.
    """

    tracing: str = "fast"
    jobs: int | None = None
    store: bool = True

    def __str__(self) -> str:
        words = [count_layers(self.layers), self.tracing]
        return ", ".join(words if self.jobs is None else [*words, f"{self.jobs} jobs"])


class Stopwatch:
    """Seconds by phase, each without the phases that it calls."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._inner = [0.0]
        self._whole = False

    def time_calls(self, phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a wrapper that adds the function's time to a phase."""

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if self._whole:
                return function(*args, **kwargs)
            start = time.perf_counter()
            self._inner.append(0.0)
            try:
                return function(*args, **kwargs)
            finally:
                whole = time.perf_counter() - start
                self.seconds[phase] += whole - self._inner.pop()
                self._inner[-1] += whole

        return call

    def time_whole_calls(
        self, phase: str, function: Callable[..., Any], when: Callable[..., bool] = lambda *_, **__: True
    ) -> Callable[..., Any]:
        """Returns a wrapper that adds all time of the function to a phase, if ``when`` is true of its arguments."""
        timed = self.time_calls(phase, self._without_inner(function))

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            return timed(*args, **kwargs) if when(*args, **kwargs) else function(*args, **kwargs)

        return call

    def _without_inner(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self._whole = True
            try:
                return function(*args, **kwargs)
            finally:
                self._whole = False

        return call


def time_passes(stopwatch: Stopwatch, backend: str) -> None:
    """Times Thunder's passes from now on. Install shortcuts before, because they replace some of them."""
    import thunder
    import thunder.executors.nvfuserex  # so that its functions exist and can be timed
    from thunder.core import rematerialization, trace, transform_common
    from thunder.executors import passes
    from thunder.transforms import autodiff

    import fusioncache
    from fusioncache.backends.api import backend_class
    from fusioncache.thunder_adapter.installation import Importers
    from fusioncache.transform.executors import NAME

    phases: dict[str, tuple[Any, ...]] = {
        "interpret": (thunder.thunder_general_jit,),
        "grad": (autodiff.grad_transform_on_trace, autodiff.split_into_forward_and_backward),
        "claim": (passes._transform_for_operator_executor_execution,),
        "rematerialize": (rematerialization.rematerialize,),
        "cleanup": (transform_common.dce, passes.del_last_used),
    }
    for phase, functions in phases.items():
        for function in functions:
            Importers().exchange(function, stopwatch.time_calls(phase, function))

    def is_for_the_prologue(*args: Any, executors_list: Any, **kwargs: Any) -> bool:
        return executors_list == (thunder.pythonex,)  # only Python's executor claims the prologue

    of_prologue = stopwatch.time_whole_calls("prologue", thunder.transform_for_execution, is_for_the_prologue)
    Importers().exchange(thunder.transform_for_execution, of_prologue)
    trace.TraceCtx.python_callable = stopwatch.time_calls("codegen", trace.TraceCtx.python_callable)
    for executor in filter(None, map(thunder.get_executor, (NAME, "nvfuser"))):
        type(executor).fusion_pass = stopwatch.time_calls("fuse", type(executor).fusion_pass)
    transform: Any = fusioncache.FusionCache
    hook = transform.transform_trace_post_optimization
    transform.transform_trace_post_optimization = stopwatch.time_calls("fusioncache", hook)
    # Observers are notified after a compilation, which is too late to exclude the phases that are timed within it.
    compiler: Any = backend_class(backend)
    for name in ("compile", "persist"):
        setattr(compiler, name, stopwatch.time_whole_calls("compile", getattr(compiler, name)))


def measure(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the seconds of each phase and part."""
    import thunder
    import torch

    from benchmarks.common.thunder_jit import jit

    spec = FirstStepSpec.read(options)
    backend, device = spec.backend, spec.device
    other = torch.nn.Sequential(torch.nn.Linear(7, 7), torch.nn.Sigmoid()).to(device)
    jit(other, backend, _make_transform(spec, store=False))(torch.ones(3, 7, device=device)).sum().backward()
    model, example = make_model(spec)
    gc.collect()  # collecting what imports left takes 0.2 s, and would fall into a random phase
    synchronize(device)
    stopwatch = Stopwatch()
    start = time.perf_counter()
    transform = _make_transform(spec, store=spec.store)
    made = time.perf_counter() - start
    # Not before, because the installer of shortcuts must find Thunder's original functions.
    time_passes(stopwatch, backend)
    start = time.perf_counter()
    compiled = jit(model, backend, transform)
    compiled(example).sum().backward()
    synchronize(device)
    total = made + time.perf_counter() - start
    traced = made + thunder.compile_stats(compiled).last_prologue_execution_start / 1e9 - start
    seconds = dict(stopwatch.seconds)
    longest = max(
        (max(one.compile_seconds, one.loaded_compile_seconds) for one in transform.cache.templates()), default=0.0
    )
    after = total - traced
    parts = {"trace": traced, "after_trace": after, "longest": longest, "over": after - longest}
    return {"seconds": seconds | {"rest": total - sum(seconds.values()), "total": total} | parts}


def _make_transform(spec: FirstStepSpec, *, store: bool) -> Any:
    import fusioncache

    cache = fusioncache.Cache(record=False, store=store)
    options: dict[str, Any] = {} if spec.jobs is None or not store else {"jobs": spec.jobs}
    fast = spec.tracing == "fast"
    return fusioncache.FusionCache(cache=cache, backend=spec.backend, fast_tracing=fast, **options)


@benchmark(__doc__)
@click.option("--model", type=click.Choice(MODELS), default="llama")
@click.option("--width", type=click.Choice(WIDTHS), default="narrow", help="real: Llama-2-7b, 1 x 2048 tokens.")
@click.option("--layers", type=Numbers(), default=(8, 16, 32), help="As in 8,16,32.")
@click.option("--tracing", type=Words(TRACINGS), default=TRACINGS, help="As in own,fast.")
@click.option("--jobs", type=Numbers(least=0), help="Of the points with fast: as in 0,1,2,4,8.  [default: its own]")
@click.option("--store/--no-store", default=True, help="Whether fusioncache keeps what it compiles.")
@repeat_option()
def main(
    run: Run,
    model: str,
    width: str,
    layers: Sequence[int],
    tracing: Sequence[str],
    jobs: Sequence[int] | None,
    store: bool,
    repeat: int,
) -> None:
    """Runs the benchmark."""
    size = {"model": model, "width": width, "tokens": TOKENS[width]}
    common: dict[str, Any] = {**run.machine.place(model), **size, "store": store}
    specs = []
    for depth, kind in product(layers, tracing):
        counts: Sequence[int | None] = jobs or [None]
        for count in counts if kind == "fast" else [None]:
            specs.append(FirstStepSpec(layers=depth, tracing=kind, jobs=count, **common))
    found: dict[FirstStepSpec, list[Point]] = {}
    for spec in specs * repeat:
        # Compile workers must not slow down Thunder's original tracing.
        environment = {"FUSIONCACHE_STORE": str(int(store))}
        environment |= {"FUSIONCACHE_JOBS": "0"} if spec.tracing == "own" else {}
        identity = {"layers": spec.layers, "tracing": spec.tracing, "jobs": spec.jobs}
        point = run.measure(identity, "benchmarks.first_step:measure", asdict(spec), environment=environment)
        found.setdefault(spec, []).append(point)
        print_progress(f"{spec}: {point.get('error') or point['seconds']['total']}\n")
        run.points = [_make_point(results) for results in found.values()]
        run.save()
    columns = {name: pick(name) for name in ("layers", "tracing", "jobs")}
    shown = (*PASSES, "trace", "compile", "after_trace", "longest", "over", "total")
    run.finish("seconds of a first step", {**columns, **{name: pick("seconds", name) for name in shown}})


def _make_point(results: Sequence[Point]) -> Point:
    """Returns one point: medians over its processes, or the first error."""
    failed = [one for one in results if "error" in one]
    if failed:
        return failed[0]
    seconds = [one["seconds"] for one in results]
    return {**results[0], "seconds": find_medians(seconds), "repeats": seconds}


if __name__ == "__main__":
    main()
