"""Stored nvFuser kernels, as far as no GPU is needed: recipes, what is read out of captures, rows, and launches."""

from __future__ import annotations

import ctypes
import json
import os
import struct
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fusioncache.backends.made import NotKept
from fusioncache.backends.stored_kernels import cubin, kernel_db, launch, nodes, structures, tensors
from fusioncache.backends.stored_kernels.addresses import Memory, Piece, regions, resolved
from fusioncache.backends.stored_kernels.capture import alignment
from fusioncache.backends.stored_kernels.codec import decoded, encoded
from fusioncache.backends.stored_kernels.driver import Driver, DriverError
from fusioncache.backends.stored_kernels.keeper import unfit
from fusioncache.backends.stored_kernels.loaded import Loaded, NothingLaunched
from fusioncache.backends.stored_kernels.nodes import Filling, Kernel, read_graph
from fusioncache.backends.stored_kernels.recipe import (
    Again,
    Fill,
    Fresh,
    Input,
    Launch,
    Layout,
    Pointer,
    Recipe,
    View,
)
from fusioncache.ir import Const, Graph, NumberType, Op, Ref, TensorType

FLAT = Layout("float32", (4, 8), (8, 1))
NAME = "_ZN3nvf30nvfuser_pointwise_f0_c1_r0_g0E"


def kernel(**changes):
    given = {
        "cubin": "0.cubin",
        "function": NAME,
        "grid": (7, 2, 1),
        "block": (128, 1, 1),
        "shared": 16,
        "most_shared": 49152,
        "cooperative": True,
        "parameters": (bytes(8) + b"\x04\0\0\0\x08\0\0\0", bytes(24), b"\x05"),
        "pointers": (Pointer(0, 0, 0, 0), Pointer(1, 8, 2, 64)),
    }
    return Launch(**{**given, **changes})


RECIPE = Recipe(
    inputs=(Input(FLAT, 16), Input(Layout("bfloat16", (8,), (1,)), 2)),
    allocations=(128, 512),
    outputs=(Fresh(FLAT, 0, 0), View(Layout("float32", (8,), (1,)), 0, 8, False), Again(0), Fresh(FLAT, 1, 128)),
    steps=(Fill(3, 0, 256, 0), kernel()),
    widest=16,
)


# Recipes.


def test_a_recipe_survives_being_written():
    assert decoded(encoded(RECIPE)) == RECIPE
    assert encoded(decoded(encoded(RECIPE))) == encoded(RECIPE)
    assert RECIPE.cubins == ("0.cubin",)


sizes = st.integers(1, 5)
layouts = st.builds(
    lambda dtype, shape: Layout(dtype, tuple(shape), tuple(torch.empty(shape, device="meta").stride())),
    st.sampled_from(["float32", "bfloat16", "int64", "bool"]),
    st.lists(sizes, max_size=3),
)


@st.composite
def recipes(draw):
    inputs = tuple(draw(st.lists(st.builds(Input, layouts, st.sampled_from([1, 2, 4, 8, 16])), min_size=1, max_size=3)))
    outputs = draw(st.lists(layouts, max_size=3))
    allocations = tuple(layout.extent for layout in outputs)
    buffers = st.integers(0, len(inputs) + len(outputs) - 1)
    pointers = tuple(Pointer(place, 0, draw(buffers), 0) for place in range(draw(st.integers(0, 3))))
    step = kernel(parameters=tuple(bytes(16) for _ in pointers), pointers=pointers, cooperative=draw(st.booleans()))
    fresh = tuple(Fresh(layout, number, 0) for number, layout in enumerate(outputs))
    return Recipe(inputs, allocations, fresh, (step,), draw(st.sampled_from([16, 32])))


@given(recipes())
def test_recipes_survive_being_written(recipe):
    assert decoded(encoded(recipe)) == recipe


