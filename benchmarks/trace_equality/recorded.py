"""Traces that are recorded, as where programs are kept: without somebody who vouches no block is written out."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

import thunder
import torch

from fusioncache.accelerators.programs.describe import Describer
from fusioncache.accelerators.programs.recorder import Recorder
from fusioncache.ir.errors import Declined, Scope


@contextlib.contextmanager
def recording() -> Iterator[None]:
    """Has every trace recorded that is made meanwhile."""
    own = thunder.thunder_general_jit

    def trace(function: Any, args: Any, kwargs: Any, /, **options: Any) -> Any:
        return trace_recorded(own, function, args, kwargs, **options)[0]

    with mock.patch.object(thunder, "thunder_general_jit", trace):
        yield


def trace_recorded(
    trace: Callable[..., Any], function: Any, args: Any, kwargs: Any, /, **options: Any
) -> tuple[Any, Recorder | None]:
    """Returns what ``trace`` returns, and the recorder; None if what is called has no value, so nothing is kept."""
    key, describer = describe_call(function, args, kwargs)
    if key is None:
        return trace(function, args, kwargs, **options), None
    with Recorder(describer) as recorder:
        return trace(function, args, kwargs, **options), recorder


def describe_call(
    function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...] | None, Describer]:
    """Returns what must be equal before reads are compared, and what has described it; None if it has no value."""
    describer = Describer()
    state = (
        torch.get_default_dtype(), torch.get_default_device(), torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"),
    )  # fmt: skip
    options = vars(thunder.core.compile_data.get_compile_data())
    try:
        lines = [*describer.walk("model", function), *describer.walk("args", args), *describer.walk("kwargs", kwargs)]
    except Declined as declined:
        declined.require(Scope.VALUE, Scope.AMOUNT)
        return None, describer
    return (*lines, *describer.classes.items(), repr(state), repr(options["cache_option"])), describer
