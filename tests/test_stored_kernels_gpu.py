"""Stored nvFuser kernels on a GPU: another process launches them without nvFuser, bit for bit."""

from __future__ import annotations

import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import pytest
import thunder
import torch
from models import all_fused

from fusioncache.backends.made import Made
from fusioncache.ir import Graph
from fusioncache.trace.region import region_of

pytestmark = pytest.mark.gpu


def pointwise(a, b):
    return torch.tanh(a + b) * 2 + 1


def broadcast(a, b):
    return a * b[None, :] + b[None, :].sigmoid()


def reduction(a):
    return a.sum(-1)


def outer_reduction(a):
    return torch.exp(a).sum(0)


def whole_reduction(a):
    return (a * a).sum()


def rms_norm(a, w):
    return torch.nn.functional.rms_norm(a, (a.shape[-1],), w)


def softmax(a):
    return torch.softmax(a, -1)


def two_segments(a, b):
    return (a - a.mean(0)) * torch.exp(b).sum(1)[:, None], (a * b).amax(0)


def several(a, b):
    c = a + b
    return c, torch.tanh(c), (c > 0).to(torch.int32), c.amax(-1)


def choose(a, b):
    return torch.where(a > b, a, b * 2)


def in_place(a, b):
    a.mul_(b)
    return torch.tanh(b)


def reshaped(a):
    return (a * 2).reshape(-1, 4), a.sum(0)


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
    "broadcast": Case(broadcast, ((64, 512), (512,))),
    "reduction": Case(reduction, ((128, 1024),)),
    "outer-reduction": Case(outer_reduction, ((8192, 96),)),
    "whole-reduction": Case(whole_reduction, ((4096, 4096),)),
    "rms-norm": Case(rms_norm, ((128, 1024), (1024,)), torch.bfloat16),
    "rms-norm-grad": Case(rms_norm, ((128, 1024), (1024,)), torch.bfloat16, grad=True),
    "softmax": Case(softmax, ((64, 1000),)),
    "two-segments": Case(two_segments, ((512, 256), (512, 256))),
    "several": Case(several, ((32, 64), (32, 64))),
    "choose": Case(choose, ((32, 64), (32, 64)), torch.float16),
    "in-place": Case(in_place, ((32, 64), (32, 64)), may_refuse=True),
    "reshaped": Case(reshaped, ((32, 64),), may_refuse=True),
}


@dataclass(frozen=True)
class Kept:
    """A region, arguments for it, what was made of it, and what it computes for copies of the arguments."""

    name: str
    case: Case
    graph: Graph
    args: list
    made: Made
    outputs: list
    written: list


def regions(case):
    torch.manual_seed(0)
    inputs = [rand(*shape, dtype=case.dtype).requires_grad_(case.grad) for shape in case.shapes]
    compiled = thunder.jit(case.function)
    result = compiled(*inputs)
    if case.grad:
        result.sum().backward()
    return [region_of(fusion) for fusion in all_fused(compiled)]


def arguments(graph, transposed=False):
    args = []
    for type_ in graph.inputs:
        dtype = getattr(torch, type_.dtype.rstrip("_"))
        value = torch.randn(type_.shape, device="cuda").mul(3).to(dtype)
        args.append(value.t().contiguous().t() if transposed and value.dim() == 2 else value)
    return args


def copies(args):
    from fusioncache.backends.stored_kernels.tensors import copied

    return [copied(arg) for arg in args]


@pytest.fixture(scope="module")
def keeper():
    from fusioncache.backends.nvfuser import NvFuser
    from fusioncache.backends.stored_kernels.keeper import NvFuserKeeper

    return NvFuserKeeper(NvFuser())


@pytest.fixture(scope="module")
def kept(keeper):
    found = []
    for name, case in CASES.items():
        for number, graph in enumerate(regions(case)):
            torch.manual_seed(number)
            args = arguments(graph, case.transposed)
            made = keeper.compile(graph, copies(args))
            written = copies(args)
            outputs = list(made.run(written))
            found.append(Kept(f"{name}-{number}", case, graph, args, made, outputs, written))
    return found


def test_everything_is_kept_or_says_why_not(kept):
    assert {item.name.rsplit("-", 1)[0] for item in kept} == set(CASES)
    refused = {item.name: item.made.reason for item in kept if item.made.artifacts is None}
    assert all(refused.values())
    assert not {name for name in refused if not CASES[name.rsplit("-", 1)[0]].may_refuse}, refused
    assert all(item.made.reason is None for item in kept if item.made.artifacts is not None)


OTHER_PROCESS = """
import sys, torch
from pathlib import Path
from fusioncache.backends import nvfuser
from fusioncache.backends.stored_kernels.keeper import NvFuserKeeper
from fusioncache.ir import Graph

def refuse(*args, **kwargs):
    raise AssertionError("nvFuser was asked to compile")

nvfuser.define = refuse
keeper = NvFuserKeeper(nvfuser.NvFuser())
for folder in map(Path, sys.argv[1:]):
    args = torch.load(folder / "args.pt")
    artifacts = {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix != ".pt"}
    run = keeper.load(artifacts, Graph((), (), ()), args)
    torch.save([list(run(args)), args], folder / "results.pt")
"""


