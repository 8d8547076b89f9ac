"""Regions of every kind that nvFuser compiles, persisted once for all tests. Needs a GPU."""

from dataclasses import dataclass
from functools import cache

import thunder
import torch
from models import find_all_fused

from fusioncache.backends.api import Compiled
from fusioncache.backends.nvfuser.backend import NvFuser
from fusioncache.backends.nvfuser.persistence import copy_tensor, have_equal_bits
from fusioncache.ir import Graph
from fusioncache.transform.region import region_of


def pointwise(a, b):
    return torch.tanh(a + b) * 2 + 1


def rms_norm(a, w):
    return torch.nn.functional.rms_norm(a, (a.shape[-1],), w)


def several(a, b):
    c = a + b
    return c, torch.tanh(c), (c > 0).to(torch.int32), c.amax(-1)


def in_place(a, b):
    a.mul_(b)
    return torch.tanh(b)


def causal_mask():
    counted = torch.arange(96, device="cuda")
    return torch.where(counted[None, :] > counted[:, None], float("-inf"), 0.0), counted * 2


def rand(*shape, dtype=torch.float32):
    return torch.randn(*shape, device="cuda").to(dtype)


@dataclass(frozen=True)
class Case:
    function: object
    shapes: tuple
    dtype: torch.dtype = torch.float32
    grad: bool = False
    transposed: bool = False
    may_refuse: bool = False


CASES = {
    "pointwise": Case(pointwise, ((64, 512), (64, 512))),
    "pointwise-odd": Case(pointwise, ((7, 13), (7, 13))),
    "pointwise-bfloat16": Case(pointwise, ((64, 512), (64, 512)), torch.bfloat16),
    "pointwise-transposed": Case(pointwise, ((64, 48), (64, 48)), transposed=True),
    "broadcast": Case(lambda a, b: a * b[None, :] + b[None, :].sigmoid(), ((64, 512), (512,))),
    "reduction": Case(lambda a: a.sum(-1), ((128, 1024),)),
    "outer-reduction": Case(lambda a: torch.exp(a).sum(0), ((8192, 96),)),
    "whole-reduction": Case(lambda a: (a * a).sum(), ((4096, 4096),)),
    "rms-norm": Case(rms_norm, ((128, 1024), (1024,)), torch.bfloat16),
    "rms-norm-grad": Case(rms_norm, ((128, 1024), (1024,)), torch.bfloat16, grad=True),
    "softmax": Case(lambda a: torch.softmax(a, -1), ((64, 1000),)),
    "two-segments": Case(
        lambda a, b: ((a - a.mean(0)) * torch.exp(b).sum(1)[:, None], (a * b).amax(0)), ((512, 256), (512, 256))
    ),
    "several": Case(several, ((32, 64), (32, 64))),
    "choose": Case(lambda a, b: torch.where(a > b, a, b * 2), ((32, 64), (32, 64)), torch.float16),
    "in-place": Case(in_place, ((32, 64), (32, 64)), may_refuse=True),
    "mask": Case(causal_mask, ()),
    "reshaped": Case(lambda a: ((a * 2).reshape(-1, 4), a.sum(0)), ((32, 64),), may_refuse=True),
}


@dataclass(frozen=True)
class PersistedRegion:
    name: str
    case: Case
    graph: Graph
    args: list
    compiled: Compiled
    outputs: list
    written: list


def trace_regions(case):
    torch.manual_seed(0)
    inputs = [rand(*shape, dtype=case.dtype).requires_grad_(case.grad) for shape in case.shapes]
    compiled = thunder.jit(case.function)
    result = compiled(*inputs)
    if case.grad:
        result.sum().backward()
    return [region_of(fusion) for fusion in find_all_fused(compiled)]


def make_arguments(graph, transposed=False):
    args = []
    for type_ in graph.inputs:
        dtype = getattr(torch, type_.dtype.rstrip("_"))
        value = torch.randn(type_.shape, device="cuda").mul(3).to(dtype)
        args.append(value.t().contiguous().t() if transposed and value.dim() == 2 else value)
    return args


def copy_all(args):
    return [copy_tensor(arg) for arg in args]


make_nvfuser = cache(NvFuser)


@cache
def persist_regions():
    found = []
    for name, case in CASES.items():
        for number, graph in enumerate(trace_regions(case)):
            torch.manual_seed(number)
            args = make_arguments(graph, case.transposed)
            compiled = make_nvfuser().persist(graph, copy_all(args))
            written = copy_all(args)
            outputs = list(compiled.run(written))
            found.append(PersistedRegion(f"{name}-{number}", case, graph, args, compiled, outputs, written))
    return found


def find_region(name):
    return next(item for item in persist_regions() if item.name == name)


def load_region(item):
    return make_nvfuser().load(item.compiled.artifacts, item.graph, item.args)


def are_same(one, other):
    return len(one) == len(other) and all(map(have_equal_bits, one, other))


def capture(function, *args):
    """Returns a CUDA graph of a call, and the results of the call."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        return graph, function(*args)
