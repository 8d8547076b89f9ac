"""The definitions that nvFuser would compile, as texts, without a GPU."""

import fake_cuda
import torch
from models import find_fused

from fusioncache import FusionCache
from fusioncache.backends.bound_symbols import outputs_of
from fusioncache.backends.nvfuser.definition import define, describe_contiguous, describe_tensor, nvfuser_executor


def add_residuals(x, *weights):
    import thunder.torch as ltorch

    for weight in weights:
        x = x + weight @ ltorch.tanh(x)
    return x


def define_executables(transform: FusionCache) -> set[str]:
    """Returns the distinct definitions that the calls would ask nvFuser to compile for contiguous tensors."""
    with fake_cuda.pretend_gpu():
        return {
            repr(define(executable.sources[0], describe_contiguous(executable.sources[0])))
            for call in transform.calls()
            for arities in call.arities()
            for executable in call.executables(arities)
        }


def define_regions(traces: list) -> set[str]:
    """Returns the distinct definitions that Thunder asks nvFuser to compile for the regions of its traces."""
    with fake_cuda.pretend_gpu():
        create = nvfuser_executor().create_fd
        calls = [call for trace in traces for call in find_fused(trace)]
        return {repr(create(call.subsymbols, _describe(call.args), call.args, outputs_of(call))) for call in calls}


def _describe(args) -> list[tuple]:
    return [describe_tensor(tuple(arg.shape), torch.empty(arg.shape, device="meta").stride()) for arg in args]
