"""Storage of nvFuser's kernels, as far as no GPU is needed: its database, captured runs, recipes, and refusals."""

import ctypes
import json
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from drawn_regions import draw
from fake_driver import fake_driver
from hypothesis import given
from hypothesis import strategies as st
from sample_recipe import FLAT, NAME, RECIPE, make_elf, make_launch, pack_words

from fusioncache.backends.nvfuser import capture, persistence, recipe
from fusioncache.backends.nvfuser.capture import MemoryMap, make_range, read_graph
from fusioncache.backends.nvfuser.persistence import Row, compile_fallback, copy_tensor, have_equal_bits, roll_tensor
from fusioncache.backends.nvfuser.recipe import Duplicate, Fill, Fresh, Input, Layout, Pointer, View
from fusioncache.ir import Declined, NumberType, Scope

OPTIONS = ((), ())
ROWS = {
    name: [Row(name, code, None, OPTIONS) for code in codes]
    for name, codes in {"a": ["code a", "another a"], "b": ["code b"], "d": ["code d", "twice"]}.items()
}


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
def test_rows_belong_to_a_run_by_name_and_code_and_options(names, code, options, reason):
    assert persistence.match_rows(ROWS, ["b", "a"], "code a\ncode b", OPTIONS) == (ROWS["b"][0], ROWS["a"][0])
    with pytest.raises(Declined, match=reason):
        persistence.match_rows(ROWS, names, code, options)


def write_row(name, code, cubin=b"\x7fELF"):
    """Writes a kernel into the database as nvFuser does, and returns the database's folder."""
    folder = Path(os.environ["TMPDIR"]) / "nvfuser_kernel_db"
    folder.mkdir(exist_ok=True)
    table = folder / "db.csv"
    text = table.read_text() if table.exists() else "kernel_signature,compile_args,kernel_code_file,cubin_file\n"
    number = text.count("\n") - 1
    (folder / f"kernel_{number}.cu").write_text(code)
    (folder / f"kernel_{number}.cubin").write_bytes(cubin)
    table.write_text(f"{text}{name},--std=c++17 -x,kernel_{number}.cu,kernel_{number}.cubin\n")
    return folder


