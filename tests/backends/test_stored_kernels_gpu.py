"""Stored nvFuser kernels on a GPU: other processes launch them without nvFuser, bit for bit, for any arguments."""

import subprocess
import sys
from unittest import mock

import pytest
import torch
from gpu_artifacts import (
    CASES,
    are_same,
    capture,
    copy_all,
    find_region,
    load_region,
    make_nvfuser,
    persist_regions,
    rand,
)
from repository import ROOT
from threads_at_once import run_at_once

from fusioncache.backends.nvfuser.persistence import copy_tensor
from fusioncache.backends.nvfuser.recipe import RECIPE, Fill, decode
from fusioncache.ir import Instance
from fusioncache.ir.template import encode_region

pytestmark = pytest.mark.gpu


def test_everything_is_kept_or_says_why_not():
    assert {item.name.rsplit("-", 1)[0] for item in persist_regions()} == set(CASES)
    refused = {item.name: item.compiled.reason for item in persist_regions() if item.compiled.artifacts is None}
    assert all(refused.values())
    assert not {name for name in refused if not CASES[name.rsplit("-", 1)[0]].may_refuse}, refused
    assert all(item.compiled.reason is None for item in persist_regions() if item.compiled.artifacts is not None)


OTHER_PROCESS = """
import sys, torch
from pathlib import Path
from fusioncache.backends.nvfuser import backend
from fusioncache.ir.template import decode_region

def refuse(*args, **kwargs):
    raise AssertionError("nvFuser was asked to compile")

backend.define = refuse
nvfuser = backend.NvFuser()
for folder in map(Path, sys.argv[1:]):
    args = torch.load(folder / "args.pt")
    artifacts = {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix not in (".pt", ".json")}
    run = nvfuser.load(artifacts, decode_region((folder / "region.json").read_bytes()).region, args)
    torch.save([list(run(args)), args], folder / "results.pt")
"""


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory):
    """The results of another process that gets nothing but the artifacts."""
    root = tmp_path_factory.mktemp("persisted")
    folders = {}
    for item in persist_regions():
        if item.compiled.artifacts is None:
            continue
        folders[item.name] = folder = root / item.name
        folder.mkdir()
        for name, content in item.compiled.artifacts.items():
            (folder / name).write_bytes(content)
        torch.save(item.args, folder / "args.pt")
        instance = Instance(item.graph, tuple(range(len(item.graph.inputs))), ())
        (folder / "region.json").write_bytes(encode_region(instance))
    command = [sys.executable, "-W", "ignore", "-c", OTHER_PROCESS, *map(str, folders.values())]
    subprocess.run(command, check=True, cwd=ROOT)
    return {name: torch.load(folder / "results.pt") for name, folder in folders.items()}


def test_another_process_computes_the_same_bits_without_nvfuser(elsewhere):
    assert elsewhere
    for item in persist_regions():
        if item.name in elsewhere:
            outputs, written = elsewhere[item.name]
            assert are_same(outputs, item.outputs), item.name
            assert are_same(written, item.written), item.name


def test_the_process_that_compiled_launches_what_it_stored():
    items = [item for item in persist_regions() if item.compiled.artifacts is not None]
    assert all(item.compiled.exact_run is not None for item in items)
    for item in items:
        written = copy_all(item.args)
        assert are_same(list(item.compiled.exact_run(written)), item.outputs), item.name
        assert are_same(written, item.written), item.name


@pytest.mark.parametrize("name", ["pointwise-0", "whole-reduction-0", "two-segments-0"])
def test_a_loaded_run_can_be_captured(name):
    item = find_region(name)
    run, args = load_region(item), copy_all(item.args)
    graph, outputs = capture(run, args)
    for arg in args:
        arg.copy_(arg.flip(0))
    for _ in range(3):
        graph.replay()
    assert are_same(outputs, list(item.compiled.run(copy_all(args))))


