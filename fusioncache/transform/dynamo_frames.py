"""Hides Thunder's compiled functions from Dynamo: inside ``torch.compile`` they run as they do outside.

Dynamo would compile the Python code of Thunder and of this package, a hundred frames for each new input. It would also
compile the recorder of a program's reads, which breaks Thunder: it has one object for each device, and Dynamo makes
others. So Dynamo skips the frames below and all that they call. The mark is on a code object, in torch's C code, and
costs no time in a call. Thunder's functions without this package share these code objects, so they are skipped as well.
Frames that Dynamo tries to inline need another measure: modules of this package are on its list of files to skip.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import CodeType
from typing import Any

import torch

from fusioncache.process.warning import log_errors

_PACKAGE = "fusioncache"
_TRACED = "Dynamo traces Thunder's calls"
OWN_CALL = "jit.<locals>.update_call_statistics.<locals>.wrapped"
"""The name of Thunder's function that each call of a compiled function enters first."""


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