def test_the_database_is_in_a_directory_of_its_own(monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    database = persistence.KernelDatabase()
    folder = database.compile(OPTIONS, lambda: write_row("a", "code a"))
    assert os.environ["TMPDIR"] == str(tmp_path)
    assert folder.parent.stat().st_mode & 0o777 == 0o700
    other = ((), ("fma",))
    with monkeypatch.context() as patch:
        patch.setenv("TMPDIR", str(folder.parent))
        database.compile(other, lambda: write_row("b", "code b", b"PTX"))
    (found,) = database.rows(["a"], "code a", OPTIONS)
    assert persistence.read_cubin(found) == b"\x7fELF"
    (found,) = database.rows(["b"], "code b", other)
    with pytest.raises(Declined, match="not compiled to the end"):
        persistence.read_cubin(found)
    persistence._remove(folder.parent, os.getpid() + 1)
    assert folder.exists()
    persistence._remove(folder.parent, os.getpid())
    assert not folder.exists()
    monkeypatch.delenv("TMPDIR")
    with pytest.raises(ZeroDivisionError):
        persistence.KernelDatabase().compile(OPTIONS, lambda: 1 / 0)
    assert "TMPDIR" not in os.environ  # a compile that fails leaves it as it was


TENSORS = {
    "plain": torch.randn(4, 6),
    "turned": torch.randint(0, 9, (4, 6)).t(),
    "with gaps": torch.randn(4, 6, dtype=torch.bfloat16)[1:, ::2],
    "behind an address": torch.randn(7)[3:],
    "expanded": torch.randn(3, 1).expand(3, 5),
    "without dimensions": torch.tensor(2.5) > 0,
    "empty": torch.zeros(0, 3),
}


@pytest.mark.parametrize("tensor", TENSORS.values(), ids=TENSORS)
def test_copies_lie_as_the_original(tensor):
    before = tensor.clone()
    copy, other = copy_tensor(tensor), roll_tensor(tensor)
    assert have_equal_bits(copy, tensor)
    for moved in (copy, other):
        assert (moved.shape, moved.stride(), moved.dtype) == (tensor.shape, tensor.stride(), tensor.dtype)
        assert (moved.data_ptr() - tensor.data_ptr()) % 512 == 0
        assert not tensor.numel() or moved.data_ptr() != tensor.data_ptr()
    assert torch.equal(copy, before)
    if tensor.is_contiguous() and tensor.numel():
        assert torch.equal(other.flatten(), tensor.flatten().roll(1))


def test_bits_tell_zeros_apart_and_nans_together():
    assert not have_equal_bits(torch.tensor([0.0]), torch.tensor([-0.0]))
    assert have_equal_bits(torch.tensor([float("nan")]), torch.tensor([float("nan")]))
    assert not have_equal_bits(torch.zeros(2, 3), torch.zeros(3, 2).t())


def test_cubins_must_be_whole():
    image = make_elf()
    recipe.check_cubin(image)
    sections, programs = make_elf(sections=((1, 64, 10**6),)), make_elf(programs=((2**63, 8),))
    for damaged in (*(image[:end] for end in range(len(image))), make_elf(machine=62), sections, programs, b"PTX"):
        with pytest.raises(ValueError, match="a cubin that"):
            recipe.check_cubin(damaged)


ADD = draw("add(x, 1)", device="cuda")


@pytest.mark.parametrize(
    ("graph", "args", "reason"),
    [
        (draw("add(x, n)", device="cuda", n=NumberType("int")), [None], "a number among the inputs"),
        (draw("uniform_philox(x)", device="cuda"), [None], "random numbers"),
        (replace(ADD, sizes=1), [None], "symbolic sizes"),
        (draw("full((2,), 1.0, device='cuda')", device="cuda"), [], "no input or constant that names the GPU"),
        (ADD, [torch.zeros(2, 3)], "an input that is no CUDA tensor"),
    ],
)
def test_what_cannot_be_kept_is_known_before_it_is_compiled(graph, args, reason):
    with pytest.raises(Declined, match=f"^{reason}$") as refusal:
        persistence.check_persistable(graph, args)
    assert refusal.value.scope is Scope.STORING


@pytest.mark.parametrize(
    ("arg", "reason"),
    [
        (torch._neg_view(torch.zeros(2, 3)), "negated"),
        (torch.zeros(2, 3, dtype=torch.complex64).conj(), "conjugated"),
        (torch.zeros(2, 3).as_subclass(type("Own", (torch.Tensor,), {})), "no plain tensor"),
        (torch.zeros(2, 3, device="meta"), "several devices"),
    ],
    ids=["negated", "conjugated", "subclass", "device"],
)
def test_what_arguments_are_this_time_is_no_lasting_reason(arg, reason, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "get_device", lambda tensor: tensor.is_meta)
    with pytest.raises(Declined, match=reason) as refusal:
        persistence.check_tensors([torch.zeros(2, 3), arg])
    assert refusal.value.scope is Scope.STORING_NOW
    persistence.check_tensors([torch.nn.Parameter(torch.zeros(2, 3))])


def test_gpus_of_several_kinds_are_told_apart(monkeypatch):
    kinds = [SimpleNamespace(name=name, multi_processor_count=132, major=9, minor=0) for name in ("b", "a", "b")]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "get_device_properties", kinds.__getitem__)
    assert persistence.list_device_kinds() == ("a, 132 SMs, 9.0", "b, 132 SMs, 9.0")
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    with pytest.raises(Declined, match="several kinds"):
        persistence.check_persistable(ADD, [torch.zeros(2, 3)])


def test_compiling_for_other_arguments_writes_into_them_once():
    compiled = []

    def compile_(graph, args):
        compiled.append(args[0].mul_(2))  # nvFuser runs once when it compiles
        return lambda args: [args[0].mul_(2)]

    arg = torch.ones(2, 3)
    run = compile_fallback(compile_, draw("copy_(x, x)", device="cuda"))
    for expected in (2, 4):
        run([arg])
        assert arg.unique().tolist() == [expected]
    assert len(compiled) == 1


def make_node(*parameters):
    return make_launch(parameters=parameters, pointers=())


MEMORY = MemoryMap([make_range(0x10000, 256), range(0), make_range(0x30000, 64)])
OTHER = MemoryMap([make_range(0x50000, 256), range(0), make_range(0x40000, 64)])


def resolve(*runs):
    return capture.resolve_addresses(runs[:1], MEMORY, runs[1:], OTHER, lambda number: number == 0x77777)


def test_addresses_are_what_differs_and_lies_in_the_same_place():
    (step,) = resolve(
        make_node(pack_words(0x10010, 77), pack_words(5, 0x30000) + b"\x07\0\0\0"),
        make_node(pack_words(0x50010, 77), pack_words(5, 0x40000) + b"\x07\0\0\0"),
    )
    assert step.pointers == (Pointer(0, 0, 0, 16), Pointer(1, 8, 2, 0))
    assert step.parameters == (pack_words(0, 77), pack_words(5, 0) + b"\x07\0\0\0")