def test_what_blocks_count_in_is_filled_before_each_launch_and_replay():
    """Tests regions whose blocks count in memory that must be zero at first."""
    kept = [item for item in persist_regions() if item.compiled.artifacts is not None]
    items = [
        item for item in kept if any(isinstance(step, Fill) for step in decode(item.compiled.artifacts[RECIPE]).steps)
    ]
    assert items
    for item in items:
        run, args = load_region(item), copy_all(item.args)
        results = [list(run(args)) for _ in range(300)]
        assert all(are_same(result, item.outputs) for result in results), item.name
        graph, outputs = capture(run, args)
        for _ in range(3):
            graph.replay()
            assert are_same(outputs, item.outputs), item.name


def test_loading_while_a_graph_is_captured():
    item = find_region("pointwise-0")
    args = copy_all(item.args)
    graph, outputs = capture(lambda: load_region(item)(args))
    graph.replay()
    assert are_same(outputs, item.outputs)


@pytest.mark.parametrize("name", ["pointwise-0", "whole-reduction-0"])
def test_threads_and_streams(name):
    item = find_region(name)
    run, wrong = load_region(item), []

    def work():
        with torch.cuda.stream(torch.cuda.Stream()):
            mine = copy_all(item.args)
            results = [run(mine) for _ in range(200)]
            torch.cuda.current_stream().synchronize()
            wrong.extend(result for result in results if not are_same(result, item.outputs))

    run_at_once(*[work] * 4)
    assert not wrong


def test_artifacts_are_the_same_every_time():
    item = find_region("rms-norm-grad-1")
    again = make_nvfuser().persist(item.graph, copy_all(item.args))
    assert again.artifacts == item.compiled.artifacts


def test_an_executable_is_not_kept_while_a_graph_is_captured_or_history_is_recorded():
    item = find_region("pointwise-0")
    torch.cuda.memory._record_memory_history("all", context=None)
    try:
        compiled = make_nvfuser().persist(item.graph, copy_all(item.args))
    finally:
        torch.cuda.memory._record_memory_history(None)
    assert compiled.artifacts is None
    assert compiled.reason == "torch's memory history is in use"
    assert are_same(list(compiled.run(copy_all(item.args))), item.outputs)


KINDS = ["pointwise-0", "pointwise-bfloat16-0", "rms-norm-0", "reduction-0", "choose-0", "softmax-0"]


def shift(args, elements):
    """Returns copies of arguments that start so many elements after an aligned address."""
    return [
        torch.empty(arg.numel() + elements, dtype=arg.dtype, device="cuda")[elements:].view_as(arg).copy_(arg)
        for arg in args
    ]


@pytest.mark.parametrize("elements", [1, 2, 4, 6])
@pytest.mark.parametrize("name", KINDS)
def test_unaligned_pointers_are_never_given_to_wide_loads(name, elements):
    """Such as the pointer of ``x[1:]``: a kernel that loads 16 bytes at once from there would end the process."""
    item = find_region(name)
    off = shift(item.args, elements)
    one = [off[0], *item.args[1:]]
    for run in (load_region(item), item.compiled.exact_run):
        assert are_same(list(run(off)), list(item.compiled.run(off)))
        assert are_same(list(run(one)), list(item.compiled.run(one)))
        torch.cuda.synchronize()
        assert are_same(list(run(item.args)), item.outputs)


def test_inputs_that_are_aligned_otherwise_are_compiled_for():
    item = find_region("pointwise-0")
    backend = make_nvfuser()
    with mock.patch.object(backend, "compile", wraps=backend.compile) as compile_:
        run = load_region(item)
    off = shift(item.args, 1)
    assert are_same(run(off), list(item.compiled.run(off)))
    assert are_same(run(item.args), item.outputs)
    run(off)
    assert compile_.call_count == 1