WRONG = {
    "no inputs": {"inputs": ()},
    "unknown dtype": {"inputs": lambda: (Input(Layout("float8", (1,), (1,)), 16),)},
    "negative stride": {"inputs": lambda: (Input(Layout("float32", (2,), (-1,)), 16),)},
    "alignment 3": {"inputs": lambda: (Input(FLAT, 3),)},
    "output beyond its allocation": {"allocations": (127, 512)},
    "negative allocation": {"allocations": (-1, 512)},
    "unknown allocation": {"outputs": (Fresh(FLAT, 2, 0),)},
    "again of a later one": {"outputs": (Again(0),)},
    "view beyond its input": {"outputs": (View(FLAT, 0, 1, False),)},
    "view of another dtype": {"outputs": (View(Layout("int32", (8,), (1,)), 0, 0, False),)},
    "itself in another layout": {"outputs": (View(Layout("float32", (32,), (1,)), 0, 0, True),)},
    "output between elements": {"outputs": (Fresh(FLAT, 1, 2),)},
    "fill beyond its buffer": {"steps": (Fill(2, 64, 65, 0),)},
    "fill of a large byte": {"steps": (Fill(2, 0, 1, 256),)},
    "fill of an unknown buffer": {"steps": (Fill(4, 0, 1, 0),)},
    "pointer beyond its parameter": {"steps": (kernel(pointers=(Pointer(0, 16, 0, 0),)),)},
    "pointer across a parameter's end": {"steps": (kernel(pointers=(Pointer(0, 12, 0, 0),)),)},
    "pointer of an unknown parameter": {"steps": (kernel(pointers=(Pointer(3, 0, 0, 0),)),)},
    "pointer beyond its buffer": {"steps": (kernel(pointers=(Pointer(0, 0, 0, 128),)),)},
    "pointer before its buffer": {"steps": (kernel(pointers=(Pointer(0, 0, 0, -8),)),)},
    "two pointers in a place": {"steps": (kernel(pointers=(Pointer(0, 0, 0, 0), Pointer(0, 0, 1, 0))),)},
    "an address left in": {"steps": (kernel(parameters=(b"\x01" * 16,), pointers=(Pointer(0, 0, 0, 0),)),)},
    "no grid": {"steps": (kernel(grid=(0, 1, 1)),)},
    "too many threads": {"steps": (kernel(block=(1024, 2, 1)),)},
    "too much shared memory": {"steps": (kernel(shared=2**20, most_shared=2**20),)},
    "less shared memory than asked for": {"steps": (kernel(most_shared=8),)},
    "a cubin with a path": {"steps": (kernel(cubin="../x"),)},
    "a name with a zero": {"steps": (kernel(function="a\0b"),)},
    "too many parameters": {"steps": (kernel(parameters=(bytes(40000),), pointers=()),)},
    "true for a number": {"steps": (kernel(grid=(True, 1, 1)),)},
    "widest 64": {"widest": 64},
}


@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG.keys())
def test_recipes_that_cannot_be_are_refused(change):
    with pytest.raises(ValueError, match="a recipe that is wrong about"):
        replace(RECIPE, **{name: value() if callable(value) else value for name, value in change.items()})


def paths(value, path=()):
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, item in items:
        yield from paths(item, (*path, name))


WRITTEN = json.loads(encoded(RECIPE))
JUNK = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3), st.lists(st.integers()))


@given(st.sampled_from(list(paths(WRITTEN))[1:]), JUNK)
def test_damaged_recipes_are_refused_or_in_range(path, junk):
    damaged = json.loads(encoded(RECIPE))
    place = damaged
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = junk
    try:
        recipe = decoded(json.dumps(damaged).encode())
    except ValueError:
        return
    for step in recipe.steps:
        for pointer in getattr(step, "pointers", ()):
            assert 0 <= pointer.delta < recipe.extent(pointer.buffer)


@given(st.binary(max_size=40) | st.integers(0, len(encoded(RECIPE)) - 1).map(lambda end: encoded(RECIPE)[:end]))
def test_bytes_that_are_no_recipe_are_refused(data):
    with pytest.raises(ValueError):
        decoded(data)


@pytest.mark.parametrize("text", ["[" * 100000, "{}", "null", '{"version":1,"version":1}', "\ud800"])
def test_texts_that_are_no_recipe_are_refused(text):
    with pytest.raises(ValueError):
        decoded(text.encode(errors="surrogatepass"))


