"""Parts of a trace that Thunder's ``CUDAGraphTransform`` captures: out of the calls that it makes, and calls anew."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

from fusioncache.accelerators.programs.describe import Describer
from fusioncache.ir.errors import Declined, Scope

TRANSFORM = "thunder.transforms.cudagraph.CUDAGraphTransform"
"""The class of the transform. One that is derived from it is somebody else's."""

_ATTRIBUTES = {"cuda_graph_runner", "outputs_from_forward"}


def write_transform_key(transform: Any) -> str:
    """Returns what a program depends on of the transform: the code of its classes, and its option.

    What it has captured before does not matter: a part that is captured gets a name of its own.

    Raises:
        Declined: if it has something that the class does not give it, is in the middle of a trace, or
            its classes have been given something that has no value.
    """
    from fusioncache.thunder_adapter.accelerator_api import CUDAGraphRunner

    runner = transform.cuda_graph_runner
    if type(runner) is not CUDAGraphRunner or vars(transform).keys() != _ATTRIBUTES:
        raise Declined(f"the transform {TRANSFORM} was changed", Scope.PROGRAM)
    if transform.outputs_from_forward is not None:
        raise Declined(f"the transform {TRANSFORM} waits for a backward trace", Scope.PROGRAM)
    describer = Describer()
    classes = (describer.describe(cls) for cls in (type(transform), CUDAGraphRunner))
    return " ".join((*classes, f"share_mem_pool={runner.mem_pool is not None}"))


def find_captured(function: FunctionType) -> tuple[str, Callable[..., Any], tuple[bool, ...] | None] | None:
    """Returns what a call in a trace captures in a CUDA graph; None if it is no such call.

    Returns:
        The name of what is captured, its function, and which of its arguments always lie at the same place.
    """
    from fusioncache.thunder_adapter.accelerator_api import CUDAGraphRunner

    if function.__code__.co_freevars != ("fn_name", "self"):
        return None
    name, runner = (cell.cell_contents for cell in function.__closure__ or ())
    if type(runner) is not CUDAGraphRunner or name not in runner.python_callables:
        return None
    captured, static_inputs = runner.python_callables[name]
    return name, captured, static_inputs


def capture(function: Callable[..., Any], static_inputs: tuple[bool, ...] | None) -> Callable[..., Any]:
    """Returns a call that captures a function in a CUDA graph when it is first called, as the transform would make it.

    The transform is the one of the function that Thunder compiles at this moment.

    Raises:
        ValueError: if it has none, or several.
    """
    from fusioncache.thunder_adapter.accelerator_api import CUDAGraphTransform
    from fusioncache.thunder_adapter.api import get_compile_data

    transforms = getattr(get_compile_data(), "transforms", ())
    runners = [each.cuda_graph_runner for each in transforms if isinstance(each, CUDAGraphTransform)]
    if len(runners) != 1:
        raise ValueError(f"there are {len(runners)} transforms that capture CUDA graphs, not one")
    (runner,) = runners
    # Names are counted by the runner, which has parts of other traces as well.
    name = f"CUDAGraph{runner.name_counter}"
    runner.name_counter += 1
    runner.python_callables[name] = function, static_inputs

    def call(*args: Any) -> Any:
        return runner.call_cuda_graph(name, *args)

    call.__name__ = call.__qualname__ = f"{name}_fn"
    return call
