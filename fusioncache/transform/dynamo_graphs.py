"""Makes Dynamo skip Thunder's frames, and gives each of Dynamo's graphs its own transforms.

Inside ``torch.compile`` Thunder's compiled functions run as they do outside. Dynamo would compile the Python code of
Thunder and of this package, a hundred frames for each new input. It would also compile the recorder of a program's
reads, which breaks Thunder: it has one object for each device, and Dynamo makes others. So Dynamo skips the frames
below and all that they call. The mark is on a code object, in torch's C code, and costs no time in a call. Thunder's
functions without this package share these code objects, so they are skipped as well. Frames that Dynamo tries to inline
need another measure: modules of this package are on its list of files to skip.

Thunder 0.2.6 appends, for each graph, to the list of transforms that it was given, and all graphs share this list. So
an entry for a later graph also applies to earlier ones, and changes what they depend on each time. Once the first
``FusionCache`` is made, each graph gets its own list.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import wraps
from types import CodeType
from typing import Any

import torch

from fusioncache.process.warning import log_errors, warn_once
from fusioncache.thunder_adapter.installation import install_more
from fusioncache.thunder_adapter.versions import DYNAMO, explain_fault, find_faults
from fusioncache.transform.dynamo_account import dynamo_clock_of_process

_PACKAGE = "fusioncache"
_TRACED = "Dynamo traces Thunder's calls"
OWN_CALL = "jit.<locals>.update_call_statistics.<locals>.wrapped"
"""The name of Thunder's function that each call of a compiled function enters first."""
_COMPILER, _UTILS = "thunder.dynamo.compiler", "thunder.dynamo.utils"
"""Thunder's modules that take and split Dynamo's graphs. Importing them takes a tenth of a second, which most programs
need not spend."""


def separate_graphs() -> None:
    """Gives each graph its own transforms from now on, if this process may have graphs."""
    if _COMPILER in sys.modules:
        dynamo_clock_of_process()
        for fault in find_faults(DYNAMO):
            warn_once(explain_fault(fault))
        for capability in ("own transforms of graphs", "account of graphs", "answers to the splitter"):
            install_more(capability)


def give_own_transforms(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a replacement with which Thunder appends to a list that no other graph shares."""

    @wraps(original)
    def _with_prologue_pruning_transform(*, current_thunder_options: Mapping[str, Any], **others: Any) -> Any:
        own = {**current_thunder_options, "transforms": list(current_thunder_options.get("transforms", ()))}
        return original(current_thunder_options=own, **others)

    return _with_prologue_pruning_transform


def is_graph(function: Any) -> bool:
    """True if a function is one of Dynamo's graphs."""
    return isinstance(function, torch.fx.GraphModule)


def describe_graph(module: Any) -> Iterator[str]:
    """Yields a description that graphs of one function share: their operations without sizes."""
    for node in module.graph.nodes:
        value = node.meta.get("example_value")
        if isinstance(value, torch.nn.Parameter):
            yield f"parameter {value.dtype} {tuple(value.shape)}"
        elif not isinstance(value, int | float | torch.SymInt | torch.SymFloat | torch.SymBool):
            target = getattr(node.target, "__qualname__", node.target)
            yield f"{node.op} {'' if node.op == 'placeholder' else target} {getattr(value, 'dtype', '')}"


def keep_dynamo_out() -> None:
    """Makes Dynamo skip compiled functions, modules and their backward passes from now on. Never raises.

    To be called for each transform, because ``torch._dynamo.reset`` unmarks code that Dynamo met before it was marked.
    """
    with log_errors(_TRACED):  # as in another torch: Dynamo only takes longer
        from torch._dynamo import trace_rules

        if not trace_rules.check_file(__file__).skipped:
            trace_rules.add(_PACKAGE)
        skip_frames(_list_entry_points())


def skip_frames(codes: Iterable[CodeType]) -> None:
    """Makes Dynamo skip the frames of these code objects from now on. Never raises."""
    with log_errors(_TRACED):
        frames: Any = torch._C._dynamo.eval_frame
        skip = frames._FrameAction.SKIP
        for code in codes:
            frames.set_code_exec_strategy(code, frames._FrameExecStrategy(skip, skip))


def _list_entry_points() -> Iterator[CodeType]:
    """Yields the code objects of Thunder's first function in each call, and of its functions that autograd calls."""
    from fusioncache.thunder_adapter.accelerator_api import ThunderFunction, ThunderOutputFunction, thunder
    from fusioncache.thunder_adapter.api import ThunderModule

    yield from (code for code in _walk(thunder.jit.__code__) if code.co_qualname == OWN_CALL)
    yield ThunderModule.forward.__code__
    for node in (ThunderFunction, ThunderOutputFunction):
        yield backward_code(node)


def backward_code(node: Any) -> CodeType:
    """Returns the code object that autograd runs for the backward pass of an autograd function."""
    code: CodeType = getattr(node.backward, "__wrapped__", node.backward).__code__
    return code


def _walk(code: CodeType) -> Iterator[CodeType]:
    """Yields the code objects of all functions nested in a function."""
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield each
            yield from _walk(each)
