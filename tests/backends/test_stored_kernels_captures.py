"""What is read out of captured runs of nvFuser: which numbers are addresses, and what a CUDA graph launches."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sample_recipe import NAME, words

from fusioncache.backends.api import NotPersistable
from fusioncache.backends.nvfuser import nodes, structures
from fusioncache.backends.nvfuser.addresses import Memory, Piece, regions, resolved
from fusioncache.backends.nvfuser.capture import _left_uninitialized
from fusioncache.backends.nvfuser.nodes import Filling, Kernel, read_graph
from fusioncache.backends.nvfuser.parts import Fill, Pointer


def captured(*parameters, **changes):
    given = (1, NAME, (1, 1, 1), (32, 1, 1), 0, 49152, False, parameters)
    return replace(Kernel(*given), **changes)


MEMORY = Memory([Piece(0x10000, 256), Piece(0, 0), Piece(0x30000, 64)])
OTHER = Memory([Piece(0x50000, 256), Piece(0, 0), Piece(0x40000, 64)])


def resolve(one, two, known=()):
    return resolved([one], MEMORY, [two], OTHER, lambda number: number in known)


def test_addresses_are_what_differs_and_lies_in_the_same_place():
    (step,) = resolve(
        captured(words(0x10010, 77), words(5, 0x30000) + b"\x07\0\0\0"),
        captured(words(0x50010, 77), words(5, 0x40000) + b"\x07\0\0\0"),
    )
    assert step.pointers == (Pointer(0, 0, 0, 16), Pointer(1, 8, 2, 0))
    assert step.parameters == (words(0, 77), words(5, 0) + b"\x07\0\0\0")


@pytest.mark.parametrize(
    ("one", "two", "reason"),
    [
        (0x10010, 0x50018, "not the same twice"),
        (0x10010, 0x40010, "not the same twice"),
        (0x10100, 0x50100, "not the same twice"),
        (5, 6, "not the same twice"),
        (0x10010, 0x10010, "outlives"),
        (0x77777, 0x77777, "outlives"),
    ],
)
def test_numbers_that_cannot_be_told_are_refused(one, two, reason):
    with pytest.raises(NotPersistable, match=reason):
        resolve(captured(words(one)), captured(words(two)), known={0x77777})


def test_kernels_that_differ_are_refused():
    for change in ({"grid": (2, 1, 1)}, {"name": "other"}, {"cooperative": True}, {"parameters": (bytes(16),)}):
        with pytest.raises(NotPersistable, match="not the same twice"):
            resolve(captured(bytes(8)), captured(bytes(8), **change))
    with pytest.raises(NotPersistable, match="not the same twice"):
        resolve(captured(bytes(8)), Filling(0x50000, 8, 0))
    with pytest.raises(NotPersistable, match="not the same twice"):
        resolved([captured()], MEMORY, [], OTHER, lambda number: False)


def test_an_end_that_is_no_word_must_be_the_same():
    with pytest.raises(NotPersistable, match="not the same twice"):
        resolve(captured(b"\x01\0\0\0"), captured(b"\x02\0\0\0"))


def test_fills():
    assert resolve(Filling(0x10020, 32, 7), Filling(0x50020, 32, 7)) == (Fill(0, 32, 32, 7),)
    for other in (Filling(0x50028, 32, 7), Filling(0x50020, 40, 7), Filling(0x50020, 32, 8)):
        with pytest.raises(NotPersistable, match="unknown memory"):
            resolve(Filling(0x10020, 32, 7), other)
    with pytest.raises(NotPersistable, match="beyond"):
        resolve(Filling(0x10020, 256, 0), Filling(0x50020, 256, 0))


def test_memory_that_is_allocated_again_is_one_region():
    pieces = [Piece(1000, 100), Piece(5000, 8), Piece(1000, 40), Piece(1040, 200), Piece(2000, 0)]
    assert regions(pieces) == (Piece(1000, 240), Piece(5000, 8))
    assert regions([Piece(0, 4), Piece(8, 4), Piece(2, 8)]) == (Piece(0, 12),)


@given(st.lists(st.builds(Piece, st.integers(0, 60), st.integers(0, 9))))
def test_regions_are_apart_and_hold_every_piece(pieces):
    found = regions(pieces)
    Memory(found)
    covered = {byte for piece in pieces for byte in range(piece.start, piece.start + piece.size)}
    assert {byte for piece in found for byte in range(piece.start, piece.start + piece.size)} == covered
    for piece in pieces:
        assert not piece.size or any(
            region.start <= piece.start and piece.start + piece.size <= region.start + region.size for region in found
        )


def test_memory_that_overlaps_is_refused():
    with pytest.raises(NotPersistable):
        Memory([Piece(10, 10), Piece(19, 1)])


class Graphs:
    """A driver that knows one captured graph."""

    def __init__(self, *kinds, edges=None, name=NAME, parameters=(), clusters=(1, 1, 1)):
        self.kinds = dict(enumerate(kinds, 1))
        self.edges = edges if edges is not None else {node: [node - 1] for node in self.kinds if node > 1}
        self.called, self.content, self.clusters = name, parameters, clusters

    def nodes(self, graph):
        return list(reversed(self.kinds))

    def dependencies(self, node):
        return self.edges.get(node, [])

    def node_type(self, node):
        return self.kinds[node]

    def name(self, function):
        return self.called

    def parameters(self, function):
        return tuple((0, len(item)) for item in self.content)

    def attribute(self, function, which):
        return 49152

    def has_cluster(self, function):
        return False

    def launch_attribute(self, node, which):
        return SimpleNamespace(number=0, dimensions=self.clusters)

    def kernel_node(self, node):
        self.kept = [ctypes.create_string_buffer(item, len(item)) for item in self.content]
        array = (ctypes.c_void_p * (len(self.kept) + 1))(*map(ctypes.addressof, self.kept))
        found = structures.KernelNode()
        found.grid, found.block, found.shared = (3, 2, 1), (64, 1, 1), node
        found.parameters = ctypes.cast(array, ctypes.POINTER(ctypes.c_void_p))
        self.array = array
        return found, 99

    def memset_node(self, node):
        return SimpleNamespace(address=4096, value=0, item_bytes=4, width=8, height=1)


def test_a_graph_is_read_in_the_order_of_its_dependencies():
    found = read_graph(Graphs(0, 2, 0, parameters=(words(1, 2), b"\x07")), 0)
    assert [getattr(node, "shared", None) for node in found] == [1, None, 3]
    assert found[1] == Filling(4096, 32, 0)
    assert (found[0].grid, found[0].block, found[0].parameters) == ((3, 2, 1), (64, 1, 1), (words(1, 2), b"\x07"))
    assert read_graph(Graphs(), 0) == []


@pytest.mark.parametrize("edges", [{}, {2: [1], 3: [1]}, {2: [1], 3: [1, 2]}, {1: [3], 2: [1], 3: [2]}, {3: [2]}])
def test_graphs_that_are_no_chain_are_refused(edges):
    with pytest.raises(NotPersistable, match="no fixed order"):
        read_graph(Graphs(2, 2, 2, edges=edges), 0)


FILL = "_ZN2at6native29vectorized_elementwise_kernelILi8ENS0_11FillFunctorI{}EESt5arrayIPcLm1EEEEviT0_T1_"


def test_what_torch_fills_is_a_fill():
    parameters = ((5).to_bytes(4, "little"), bytes(8), words(4096))
    assert read_graph(Graphs(0, name=FILL.format("l"), parameters=parameters), 0) == [Filling(4096, 40, 0)]
    parameters = ((5).to_bytes(4, "little"), b"\x07", words(4096))
    assert read_graph(Graphs(0, name=FILL.format("h"), parameters=parameters), 0) == [Filling(4096, 5, 7)]


@pytest.mark.parametrize(
    ("graphs", "reason"),
    [
        (Graphs(1), "a memcpy node"),
        (Graphs(3), "a host node"),
        (Graphs(42), "a type 42 node"),
        (Graphs(0, name="cutlass_gemm", parameters=(bytes(8),)), "did not compile: cutlass_gemm"),
        (Graphs(0, name=FILL.format("l") + "x", parameters=(bytes(8),)), "did not compile"),
        (Graphs(0, name=FILL.format("l"), parameters=(bytes(4), bytes(4), bytes(8))), "other parameters"),
        (Graphs(0, name=FILL.format("f"), parameters=(bytes(4), b"\0\0\x80\x3f", bytes(8))), "more than one byte"),
        (Graphs(0, parameters=(bytes(8),), clusters=(2, 1, 1)), "clusters"),
    ],
)
def test_what_is_not_understood_is_refused(graphs, reason):
    with pytest.raises(NotPersistable, match=reason):
        read_graph(graphs, 0)


def test_memsets_of_rows_or_patterns_are_refused():
    for change in ({"height": 2}, {"value": 0x01020304}, {"item_bytes": 8}):
        given = {"address": 1, "value": 0x07070707, "item_bytes": 4, "width": 2, "height": 1, **change}
        with pytest.raises(NotPersistable):
            nodes._memset(SimpleNamespace(**given))
    assert nodes._memset(SimpleNamespace(**{**given, "item_bytes": 2})) == Filling(1, 4, 7)


def test_structures_are_laid_out_as_in_the_header():
    names = ("KernelNode", "MemsetNode", "LaunchConfig", "Attribute", "AttributeValue")
    assert [ctypes.sizeof(getattr(structures, name)) for name in names] == [72, 40, 56, 72, 64]
    assert (structures.KernelNode.parameters.offset, structures.KernelNode.kernel.offset) == (40, 56)
    assert (structures.LaunchConfig.stream.offset, structures.LaunchConfig.attributes.offset) == (32, 40)
    assert (structures.Attribute.value.offset, structures.MemsetNode.width.offset) == (8, 24)


@pytest.mark.parametrize("fill", [True, False])
def test_new_memory_is_left_as_it_is_while_a_run_is_captured(fill, monkeypatch):
    """Or else torch fills it with a kernel of its own where algorithms are to be deterministic."""
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", fill)
    with pytest.raises(ZeroDivisionError), _left_uninitialized():
        assert not torch.utils.deterministic.fill_uninitialized_memory
        _ = 1 / 0
    assert torch.utils.deterministic.fill_uninitialized_memory is fill
