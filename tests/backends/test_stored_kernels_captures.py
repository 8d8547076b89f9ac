"""What is read out of captured runs of nvFuser: which numbers are addresses, and what a CUDA graph launches."""

import ctypes
from dataclasses import replace

import pytest
import torch
from fake_driver import fake_driver
from hypothesis import given
from hypothesis import strategies as st
from sample_recipe import NAME, pack_words

from fusioncache.backends.nvfuser.capture import (
    FillNode,
    KernelNode,
    MemoryMap,
    MemoryRange,
    leave_uninitialized,
    merge_ranges,
    read_graph,
    resolve_addresses,
)
from fusioncache.backends.nvfuser.recipe import Pointer
from fusioncache.ir.errors import Declined


def make_node(*parameters):
    return KernelNode(1, NAME, (1, 1, 1), (32, 1, 1), 0, 49152, False, parameters)


MEMORY = MemoryMap([MemoryRange(0x10000, 256), MemoryRange(0, 0), MemoryRange(0x30000, 64)])
OTHER = MemoryMap([MemoryRange(0x50000, 256), MemoryRange(0, 0), MemoryRange(0x40000, 64)])


def resolve(one, two, known=()):
    return resolve_addresses([one], MEMORY, [two], OTHER, lambda number: number in known)


def test_addresses_are_what_differs_and_lies_in_the_same_place():
    (step,) = resolve(
        make_node(pack_words(0x10010, 77), pack_words(5, 0x30000) + b"\x07\0\0\0"),
        make_node(pack_words(0x50010, 77), pack_words(5, 0x40000) + b"\x07\0\0\0"),
    )
    assert step.pointers == (Pointer(0, 0, 0, 16), Pointer(1, 8, 2, 0))
    assert step.parameters == (pack_words(0, 77), pack_words(5, 0) + b"\x07\0\0\0")


@pytest.mark.parametrize(
    ("one", "two", "reason"),
    [
        (pack_words(0x10010), pack_words(0x50018), "differs between two runs"),
        (pack_words(0x10010), pack_words(0x40010), "differs between two runs"),
        (pack_words(0x10100), pack_words(0x50100), "differs between two runs"),
        (pack_words(5), pack_words(6), "differs between two runs"),
        (b"\x01\0\0\0", b"\x02\0\0\0", "differs between two runs"),  # an end that is no word
        (pack_words(0x10010), pack_words(0x10010), "outlives"),
        (pack_words(0x77777), pack_words(0x77777), "outlives"),
    ],
)
def test_numbers_that_cannot_be_told_are_refused(one, two, reason):
    with pytest.raises(Declined, match=reason):
        resolve(make_node(one), make_node(two), known={0x77777})


NODE = make_node(bytes(8))


@pytest.mark.parametrize(
    "others",
    [
        *([replace(NODE, grid=(2, 1, 1))], [replace(NODE, name="other")], [replace(NODE, cooperative=True)]),
        *([make_node(bytes(16))], [FillNode(0x50000, 8, 0)], []),
    ],
)
def test_kernels_that_differ_are_refused(others):
    with pytest.raises(Declined, match="differ between two runs"):
        resolve_addresses([NODE], MEMORY, others, OTHER, lambda number: False)


@given(st.lists(st.builds(MemoryRange, st.integers(0, 60), st.integers(0, 9))))
def test_memory_that_is_allocated_again_is_in_one_region(pieces):
    def bytes_of(*ranges):
        return {byte for each in ranges for byte in range(each.start, each.start + each.size)}

    found = merge_ranges(pieces)
    MemoryMap(found)  # they are apart
    assert bytes_of(*found) == bytes_of(*pieces)
    assert all(any(bytes_of(piece) <= bytes_of(region) for region in found) for piece in pieces if piece.size)


def test_memory_that_overlaps_is_refused():
    with pytest.raises(Declined):
        MemoryMap([MemoryRange(10, 10), MemoryRange(19, 1)])