def test_what_is_compiled_for_unaligned_inputs_is_kept_for_these():
    item = find_region("pointwise-0")
    off = shift(item.args, 1)
    compiled = make_nvfuser().persist(item.graph, off)
    assert compiled.artifacts, compiled.reason
    assert are_same(make_nvfuser().load(compiled.artifacts, item.graph, off)(off), list(compiled.run(off)))


def test_what_is_written_in_place_is_written_once_wherever_it_lies():
    item = find_region("in-place-0")
    if item.compiled.artifacts is None:
        pytest.skip(f"not stored: {item.compiled.reason}")
    run = load_region(item)
    for elements in (0, 1):
        ours, theirs = shift(item.args, elements), shift(item.args, elements)
        assert are_same(run(ours), list(item.compiled.run(theirs)))
        assert are_same(ours, theirs)


@pytest.mark.parametrize("name", ["pointwise-0", "pointwise-bfloat16-0", "whole-reduction-0", "two-segments-0"])
def test_executables_are_kept_where_algorithms_are_to_be_deterministic(name):
    item, fills = find_region(name), torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    try:
        compiled = make_nvfuser().persist(item.graph, copy_all(item.args))
        assert compiled.artifacts, compiled.reason
        assert torch.utils.deterministic.fill_uninitialized_memory is fills
        outputs = make_nvfuser().load(compiled.artifacts, item.graph, item.args)(copy_all(item.args))
        assert are_same(outputs, item.outputs)
    finally:
        torch.use_deterministic_algorithms(False)


def test_inputs_may_share_their_memory():
    item = find_region("pointwise-0")
    run, count = load_region(item), item.args[0].numel()
    memory = rand(count + 16)
    one, other = memory[:count].view_as(item.args[0]), memory[16:].view_as(item.args[0])
    for args in ([one, one], [one, other], [other, one]):
        assert are_same(run(args), list(item.compiled.run([copy_tensor(arg) for arg in args])))


@pytest.mark.parametrize("name", ["pointwise-0", "several-0", "reshaped-0", "in-place-0"])
def test_autograd_sees_nothing_of_a_run(name):
    item = find_region(name)
    if item.compiled.artifacts is None:
        pytest.skip(f"not stored: {item.compiled.reason}")
    args = [arg.requires_grad_() for arg in copy_all(item.args)]
    outputs = load_region(item)(args)
    assert not any(output.requires_grad for output in outputs if not any(output is arg for arg in args))
    assert are_same(outputs, item.outputs)


def test_views_that_are_to_be_negated_are_read_as_nvfuser_reads_them():
    """nvFuser reads the memory as it is, because it ignores the negative bit, with a store or without one."""
    item = find_region("pointwise-0")
    views = [torch._neg_view(arg) for arg in item.args]
    assert are_same(load_region(item)(views), list(item.compiled.run(views)))
    compiled = make_nvfuser().persist(item.graph, views)
    assert (compiled.artifacts, compiled.is_permanent) == (None, False)


def test_tensors_with_gaps_are_kept_for_their_strides():
    item = find_region("pointwise-0")
    gaps = [rand(arg.shape[0], 2 * arg.shape[1])[:, ::2].copy_(arg) for arg in item.args]
    compiled = make_nvfuser().persist(item.graph, gaps)
    assert compiled.artifacts, compiled.reason
    run = make_nvfuser().load(compiled.artifacts, item.graph, gaps)
    assert are_same(run(gaps), list(compiled.run(gaps)))
    with pytest.raises(ValueError, match="another layout"):
        make_nvfuser().load(compiled.artifacts, item.graph, item.args)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a_run_follows_its_arguments_to_another_device():
    item = find_region("pointwise-0")
    run = load_region(item)
    there = [arg.to("cuda:1") for arg in item.args]
    outputs = run(there)
    assert all(output.get_device() == 1 for output in outputs)
    assert are_same([output.to("cuda:0") for output in outputs], item.outputs)
    assert are_same(run(item.args), item.outputs)
