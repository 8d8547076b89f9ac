"""Which of Thunder's functions are a phase of a first step, and how they are timed wherever they are called from."""

from __future__ import annotations

from typing import Any

import thunder
import thunder.executors.nvfuserex  # so that its functions are there to be timed
from thunder.core import rematerialization, trace, transform_common
from thunder.executors import passes
from thunder.transforms import autodiff

import fusioncache
from benchmarks.first_step.stopwatch import Stopwatch
from fusioncache.backends.api import backend_class
from fusioncache.thunder_adapter.installation import Importers
from fusioncache.transform.executors import NAME


def time_passes(stopwatch: Stopwatch, backend: str) -> None:
    """Times Thunder's passes from now on. Shortcuts are to be installed before, as they replace some of them."""
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
    of_prologue = stopwatch.time_whole_calls("prologue", thunder.transform_for_execution, _is_for_the_prologue)
    Importers().exchange(thunder.transform_for_execution, of_prologue)
    trace.TraceCtx.python_callable = stopwatch.time_calls("codegen", trace.TraceCtx.python_callable)
    for executor in filter(None, map(thunder.get_executor, (NAME, "nvfuser"))):
        type(executor).fusion_pass = stopwatch.time_calls("fuse", type(executor).fusion_pass)
    transform: Any = fusioncache.FusionCache
    hook = transform.transform_trace_post_optimization
    transform.transform_trace_post_optimization = stopwatch.time_calls("fusioncache", hook)
    # Observers hear of a compilation when it is over: too late to leave out the phases that are timed within it.
    compiler: Any = backend_class(backend)
    for name in ("compile", "persist"):
        setattr(compiler, name, stopwatch.time_whole_calls("compile", getattr(compiler, name), lambda *_: True))


def _is_for_the_prologue(*args: Any, executors_list: Any, **kwargs: Any) -> bool:
    """Tells by the executors: the prologue is claimed by Python alone."""
    return executors_list == (thunder.pythonex,)