def make_graph_driver(*types, edges=None, name=NAME, parameters=(), clusters=(1, 1, 1), memset=()):
    """A driver that knows one captured graph, whose nodes are numbered from 1 on."""
    chain = {node: [node - 1] for node in range(2, len(types) + 1)}
    edges = chain if edges is None else edges
    contents = [ctypes.create_string_buffer(item, len(item)) for item in parameters]
    addresses = (ctypes.c_void_p * (len(contents) + 1))(*map(ctypes.addressof, contents))

    def some(found, count):
        return (0, found, count) if count else (0, [], len(found))

    def dependencies(node, count=0):
        return (*some(edges.get(node, []), count)[:2], None, len(edges.get(node, [])))

    def kernel(node):
        found = driver.bindings.CUDA_KERNEL_NODE_PARAMS()
        found.func, found.sharedMemBytes, found.kernelParams = 99, node, ctypes.addressof(addresses)
        found.gridDimX, found.gridDimY, found.gridDimZ = 3, 2, 1
        found.blockDimX, found.blockDimY, found.blockDimZ = 64, 1, 1
        return 0, found

    def fill(node):
        found = driver.bindings.CUDA_MEMSET_NODE_PARAMS()
        for field, value in {"dst": 4096, "elementSize": 4, "width": 8, "height": 1, **dict(memset)}.items():
            setattr(found, field, value)
        return 0, found

    def attribute(node, which):
        found = driver.bindings.CUlaunchAttributeValue()
        if which == driver.bindings.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
            found.clusterDim.x, found.clusterDim.y, found.clusterDim.z = clusters
        return 0, found

    driver = fake_driver(
        cuGraphGetNodes=lambda graph, count=0: some(list(range(len(types), 0, -1)), count),
        cuGraphNodeGetDependencies_v2=dependencies,
        cuGraphNodeGetType=lambda node: (0, driver.bindings.CUgraphNodeType[f"CU_GRAPH_NODE_TYPE_{types[node - 1]}"]),
        cuGraphKernelNodeGetParams=kernel,
        cuGraphMemsetNodeGetParams=fill,
        cuGraphKernelNodeGetAttribute=attribute,
        cuFuncGetName=lambda function: (0, name.encode()),
        cuFuncGetParamInfo=lambda _, index: (0, 0, len(contents[index])) if contents[index:] else (1, None, None),
        cuFuncGetAttribute=lambda which, _: (0, 49152 if which.name.endswith("DYNAMIC_SHARED_SIZE_BYTES") else 0),
    )
    return driver


def test_a_graph_is_read_in_the_order_of_its_dependencies():
    driver = make_graph_driver("KERNEL", "MEMSET", "KERNEL", parameters=(pack_words(1, 2), b"\x07"))
    found = read_graph(driver, 0)
    assert [getattr(node, "shared", None) for node in found] == [1, None, 3]
    assert found[1] == FillNode(4096, 32, 0)
    assert (found[0].grid, found[0].block, found[0].parameters) == ((3, 2, 1), (64, 1, 1), (pack_words(1, 2), b"\x07"))
    assert (found[0].function, found[0].most_shared, found[0].cooperative) == (99, 49152, False)
    assert read_graph(make_graph_driver(), 0) == []


@pytest.mark.parametrize("edges", [{}, {2: [1], 3: [1]}, {2: [1], 3: [1, 2]}, {1: [3], 2: [1], 3: [2]}, {3: [2]}])
def test_graphs_that_are_no_chain_are_refused(edges):
    with pytest.raises(Declined, match="no fixed order"):
        read_graph(make_graph_driver("MEMSET", "MEMSET", "MEMSET", edges=edges), 0)


FILL = "_ZN2at6native29vectorized_elementwise_kernelILi8ENS0_11FillFunctorI{}EESt5arrayIPcLm1EEEEviT0_T1_"


@pytest.mark.parametrize(
    ("kind", "value", "fill"), [("l", bytes(8), FillNode(4096, 40, 0)), ("h", b"\x07", FillNode(4096, 5, 7))]
)
def test_what_torch_fills_is_a_fill(kind, value, fill):
    parameters = ((5).to_bytes(4, "little"), value, pack_words(4096))
    assert read_graph(make_graph_driver("KERNEL", name=FILL.format(kind), parameters=parameters), 0) == [fill]


@pytest.mark.parametrize(
    ("type_", "graph", "reason"),
    [
        ("MEMCPY", {}, "a memcpy node"),
        ("HOST", {}, "a host node"),
        ("GRAPH", {}, "a child graph node"),
        ("KERNEL", {"name": "cutlass_gemm", "parameters": (bytes(8),)}, "did not compile: cutlass_gemm"),
        ("KERNEL", {"name": FILL.format("l") + "x", "parameters": (bytes(8),)}, "did not compile"),
        ("KERNEL", {"name": FILL.format("l"), "parameters": (bytes(4), bytes(4), bytes(8))}, "other parameters"),
        ("KERNEL", {"name": FILL.format("f"), "parameters": (bytes(4), b"\0\0\x80\x3f", bytes(8))}, "than one byte"),
        ("KERNEL", {"parameters": (bytes(8),), "clusters": (2, 1, 1)}, "clusters"),
        ("MEMSET", {"memset": {"height": 2}}, "a memset of rows"),
        ("MEMSET", {"memset": {"elementSize": 8}}, "a memset of rows"),
        ("MEMSET", {"memset": {"value": 0x01020304}}, "a memset of more than one byte"),
    ],
)
def test_what_is_not_understood_is_refused(type_, graph, reason):
    with pytest.raises(Declined, match=reason):
        read_graph(make_graph_driver(type_, **graph), 0)


@pytest.mark.parametrize("fill", [True, False])
def test_new_memory_is_left_as_it_is_while_a_run_is_captured(fill, monkeypatch):
    """Or else torch fills it with a kernel of its own where algorithms are to be deterministic."""
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", fill)
    with pytest.raises(ZeroDivisionError), leave_uninitialized():
        assert not torch.utils.deterministic.fill_uninitialized_memory
        _ = 1 / 0
    assert torch.utils.deterministic.fill_uninitialized_memory is fill
