"""Stored nvFuser kernels on a GPU: another process launches them without nvFuser, bit for bit."""

import subprocess
import sys

import pytest
import torch
from gpu_artifacts import CASES, are_same, copy_all, find_region, load_region, make_nvfuser, persist_regions
from repository import ROOT
from threads_at_once import run_at_once

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
    """The results of a process that knows nothing but the artifacts."""
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
    assert all(item.compiled.exact is not None for item in items)
    for item in items:
        written = copy_all(item.args)
        assert are_same(list(item.compiled.exact(written)), item.outputs), item.name
        assert are_same(written, item.written), item.name


def test_what_is_aligned_otherwise_goes_to_nvfuser():
    item = find_region("pointwise-0")
    moved = [torch.cat([arg.flatten()[:1], arg.flatten()])[1:].view(arg.shape) for arg in item.args]
    assert all(arg.data_ptr() % 16 for arg in moved)
    assert are_same(list(item.compiled.exact(moved)), item.outputs)


@pytest.mark.parametrize("name", ["pointwise-0", "whole-reduction-0", "two-segments-0"])
def test_a_loaded_run_can_be_captured(name):
    item = find_region(name)
    run, args = load_region(item), copy_all(item.args)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = run(args)
    for arg in args:
        arg.copy_(arg.flip(0))
    for _ in range(3):
        graph.replay()
    assert are_same(outputs, list(item.compiled.run(copy_all(args))))


def list_counting():
    """Regions whose blocks count in memory that is zero at first."""
    kept = [item for item in persist_regions() if item.compiled.artifacts is not None]
    return [
        item for item in kept if any(isinstance(step, Fill) for step in decode(item.compiled.artifacts[RECIPE]).steps)
    ]


def test_what_blocks_count_in_is_filled_before_each_launch():
    items = list_counting()
    assert items
    for item in items:
        run, args = load_region(item), copy_all(item.args)
        results = [list(run(args)) for _ in range(300)]
        assert all(are_same(result, item.outputs) for result in results), item.name


def test_replays_of_what_counts_begin_with_zeros():
    for item in list_counting():
        run, args = load_region(item), copy_all(item.args)
        run(args), run(args)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outputs = run(args)
        for _ in range(3):
            graph.replay()
            assert are_same(outputs, item.outputs), item.name


def test_loading_while_a_graph_is_captured():
    item = find_region("pointwise-0")
    args = copy_all(item.args)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = load_region(item)(args)
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