NODE = make_node(bytes(8))
NO_WORD = b"\x01\0\0\0", b"\x02\0\0\0"
DIFFERING = (0x10010, 0x50018), (0x10010, 0x40010), (0x10100, 0x50100), (5, 6)
KERNELS = replace(NODE, grid=(2, 1, 1)), replace(NODE, function="other"), replace(NODE, cooperative=False)
OTHER_NODES = *KERNELS, make_node(bytes(16)), Fill(0, 0x50000, 8, 0)


@pytest.mark.parametrize(
    ("runs", "reason"),
    [
        *((map(make_node, map(pack_words, words)), "differs between two runs") for words in DIFFERING),
        (map(make_node, NO_WORD), "differs between two runs"),
        *(([make_node(pack_words(word))] * 2, "outlives") for word in (0x10010, 0x77777)),
        *(([NODE, each], "differ between two runs") for each in OTHER_NODES),
        ([NODE], "differ between two runs"),
    ],
)
def test_numbers_and_kernels_that_cannot_be_told_are_refused(runs, reason):
    with pytest.raises(Declined, match=reason):
        resolve(*runs)


@given(st.lists(st.builds(make_range, st.integers(0, 60), st.integers(0, 9))))
def test_memory_that_is_allocated_again_is_in_one_region_and_regions_are_apart(pieces):
    found = capture.merge_ranges(pieces)
    MemoryMap(found)  # which refuses ranges that overlap
    assert set().union(*found) == set().union(*pieces)
    assert all(any(set(piece) <= set(region) for region in found) for piece in pieces if piece)
    with pytest.raises(Declined):
        MemoryMap([range(10, 20), range(19, 20)])


def make_graph_driver(*types, edges=None, name=NAME, parameters=(), clusters=(1, 1, 1), **memset):
    """Returns a fake driver with one captured graph, whose nodes are numbered from 1 on."""
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

    def fill(_):
        found = driver.bindings.CUDA_MEMSET_NODE_PARAMS()
        for field, value in {"dst": 4096, "elementSize": 4, "width": 8, "height": 1, **memset}.items():
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
    found, functions = read_graph(driver, 0)
    assert [getattr(node, "shared", None) for node in found] == [1, None, 3]
    assert found[1] == Fill(0, 4096, 32, 0)
    assert (found[0].grid, found[0].block, found[0].parameters) == ((3, 2, 1), (64, 1, 1), (pack_words(1, 2), b"\x07"))
    assert (found[0].function, found[0].most_shared, found[0].cooperative) == (NAME, 49152, False)
    assert functions == (99, 99)
    assert read_graph(make_graph_driver(), 0) == ([], ())


def test_graphs_that_are_no_chain_are_refused():
    for edges in ({}, {2: [1], 3: [1]}, {2: [1], 3: [1, 2]}, {1: [3], 2: [1], 3: [2]}, {3: [2]}):
        with pytest.raises(Declined, match="no fixed order"):
            read_graph(make_graph_driver("MEMSET", "MEMSET", "MEMSET", edges=edges), 0)


FILL = "_ZN2at6native29vectorized_elementwise_kernelILi8ENS0_11FillFunctorI{}EESt5arrayIPcLm1EEEEviT0_T1_"


@pytest.mark.parametrize(
    ("kind", "value", "fill"), [("l", bytes(8), Fill(0, 4096, 40, 0)), ("h", b"\x07", Fill(0, 4096, 5, 7))]
)
def test_what_torch_fills_is_a_fill(kind, value, fill):
    parameters = (b"\x05\0\0\0", value, pack_words(4096))
    assert read_graph(make_graph_driver("KERNEL", name=FILL.format(kind), parameters=parameters), 0) == ([fill], ())


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
        ("MEMSET", {"height": 2}, "a memset of rows"),
        ("MEMSET", {"elementSize": 8}, "a memset of rows"),
        ("MEMSET", {"value": 0x01020304}, "a memset of more than one byte"),
    ],
)
def test_what_is_not_understood_is_refused(type_, graph, reason):
    with pytest.raises(Declined, match=reason):
        read_graph(make_graph_driver(type_, **graph), 0)


WRITTEN_BEFORE = (
    b'{"version":3,"inputs":[{"layout":{"dtype":"float32","shape":[4,8],"strides":[8,1]},"alignment":16},{'
    b'"layout":{"dtype":"bfloat16","shape":[8],"strides":[1]},"alignment":2}],"allocations":[128,512],"out'
    b'puts":[{"layout":{"dtype":"float32","shape":[4,8],"strides":[8,1]},"allocation":0,"offset":0},{"layo'
    b'ut":{"dtype":"float32","shape":[8],"strides":[1]},"input":0,"offset":8,"itself":false},{"output":0},'
    b'{"layout":{"dtype":"float32","shape":[4,8],"strides":[8,1]},"allocation":1,"offset":128}],"steps":[{'
    b'"buffer":3,"delta":0,"size":256,"value":0},{"cubin":"0.cubin","function":"_ZN3nvf30nvfuser_pointwise'
    b'_f0_c1_r0_g0E","grid":[7,2,1],"block":[128,1,1],"shared":16,"most_shared":49152,"cooperative":true,"'
    b'parameters":["00000000000000000400000008000000","000000000000000000000000000000000000000000000000","'
    b'05"],"pointers":[{"parameter":0,"offset":0,"buffer":0,"delta":0},{"parameter":1,"offset":8,"buffer":'
    b'2,"delta":64}]}],"widest":16}'
)
"""The recipe as version 3 of the format was first written. Stores hold such recipes."""


