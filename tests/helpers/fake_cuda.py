"""Traces for ``cuda:0`` with Thunder's real nvFuser executor on machines without a GPU. The traces cannot be run."""

from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest


@contextmanager
def pretend_gpu():
    """Makes Thunder detect a GPU, so that its nvFuser executor can be imported and makes regions."""
    import torch

    with (
        mock.patch.object(torch.cuda, "is_available", lambda: True),
        mock.patch.object(torch.cuda, "device_count", lambda: 1),
        mock.patch.object(torch.cuda, "get_device_capability", lambda *_: (9, 0)),
    ):
        yield


def find_nvfuser_executor() -> Any:
    """Returns Thunder's nvFuser executor; skips the test where nvFuser is not installed."""
    pytest.importorskip("nvfuser_direct")
    from fusioncache.backends.nvfuser import definition

    with pretend_gpu():
        return definition.nvfuser_executor().ex


def make_traces(
    function: Callable[..., Any], shapes: Sequence[tuple[int, ...]], *, grad: bool, dtype: str = "float32"
) -> list:
    """Returns the forward trace, and with ``grad`` the backward trace, by the same passes as in ``thunder.jit``."""
    import thunder
    from thunder.common import CompileData, CompileStats, transform_for_execution
    from thunder.common import trace as thunder_trace
    from thunder.core import devices, dtypes
    from thunder.core.compile_data import compile_data_and_stats
    from thunder.core.proxies import TensorProxy
    from thunder.core.trace import TraceCtx, tracectx
    from thunder.core.transform_common import dce
    from thunder.executors.passes import del_last_used
    from thunder.transforms.autodiff import grad_transform_on_trace, split_into_forward_and_backward

    executors = (find_nvfuser_executor(), *thunder.get_always_executors())
    compile_data = CompileData(fn=function, executors_list=executors, disable_preprocessing=True)
    with pretend_gpu(), compile_data_and_stats(compile_data, CompileStats()):
        with tracectx(TraceCtx(None)):
            device, element = devices.Device("cuda:0"), getattr(dtypes, dtype)
            inputs = [
                TensorProxy(f"input{i}", shape=shape, device=device, dtype=element, requires_grad=grad)
                for i, shape in enumerate(shapes)
            ]
        # thunder.jit's frontend returns the inputs too, under these names.
        program = lambda *args: {"output": (function(*args),), "flat_args": list(args)}  # noqa: E731
        trace = dce(thunder_trace(inline_trace=False, rename_proxies=False)(program, *inputs))
        if grad:
            trace = grad_transform_on_trace(trace)
        trace = transform_for_execution(trace, executors_list=executors, use_del_last_used=False)[-1]
        if not grad:
            return [del_last_used(trace)]
        forward, backward = split_into_forward_and_backward(trace)
        return [del_last_used(forward), del_last_used(backward, clear_mutable_collections=True)]