def test_recipes_of_another_version_are_refused():
    with pytest.raises(ValueError, match="of version 2"):
        decoded(json.dumps({**WRITTEN, "version": 2}).encode())


# Addresses.


def words(*numbers):
    return b"".join(number.to_bytes(8, "little") for number in numbers)


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
    with pytest.raises(NotKept, match=reason):
        resolve(captured(words(one)), captured(words(two)), known={0x77777})


def test_kernels_that_differ_are_refused():
    for change in ({"grid": (2, 1, 1)}, {"name": "other"}, {"cooperative": True}, {"parameters": (bytes(16),)}):
        with pytest.raises(NotKept, match="not the same twice"):
            resolve(captured(bytes(8)), captured(bytes(8), **change))
    with pytest.raises(NotKept, match="not the same twice"):
        resolve(captured(bytes(8)), Filling(0x50000, 8, 0))
    with pytest.raises(NotKept, match="not the same twice"):
        resolved([captured()], MEMORY, [], OTHER, lambda number: False)


def test_an_end_that_is_no_word_must_be_the_same():
    with pytest.raises(NotKept, match="not the same twice"):
        resolve(captured(b"\x01\0\0\0"), captured(b"\x02\0\0\0"))


def test_fills():
    assert resolve(Filling(0x10020, 32, 7), Filling(0x50020, 32, 7)) == (Fill(0, 32, 32, 7),)
    for other in (Filling(0x50028, 32, 7), Filling(0x50020, 40, 7), Filling(0x50020, 32, 8)):
        with pytest.raises(NotKept, match="unknown memory"):
            resolve(Filling(0x10020, 32, 7), other)
    with pytest.raises(NotKept, match="beyond"):
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
    with pytest.raises(NotKept):
        Memory([Piece(10, 10), Piece(19, 1)])


# Graphs.


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
    with pytest.raises(NotKept, match="no fixed order"):
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
    with pytest.raises(NotKept, match=reason):
        read_graph(graphs, 0)


def test_memsets_of_rows_or_patterns_are_refused():
    for change in ({"height": 2}, {"value": 0x01020304}, {"item_bytes": 8}):
        given = {"address": 1, "value": 0x07070707, "item_bytes": 4, "width": 2, "height": 1, **change}
        with pytest.raises(NotKept):
            nodes._memset(SimpleNamespace(**given))
    assert nodes._memset(SimpleNamespace(**{**given, "item_bytes": 2})) == Filling(1, 4, 7)


def test_structures_are_laid_out_as_in_the_header():
    names = ("KernelNode", "MemsetNode", "LaunchConfig", "Attribute", "AttributeValue")
    assert [ctypes.sizeof(getattr(structures, name)) for name in names] == [72, 40, 56, 72, 64]
    assert (structures.KernelNode.parameters.offset, structures.KernelNode.kernel.offset) == (40, 56)
    assert (structures.LaunchConfig.stream.offset, structures.LaunchConfig.attributes.offset) == (32, 40)
    assert (structures.Attribute.value.offset, structures.MemsetNode.width.offset) == (8, 24)


# The kernel database.

OPTIONS = ((), ())


def row(name, code, options=OPTIONS):
    return kernel_db.Row(name, code, None, options)


def test_rows_belong_to_a_run_by_name_and_code():
    first, second, other = row("a", "code a"), row("b", "code b"), row("a", "another code a")
    known = {"a": [first, other], "b": [second]}
    assert kernel_db.matching(known, ["b", "a"], "code a\ncode b", OPTIONS) == (second, first)
    assert kernel_db.matching(known, ["a"], "code a", OPTIONS) == (first,)


@pytest.mark.parametrize(
    ("names", "code", "options", "reason"),
    [
        (["c"], "code a", OPTIONS, "0 rows"),
        (["a"], "code b", OPTIONS, "0 rows"),
        (["a"], "code a\ncode b", OPTIONS, "not launched"),
        (["a", "a"], "code a", OPTIONS, "one name"),
        (["a"], "code a", ((), ("fma",)), "other options"),
        (["d"], "code d twice", OPTIONS, "2 rows"),
        ([], "code a", OPTIONS, "not launched"),
    ],
)
def test_rows_that_do_not_fit_are_refused(names, code, options, reason):
    known = {"a": [row("a", "code a")], "b": [row("b", "code b")], "d": [row("d", "code d"), row("d", "twice")]}
    with pytest.raises(NotKept, match=reason):
        kernel_db.matching(known, names, code, options)