def test_recipes_in_stores_are_read_and_written_as_they_were_and_others_come_back():
    assert recipe.decode(WRITTEN_BEFORE) == RECIPE
    assert recipe.encode(RECIPE) == WRITTEN_BEFORE
    for alignment in (1, 4, 8):
        inputs, steps = (Input(FLAT, alignment), RECIPE.inputs[1]), (make_launch(cooperative=False),)
        other = replace(RECIPE, inputs=inputs, outputs=(), steps=steps, widest=32)
        assert recipe.decode(recipe.encode(other)) == other


WRONG = {
    "unknown dtype": {"inputs": lambda: (Input(Layout("float8", (1,), (1,)), 16),)},
    "negative stride": {"inputs": lambda: (Input(Layout("float32", (2,), (-1,)), 16),)},
    "alignment 3": {"inputs": lambda: (Input(FLAT, 3),)},
    "output beyond its allocation": {"allocations": (127, 512)},
    "negative allocation": {"allocations": (-1, 512)},
    "unknown allocation": {"outputs": (Fresh(FLAT, 2, 0),)},
    "again of a later one": {"outputs": (Duplicate(0),)},
    "view beyond its input": {"outputs": (View(FLAT, 0, 1, False),)},
    "view of another dtype": {"outputs": (View(Layout("int32", (8,), (1,)), 0, 0, False),)},
    "itself in another layout": {"outputs": (View(Layout("float32", (32,), (1,)), 0, 0, True),)},
    "output between elements": {"outputs": (Fresh(FLAT, 1, 2),)},
    "fill beyond its buffer": {"steps": (Fill(2, 64, 65, 0),)},
    "fill of a large byte": {"steps": (Fill(2, 0, 1, 256),)},
    "fill of an unknown buffer": {"steps": (Fill(4, 0, 1, 0),)},
    "pointer beyond its parameter": {"steps": (make_launch(pointers=(Pointer(0, 16, 0, 0),)),)},
    "pointer across a parameter's end": {"steps": (make_launch(pointers=(Pointer(0, 12, 0, 0),)),)},
    "pointer of an unknown parameter": {"steps": (make_launch(pointers=(Pointer(3, 0, 0, 0),)),)},
    "pointer beyond its buffer": {"steps": (make_launch(pointers=(Pointer(0, 0, 0, 128),)),)},
    "pointer before its buffer": {"steps": (make_launch(pointers=(Pointer(0, 0, 0, -8),)),)},
    "two pointers in a place": {"steps": (make_launch(pointers=(Pointer(0, 0, 0, 0), Pointer(0, 0, 1, 0))),)},
    "an address left in": {"steps": (make_launch(parameters=(b"\x01" * 16,), pointers=(Pointer(0, 0, 0, 0),)),)},
    "no grid": {"steps": (make_launch(grid=(0, 1, 1)),)},
    "too many threads": {"steps": (make_launch(block=(1024, 2, 1)),)},
    "too much shared memory": {"steps": (make_launch(shared=2**20, most_shared=2**20),)},
    "less shared memory than asked for": {"steps": (make_launch(most_shared=8),)},
    "a cubin with a path": {"steps": (make_launch(cubin="../x"),)},
    "a name with a zero": {"steps": (make_launch(function="a\0b"),)},
    "too many parameters": {"steps": (make_launch(parameters=(bytes(40000),), pointers=()),)},
    "true for a number": {"steps": (make_launch(grid=(True, 1, 1)),)},
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


WRITTEN = json.loads(recipe.encode(RECIPE))
JUNK = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3), st.lists(st.integers()))


@given(st.sampled_from(list(paths(WRITTEN))[1:]), JUNK)
def test_damaged_recipes_are_refused_or_in_range(path, junk):
    damaged = json.loads(recipe.encode(RECIPE))
    parent = damaged
    for name in path[:-1]:
        parent = parent[name]
    parent[path[-1]] = junk
    try:
        found = recipe.decode(json.dumps(damaged).encode())
    except ValueError:
        return
    for step in found.steps:
        for pointer in getattr(step, "pointers", ()):
            assert 0 <= pointer.delta < found.extents[pointer.buffer]
