"""One point of ``benchmarks/first_step``, measured in a process of its own.

Each phase is the time inside some of Thunder's functions, less that inside those of other phases:

- ``interpret``: the interpretation of the model's bytecode, which yields the first traces.
- ``prologue``: the checks that run before every call are made executable.
- ``grad``: the backward pass is derived, and later split off.
- ``claim``: executors claim the operations that they run.
- ``fuse``: the fusion executor groups operations into regions.
- ``rematerialize``: what regions pass to each other is cut down.
- ``cleanup``: dead code is dropped, and ``del`` statements are inserted.
- ``codegen``: traces are printed as Python and compiled by it.
- ``fusioncache``: regions become templates, keys and calls.
- ``compile``: the backend compiles, each time up to the end of the first execution.
- ``rest``: what remains of ``total``: execution, autograd, and what Thunder does between the passes.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

import thunder
import thunder.executors.nvfuserex  # so that its functions are there to be timed
import torch
from thunder.core import rematerialization, trace, transform_common
from thunder.executors import passes
from thunder.transforms import autodiff

import fusioncache
from benchmarks.common.models import make_model
from benchmarks.common.processes import serve
from benchmarks.common.rematerialization import recompute_sums
from benchmarks.common.spec import ModelSpec
from benchmarks.common.steps import synchronize
from benchmarks.common.thunder_jit import jit
from fusioncache.backends.registry import backend_class
from fusioncache.trace.executors import NAME


class Stopwatch:
    """Seconds by phase, each less those of the phases that it calls."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._inner = [0.0]
        self._whole = False

    def time_calls(self, phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns the function, its time counted for a phase."""

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
        self, phase: str, function: Callable[..., Any], when: Callable[..., bool]
    ) -> Callable[..., Any]:
        """Returns the function, all its time counted for a phase where ``when`` says so of its arguments."""
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


def measure(options: Mapping[str, Any]) -> dict[str, float]:
    """Returns the seconds of each phase."""
    fast = options["tracing"] == "fast"
    spec = ModelSpec(**{name: value for name, value in options.items() if name != "tracing"})
    # A model that has nothing in common with those that are measured pays the one-time costs of a process.
    other = torch.nn.Sequential(torch.nn.Linear(7, 7), torch.nn.Sigmoid()).to(spec.device)
    _step(spec, other, torch.ones(3, 7, device=spec.device), fast)
    model, example = make_model(spec)
    stopwatch = Stopwatch()
    _time_passes(stopwatch, spec.backend)
    with recompute_sums(spec.recompute):
        start = time.perf_counter()
        _step(spec, model, example, fast)
        total = time.perf_counter() - start
    seconds = dict(stopwatch.seconds)
    return seconds | {"rest": total - sum(seconds.values()), "total": total}


def _step(spec: ModelSpec, model: Any, example: Any, fast_tracing: bool) -> None:
    cache = fusioncache.Cache(record=False)
    transform = fusioncache.FusionCache(cache=cache, backend=spec.backend, fast_tracing=fast_tracing)
    jit(model, spec.backend, transform)(example).sum().backward()
    synchronize(spec.device)


def _time_passes(stopwatch: Stopwatch, backend: str) -> None:
    """Times Thunder's passes from now on, wherever they are called from."""
    phases: dict[str, tuple[Any, ...]] = {
        "interpret": (thunder.thunder_general_jit,),
        "grad": (autodiff.grad_transform_on_trace, autodiff.split_into_forward_and_backward),
        "claim": (passes._transform_for_operator_executor_execution,),
        "rematerialize": (rematerialization.rematerialize,),
        "cleanup": (transform_common.dce, passes.del_last_used),
    }
    for phase, functions in phases.items():
        for function in functions:
            _replace_everywhere(function, stopwatch.time_calls(phase, function))
    of_prologue = stopwatch.time_whole_calls("prologue", thunder.transform_for_execution, _is_for_the_prologue)
    _replace_everywhere(thunder.transform_for_execution, of_prologue)
    trace.TraceCtx.python_callable = stopwatch.time_calls("codegen", trace.TraceCtx.python_callable)
    for executor in filter(None, map(thunder.get_executor, (NAME, "nvfuser"))):
        type(executor).fusion_pass = stopwatch.time_calls("fuse", type(executor).fusion_pass)
    transform: Any = fusioncache.FusionCache
    hook = transform.transform_trace_post_optimization
    transform.transform_trace_post_optimization = stopwatch.time_calls("fusioncache", hook)
    # Observers hear of a compilation when it is over: too late to leave out the phases that are timed within it.
    compiler: Any = backend_class(backend)
    compiler.compile = stopwatch.time_whole_calls("compile", compiler.compile, lambda *_: True)


def _is_for_the_prologue(*args: Any, executors_list: Any, **kwargs: Any) -> bool:
    """Tells by the executors: the prologue is claimed by Python alone."""
    return executors_list == (thunder.pythonex,)


def _replace_everywhere(function: Any, replacement: Any) -> None:
    """Replaces a function in every module of Thunder's or ours that imported it by name."""
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] in ("thunder", "fusioncache"):
            for attribute, value in list(vars(module).items()):
                if value is function:
                    setattr(module, attribute, replacement)


if __name__ == "__main__":
    serve(measure)
