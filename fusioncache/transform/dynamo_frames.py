"""Keeps Dynamo out of what Thunder compiled: inside ``torch.compile`` a compiled function runs as it does outside.

Dynamo would compile the Python code of Thunder and of this package, a hundred frames for each new input. It would also
compile what records the reads of a program, and Thunder's own code does not survive that: devices are one object each,
and Dynamo makes others. So the frames below have Dynamo skip them and all that they call. This is a mark on a code
object, in torch's C code: it costs a call nothing. Thunder's functions without this package share these code objects,
so they are skipped as well. A frame that Dynamo tries to inline is another matter: modules of this package are on its
list of files that it never traces.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from types import CodeType
from typing import Any

import torch

logger = logging.getLogger("fusioncache")

_PACKAGE = "fusioncache"
OWN_CALL = "jit.<locals>.update_call_statistics.<locals>.wrapped"
"""The name of Thunder's function that a call of a compiled function enters first."""


def keep_dynamo_out() -> None:
    """Has Dynamo skip compiled functions, modules and their backward passes from now on. Never raises.

    To be called for each transform: ``torch._dynamo.reset`` takes the marks off the code that Dynamo met before them.
    """
    try:
        from torch._dynamo import trace_rules

        if not trace_rules.check_file(__file__).skipped:
            trace_rules.add(_PACKAGE)
        skip_frames(_list_entry_points())
    except Exception as error:  # whatever is otherwise in this torch, Dynamo only takes longer
        logger.info("Dynamo traces Thunder's calls", exc_info=error)


def skip_frames(codes: Iterable[CodeType]) -> None:
    """Has Dynamo skip the frames of these code objects from now on. Never raises."""
    try:
        frames: Any = torch._C._dynamo.eval_frame
        skip = frames._FrameAction.SKIP
        for code in codes:
            frames.set_code_exec_strategy(code, frames._FrameExecStrategy(skip, skip))
    except Exception as error:  # whatever is otherwise in this torch, Dynamo only takes longer
        logger.info("Dynamo traces Thunder's calls", exc_info=error)


def _list_entry_points() -> Iterator[CodeType]:
    """Yields the code of the first function of Thunder's in each call, and of all that autograd calls."""
    from fusioncache.thunder_adapter.accelerator_api import ThunderFunction, ThunderOutputFunction, thunder
    from fusioncache.thunder_adapter.api import ThunderModule

    yield from (code for code in _walk(thunder.jit.__code__) if code.co_qualname == OWN_CALL)
    yield ThunderModule.forward.__code__
    for node in (ThunderFunction, ThunderOutputFunction):
        yield backward_code(node)


def backward_code(node: Any) -> CodeType:
    """Returns the code that autograd runs for the backward pass of one of its functions."""
    code: CodeType = getattr(node.backward, "__wrapped__", node.backward).__code__
    return code


def _walk(code: CodeType) -> Iterator[CodeType]:
    """Yields the code of functions that a function defines, and of those that they define."""
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield each
            yield from _walk(each)