def write_row(name, code, cubin=b"\x7fELF"):
    """What nvFuser does."""
    from pathlib import Path

    folder = Path(os.environ["TMPDIR"]) / "nvfuser_kernel_db"
    folder.mkdir(exist_ok=True)
    table = folder / "db.csv"
    text = table.read_text() if table.exists() else kernel_db._HEADER + "\n"
    number = text.count("\n") - 1
    (folder / f"kernel_{number}.cu").write_text(code)
    (folder / f"kernel_{number}.cubin").write_bytes(cubin)
    table.write_text(f"{text}{name},--std=c++17 -x,kernel_{number}.cu,kernel_{number}.cubin\n")
    return folder


def test_the_database_is_in_a_directory_of_its_own(monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    database = kernel_db.KernelDatabase()
    folder = database.compiling(OPTIONS, lambda: write_row("a", "code a"))
    assert os.environ["TMPDIR"] == str(tmp_path)
    assert folder.parent.stat().st_mode & 0o777 == 0o700
    other = ((), ("fma",))
    with monkeypatch.context() as patch:
        patch.setenv("TMPDIR", str(folder.parent))
        database.compiling(other, lambda: write_row("b", "code b", b"PTX"))
    database.must_be_open()
    (found,) = database.rows(["a"], "code a", OPTIONS)
    assert kernel_db.read_cubin(found) == b"\x7fELF"
    (found,) = database.rows(["b"], "code b", other)
    with pytest.raises(NotKept, match="not compiled to the end"):
        kernel_db.read_cubin(found)
    kernel_db._remove(folder.parent, os.getpid() + 1)
    assert folder.exists()
    kernel_db._remove(folder.parent, os.getpid())
    assert not folder.exists()


def test_a_database_that_is_open_elsewhere_is_of_no_use(monkeypatch):
    monkeypatch.delenv("TMPDIR", raising=False)
    database = kernel_db.KernelDatabase()
    places = [database.compiling(OPTIONS, lambda: os.environ.get("TMPDIR")) for _ in range(2)]
    assert places[0] == places[1] is not None  # nothing was compiled, so it may still open
    database.must_be_open()
    assert database.compiling(OPTIONS, lambda: os.environ.get("TMPDIR")) is None
    with pytest.raises(NotKept, match="by somebody else"):
        database.rows(["a"], "code a", OPTIONS)


def test_a_compile_that_fails_leaves_the_environment_as_it_was(monkeypatch):
    monkeypatch.delenv("TMPDIR", raising=False)
    with pytest.raises(ZeroDivisionError):
        kernel_db.KernelDatabase().compiling(OPTIONS, lambda: 1 / 0)
    assert "TMPDIR" not in os.environ


# Launches.


class Library:
    """A driver's library that writes down what is launched."""

    def __init__(self, codes=()):
        self.log, self.codes, self.bound = [], list(codes), []
        self.sizes = [16, 24, 1]

    def result(self):
        return self.codes.pop(0) if self.codes else 0

    def cuMemsetD8Async(self, *args):
        self.log.append(("fill", *args))
        return self.result()

    def cuLaunchKernelEx(self, config, function, parameters, extra):
        config = config._obj
        content = [ctypes.string_at(parameters[place], size) for place, size in enumerate(self.sizes)]
        attributes = [
            (config.attributes[place].id, config.attributes[place].value.number)
            for place in range(config.attribute_count)
        ]
        size = tuple(config.grid), tuple(config.block), config.shared
        self.log.append(("launch", function.value, *size, config.stream, attributes, content))
        return self.result()

    def cuGetErrorName(self, code, text):
        text._obj.value = b"CUDA_ERROR"
        return 0

    cuGetErrorString = cuGetErrorName


class Loads(Driver):
    """A driver that loads anything."""

    def __init__(self, library):
        self.library = library

    def bind(self, device):
        self.library.bound.append(device)

    def load(self, image):
        return len(image)

    def function(self, module, name):
        assert name == NAME
        return module

    def parameters(self, function):
        return tuple((0, size) for size in self.library.sizes)

    def allow_shared(self, function, size):
        assert size == 49152


ADDRESSES = [0x1000, 0x2000, 0x3000, 0x4000]


def launched(library, stream=5, addresses=ADDRESSES):
    loaded = Loaded(RECIPE, {"0.cubin": b"\x7fELF..."}, Loads(library), 0)
    loaded.launch(addresses, stream)
    return loaded


def test_a_launch_says_where_everything_lies():
    library = Library()
    loaded = launched(library)
    content = [words(0x1000) + b"\x04\0\0\0\x08\0\0\0", words(0, 0x3040, 0), b"\x05"]
    expected = ("launch", 7, (7, 2, 1), (128, 1, 1), 16, 5, [(2, 1)], content)
    assert library.log == [("fill", 0x4000, 0, 256, 5), expected]
    library.log.clear()
    loaded.launch([0x9000, 0x2000, 0x5000, 0x6000], 8)
    content = [words(0x9000) + b"\x04\0\0\0\x08\0\0\0", words(0, 0x5040, 0), b"\x05"]
    assert library.log == [("fill", 0x6000, 0, 256, 8), (*expected[:5], 8, [(2, 1)], content)]


def test_a_thread_without_a_context_gets_one():
    library = Library([201])
    launched(library)
    assert library.bound == [0, 0]
    assert [entry[0] for entry in library.log] == ["fill", "fill", "launch"]


def test_a_first_step_that_fails_is_told_from_others():
    with pytest.raises(NothingLaunched, match="CUDA_ERROR"):
        launched(Library([1]))
    with pytest.raises(DriverError, match="CUDA_ERROR"):
        launched(Library([0, 700]))


def test_a_cubin_with_other_parameters_is_refused():
    library = Library()
    library.sizes = [16, 24]
    with pytest.raises(ValueError, match="other parameters"):
        launched(library)


def test_a_recipe_without_its_cubin_is_refused():
    with pytest.raises(ValueError, match=r"without its cubin 0\.cubin"):
        launch.Launcher(RECIPE, {}, list, None)


@pytest.mark.parametrize(
    ("addresses", "fit"),
    [([16, 2], True), ([0, 6], True), ([8, 2], False), ([16, 4], False), ([16, 1], False), ([24, 2], False)],
)
def test_addresses_must_be_aligned_as_captured(addresses, fit):
    assert launch._alignment(RECIPE)(addresses) is fit


def test_alignment_matters_up_to_the_widest_access():
    assert [alignment(address, 16) for address in (0, 1, 2, 12, 8, 16, 48, 512)] == [16, 1, 2, 4, 8, 16, 16, 16]
    assert alignment(512, 32) == 32
    recipe = replace(RECIPE, inputs=(RECIPE.inputs[0], replace(RECIPE.inputs[1], alignment=16)))
    assert launch._alignment(recipe)([32, 48])
    assert not launch._alignment(recipe)([32, 40])


def test_arguments_of_other_layouts_are_refused():
    with pytest.raises(ValueError, match="2 arguments, not 1"):
        launch.fits(RECIPE, [torch.zeros(4, 8)])
    with pytest.raises(ValueError, match="no tensor on"):
        launch.fits(RECIPE, [torch.zeros(4, 8), torch.zeros(8)])


def test_outputs_are_made_of_allocations():
    fresh = [torch.zeros(4, 8), torch.arange(512, dtype=torch.uint8)]
    args = [torch.arange(32.0).reshape(4, 8), torch.zeros(8, dtype=torch.bfloat16)]
    first, view, again, part = launch._give(RECIPE, poison=False)(args, fresh)
    assert first is again is fresh[0]
    assert view.tolist() == list(range(8, 16))
    assert view.data_ptr() == args[0].data_ptr() + 32
    assert part.shape == (4, 8)
    assert not part._is_view()
    assert part.data_ptr() == fresh[1].data_ptr() + 128
    itself = replace(RECIPE, outputs=(View(FLAT, 0, 0, True),))
    assert launch._give(itself, poison=False)(args, fresh)[0] is args[0]
    poisoned = launch._give(RECIPE, poison=True)(args, [torch.arange(128, dtype=torch.uint8), fresh[1]])
    assert poisoned[0].shape == (4, 8)


def test_an_output_that_fills_its_allocation_is_made_in_one():
    assert launch._alone(RECIPE, False) == {0: FLAT}
    assert launch._alone(RECIPE, True) == {}


# Cubins.


def elf(machine=190, sections=((1, 64, 16), (8, 64, 10**6)), programs=((64, 16),)):
    """A file with these parts, and 32 bytes of contents."""
    header = bytearray(64)
    header[:6] = b"\x7fELF\x02\x01"
    header[18:20] = machine.to_bytes(2, "little")
    struct.pack_into("<QQ", header, 32, 96, 96 + 56 * len(programs))
    struct.pack_into("<HHHHH", header, 52, 64, 56, len(programs), 64, len(sections))
    body = bytes(32)
    for offset, size in programs:
        body += struct.pack("<8xQ16xQ16x", offset, size)
    for kind, offset, size in sections:
        body += struct.pack("<4xI16xQQ24x", kind, offset, size)
    return bytes(header) + body


def test_cubins_must_be_whole():
    image = elf()
    cubin.check_cubin(image)
    for end in range(len(image)):
        with pytest.raises(ValueError, match="a cubin that"):
            cubin.check_cubin(image[:end])
    for damaged in (elf(machine=62), elf(sections=((1, 64, 10**6),)), elf(programs=((2**63, 8),)), b"PTX"):
        with pytest.raises(ValueError, match="a cubin that"):
            cubin.check_cubin(damaged)


# Tensors.


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(4, 6),
        torch.randn(4, 6).t(),
        torch.randn(4, 6)[:, 1:4],
        torch.randn(7)[3:],
        torch.randn(3, 1).expand(3, 5),
        torch.tensor(2.5),
        torch.zeros(0, 3),
        torch.randint(0, 9, (5, 5)),
        torch.rand(5, 5) > 0.5,
        torch.randn(4, 6, dtype=torch.bfloat16)[1:, ::2],
    ],
    ids=lambda tensor: f"{tensor.dtype}-{tuple(tensor.shape)}-{tensor.stride()}",
)
def test_copies_lie_as_the_original(tensor):
    before = tensor.clone()
    copy, other = tensors.copied(tensor), tensors.rolled(tensor)
    assert tensors.equal_bits(copy, tensor)
    for made in (copy, other):
        assert (made.shape, made.stride(), made.dtype) == (tensor.shape, tensor.stride(), tensor.dtype)
        assert (made.data_ptr() - tensor.data_ptr()) % 512 == 0
        assert not tensor.numel() or made.data_ptr() != tensor.data_ptr()
    assert torch.equal(copy, before)
    if tensor.is_contiguous() and tensor.numel():
        assert torch.equal(other.flatten(), tensor.flatten().roll(1))


def test_bits_tell_zeros_apart_and_nans_together():
    assert not tensors.equal_bits(torch.tensor([0.0]), torch.tensor([-0.0]))
    assert tensors.equal_bits(torch.tensor([float("nan")]), torch.tensor([float("nan")]))
    assert not tensors.equal_bits(torch.zeros(2, 3), torch.zeros(3, 2).t())


# The keeper.

TYPE = TensorType("float32", (2, 3), "cuda")


def test_what_cannot_be_kept_is_known_before_it_is_compiled():
    add = Op("prims.add", (Ref(0), Const("int", "1")), (TYPE,))
    draw = Op("prims.uniform_philox", (Ref(0),), (TYPE,))
    assert unfit(Graph((TYPE, NumberType("int")), (add,), (2,)), [None]) == "a number among the inputs"
    assert unfit(Graph((TYPE,), (draw,), (1,)), [None]) == "random numbers"
    assert unfit(Graph((TYPE,), (add,), (2,), sizes=1), [None]) == "symbolic sizes"
    assert unfit(Graph((), (), ()), []) == "no inputs"
    assert unfit(Graph((TYPE,), (add,), (1,)), [torch.zeros(2, 3)]) == "an input that is no CUDA tensor"