@pytest.fixture(scope="module")
def elsewhere(kept, tmp_path_factory):
    """The results of a process that knows nothing but the artifacts."""
    place = tmp_path_factory.mktemp("kept")
    folders = {}
    for item in kept:
        if item.made.artifacts is None:
            continue
        folders[item.name] = folder = place / item.name
        folder.mkdir()
        for name, content in item.made.artifacts.items():
            (folder / name).write_bytes(content)
        torch.save(item.args, folder / "args.pt")
    command = [sys.executable, "-W", "ignore", "-c", OTHER_PROCESS, *map(str, folders.values())]
    subprocess.run(command, check=True, cwd=Path(__file__).parent.parent)
    return {name: torch.load(folder / "results.pt") for name, folder in folders.items()}


def same(one, other):
    from fusioncache.backends.stored_kernels.tensors import equal_bits

    return len(one) == len(other) and all(map(equal_bits, one, other))


def test_another_process_computes_the_same_bits_without_nvfuser(kept, elsewhere):
    assert elsewhere
    for item in kept:
        if item.name in elsewhere:
            outputs, written = elsewhere[item.name]
            assert same(outputs, item.outputs), item.name
            assert same(written, item.written), item.name


def loaded(keeper, item):
    return keeper.load(item.made.artifacts, item.graph, item.args)


def pick(kept, name):
    return next(item for item in kept if item.name == name)


@pytest.mark.parametrize("name", ["pointwise-0", "whole-reduction-0", "two-segments-0"])
def test_a_loaded_run_can_be_captured(kept, keeper, name):
    item = pick(kept, name)
    run, args = loaded(keeper, item), copies(item.args)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = run(args)
    for arg in args:
        arg.copy_(arg.flip(0))
    for _ in range(3):
        graph.replay()
    assert same(outputs, list(item.made.run(copies(args))))


def test_loading_while_a_graph_is_captured(kept, keeper):
    item = pick(kept, "pointwise-0")
    args = copies(item.args)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = loaded(keeper, item)(args)
    graph.replay()
    assert same(outputs, item.outputs)


@pytest.mark.parametrize("name", ["pointwise-0", "whole-reduction-0"])
def test_threads_and_streams(kept, keeper, name):
    item = pick(kept, name)
    run, wrong = loaded(keeper, item), []

    def work():
        with torch.cuda.stream(torch.cuda.Stream()):
            mine = copies(item.args)
            results = [run(mine) for _ in range(200)]
            torch.cuda.current_stream().synchronize()
            wrong.extend(result for result in results if not same(result, item.outputs))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_inputs_that_are_aligned_otherwise_are_compiled_for(kept, keeper):
    item = pick(kept, "pointwise-0")
    run = loaded(keeper, item)
    off = [torch.empty(arg.numel() + 1, device="cuda")[1:].view_as(arg).copy_(arg) for arg in item.args]
    nvfuser = keeper._nvfuser
    with mock.patch.object(nvfuser, "compiled", wraps=nvfuser.compiled) as compiled:
        assert same(run(off), list(item.made.run(off)))
        assert same(run(item.args), item.outputs)
        run(off)
    assert compiled.call_count == 1


def test_what_is_compiled_for_unaligned_inputs_is_kept_for_these(kept, keeper):
    item = pick(kept, "pointwise-0")
    off = [torch.empty(arg.numel() + 1, device="cuda")[1:].view_as(arg).copy_(arg) for arg in item.args]
    made = keeper.compile(item.graph, off)
    assert made.artifacts, made.reason
    assert same(keeper.load(made.artifacts, item.graph, off)(off), list(made.run(off)))


def test_artifacts_are_the_same_every_time(kept, keeper):
    item = pick(kept, "rms-norm-grad-1")
    again = keeper.compile(item.graph, copies(item.args))
    assert again.artifacts == item.made.artifacts


def test_damaged_artifacts_do_not_load(kept, keeper):
    item = pick(kept, "pointwise-0")
    artifacts = dict(item.made.artifacts)
    cubin = next(name for name in artifacts if name != "recipe")
    for damaged in (
        {**artifacts, "recipe": artifacts["recipe"][:-1]},
        {**artifacts, cubin: b""},
        {**artifacts, cubin: artifacts[cubin][: len(artifacts[cubin]) // 2]},
        {"recipe": artifacts["recipe"]},
        {cubin: artifacts[cubin]},
    ):
        with pytest.raises(ValueError):
            keeper.load(damaged, item.graph, item.args)
    with pytest.raises(ValueError, match="another layout"):
        keeper.load(artifacts, item.graph, [arg.t().contiguous().t() for arg in item.args])


def test_a_program_is_not_kept_while_a_graph_is_captured_or_history_is_recorded(kept, keeper):
    item = pick(kept, "pointwise-0")
    torch.cuda.memory._record_memory_history("all", context=None)
    try:
        made = keeper.compile(item.graph, copies(item.args))
    finally:
        torch.cuda.memory._record_memory_history(None)
    assert made.artifacts is None
    assert made.reason == "torch's memory history is in use"
    assert same(list(made.run(copies(item.args))), item.outputs)
