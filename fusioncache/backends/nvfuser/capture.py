"""Makes a recipe from a run, which is captured twice in CUDA graphs that are never launched.

A graph contains the kernels with the bytes of their parameters, and the fills. The second time everything lies at other
addresses. An address in a kernel's parameters then differs, and points to the same offset in the same memory; all else
is equal. So no number is mistaken for an address by chance, nor vice versa.
"""

from __future__ import annotations

import ctypes
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from fusioncache.backends.api import Run
from fusioncache.backends.nvfuser.driver import Driver
from fusioncache.backends.nvfuser.recipe import (
    CUBIN,
    ITEM_BYTES,
    WORD,
    Duplicate,
    Fill,
    Fresh,
    Input,
    Launch,
    Layout,
    Output,
    Pointer,
    Recipe,
    Step,
    View,
)
from fusioncache.ir import Declined, Scope

_NODE_TYPES = {"GRAPH": "child graph", "MEM_ALLOC": "allocation", "MEM_FREE": "free"}
"""Names for node types in refusals, where these are not CUDA's."""
_COMPILED = "nvfuser_"
"""A part of the name of every kernel that nvFuser compiles, and of no other."""
_FILL = re.compile(
    r"_ZN2at6native29vectorized_elementwise_kernelILi\d+ENS0_11FillFunctorI([abhstijlmxyfd])EE"
    r"St5arrayIPcLm1EEEEviT0_T1_"
)
"""Torch's kernel that fills contiguous memory. It takes the number of items, an item, and the address."""
_FILL_ITEMS = {**dict.fromkeys("abh", 1), **dict.fromkeys("st", 2), **dict.fromkeys("ijf", 4)}
_FILL_ITEMS |= dict.fromkeys("lmxyd", 8)


def read_graph(driver: Any, graph: int) -> tuple[list[Step], tuple[int, ...]]:
    """Returns the launches of a captured graph, in order, and the function of each kernel in this process.

    The steps are those of a recipe with one buffer, which is all memory: addresses are in the parameters of launches,
    and in the delta of fills.

    Raises:
        Declined: if the graph contains anything that is not supported.
    """
    nodes = _sort_nodes(driver, graph)
    steps = [_read_node(driver, node) for node in nodes]
    launches = (node for node, step in zip(nodes, steps, strict=True) if isinstance(step, Launch))
    return steps, tuple(driver.kernel_node(node)[1] for node in launches)


def _sort_nodes(driver: Any, graph: int) -> list[int]:
    """Returns the nodes of a graph in order. Any graph that is not a chain is refused."""
    nodes = driver.nodes(graph)
    after = {tuple(driver.dependencies(node)): node for node in nodes}
    ordered = []
    node = after.get(())
    while node is not None:
        ordered.append(node)
        node = after.get((node,))
    if len(ordered) != len(nodes):
        raise Declined("kernels in no fixed order", Scope.STORING)
    return ordered


def _read_node(driver: Any, node: int) -> Step:
    kind = driver.node_type(node)
    if kind == "MEMSET":
        return _read_memset(driver.memset_node(node))
    if kind != "KERNEL":
        raise Declined(f"a {_NODE_TYPES.get(kind, kind.lower())} node", Scope.STORING)
    found, function = driver.kernel_node(node)
    name = driver.function_name(function)
    parameters = _read_parameters(driver, found, function, name)
    if _COMPILED not in name:
        return _read_torch_fill(name, parameters)
    _check_clusters(driver, node, function)
    return Launch(
        CUBIN,
        name,
        (found.gridDimX, found.gridDimY, found.gridDimZ),
        (found.blockDimX, found.blockDimY, found.blockDimZ),
        found.sharedMemBytes,
        max(driver.shared_limit(function), found.sharedMemBytes),
        bool(driver.launch_attribute(node, "COOPERATIVE").cooperative),
        parameters,
        (),
    )


def _read_memset(found: Any) -> Fill:
    item, value = found.elementSize, found.value
    if found.height != 1 or item not in (1, 2, 4):
        raise Declined("a memset of rows", Scope.STORING)
    pattern = (value & (2 ** (8 * item) - 1)).to_bytes(item, "little")
    if len(set(pattern)) != 1:
        raise Declined("a memset of more than one byte", Scope.STORING)
    return Fill(0, int(found.dst), found.width * item, pattern[0])


def _read_parameters(driver: Any, found: Any, function: int, name: str) -> tuple[bytes, ...]:
    if found.extra or not found.kernelParams:
        raise Declined(f"parameters of {shorten(name)} in one piece", Scope.STORING)
    sizes = driver.parameter_sizes(function)
    addresses = (ctypes.c_void_p * len(sizes)).from_address(found.kernelParams)
    if not all(addresses):
        raise Declined(f"parameters of {shorten(name)} that are not there", Scope.STORING)
    return tuple(ctypes.string_at(address, size) for address, size in zip(addresses, sizes, strict=True))


def _check_clusters(driver: Any, node: int, function: int) -> None:
    # Kernels that may overlap need no check here: ``_sort_nodes`` refuses their graph, which has no fixed order.
    cluster = driver.launch_attribute(node, "CLUSTER_DIMENSION").clusterDim
    if max(cluster.x, cluster.y, cluster.z) > 1 or driver.has_cluster(function):
        raise Declined("a kernel in clusters", Scope.STORING)


def _read_torch_fill(name: str, parameters: tuple[bytes, ...]) -> Fill:
    """Returns the fill of a torch kernel that zeroes a workspace. Its name and parameters determine its effect."""
    match = _FILL.fullmatch(name)
    if match is None:
        raise Declined(f"a kernel that nvFuser did not compile: {shorten(name)}", Scope.STORING)
    item = _FILL_ITEMS[match[1]]
    if [len(parameter) for parameter in parameters] != [4, item, WORD]:
        raise Declined(f"a kernel with other parameters than expected: {shorten(name)}", Scope.STORING)
    count, pattern, address = parameters
    if len(set(pattern)) != 1:
        raise Declined("a fill of more than one byte", Scope.STORING)
    return Fill(0, int.from_bytes(address, "little"), int.from_bytes(count, "little") * item, pattern[0])


def shorten(name: str) -> str:
    """Returns a name, cut to a length that fits into a line."""
    return name if len(name) <= 100 else f"{name[:97]}..."


_LEAST_ADDRESS = 2**16


@dataclass(frozen=True, slots=True)
class Capture:
    """The launches of a run: a recipe that names no cubin yet, and the function of each launch in this process."""

    recipe: Recipe
    functions: tuple[int, ...]


class MemoryMap:
    """The memory of one captured run: the addresses of its inputs, then of its allocations. A range may be empty.

    Raises:
        Declined: if ranges overlap.
    """

    def __init__(self, ranges: Sequence[range]):
        self.ranges = tuple(ranges)
        self._order = sorted((range_.start, index) for index, range_ in enumerate(self.ranges) if range_)
        end = 0
        for start, index in self._order:
            if start < end:
                raise Declined("memory that overlaps", Scope.STORING)
            end = self.ranges[index].stop

    def find(self, address: int) -> tuple[int, int] | None:
        """Returns the index of the range that an address is in, and its offset there; None if it is in none."""
        position = bisect_right(self._order, (address, len(self.ranges))) - 1
        if position < 0:
            return None
        start, index = self._order[position]
        return (index, address - start) if address in self.ranges[index] else None


@dataclass(frozen=True, slots=True)
class _CapturedRun:
    """One captured run, with the objects that must live as long as its addresses are valid."""

    steps: Sequence[Step]
    functions: tuple[int, ...]
    args: Sequence[Any]
    outputs: Sequence[Any]
    graph: Any
    stream: int


def capture(driver: Driver, run: Run, args: Sequence[Any], others: Sequence[Any]) -> Capture:
    """Returns the launches of ``run`` for these arguments.

    Args:
        driver: the driver of CUDA.
        run: was called once before, so that nothing is left to compile. It is called twice here, without effect.
        args: tensors on the current device. Their memory contains nothing else, and neither does that of the others.
        others: tensors of the same layouts and alignments in other memory.

    Raises:
        Declined: if it launches anything that is not supported.
    """
    device = torch.cuda.current_device()
    widest = widest_access(device)
    with _record_allocations():
        first, second = (_capture_run(driver, run, given) for given in (args, others))
        allocations = _list_allocations(device)
    memory, other = _map_memory(first, allocations), _map_memory(second, allocations)
    steps = resolve_addresses(first.steps, memory, second.steps, other, driver.is_pointer)
    outputs = _describe_outputs(first, memory)
    if outputs != _describe_outputs(second, other):
        raise Declined("outputs that differ between two runs", Scope.STORING)
    inputs = tuple(Input(read_layout(arg), alignment(arg.data_ptr(), widest)) for arg in args)
    sizes = tuple(map(len, memory.ranges[len(args) :]))
    try:
        recipe = Recipe(inputs, sizes, outputs, steps, widest)
    except ValueError as error:
        raise Declined(str(error), Scope.STORING) from error
    return Capture(recipe, first.functions)


def widest_access(device: int) -> int:
    """Returns the bytes of the widest access that nvFuser compiles for this device."""
    return 32 if torch.cuda.get_device_capability(device)[0] >= 10 else 16


def alignment(address: int, widest: int) -> int:
    """Returns the largest power of two that divides an address, but at most ``widest``."""
    return min(address & -address, widest) if address else widest


def read_layout(tensor: Any) -> Layout:
    """Returns the layout of a tensor.

    Raises:
        Declined: if its dtype is not supported.
    """
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in ITEM_BYTES:
        raise Declined(f"a tensor of dtype {dtype}", Scope.STORING)
    return Layout(dtype, tuple(tensor.shape), tuple(tensor.stride()))


@contextmanager
def _record_allocations() -> Iterator[None]:
    """Makes torch record its allocations in the body."""
    if torch._C._cuda_isHistoryEnabled():
        raise Declined("torch's memory history is in use", Scope.STORING_NOW)
    torch.cuda.memory._record_memory_history("all", context=None, stacks="python", clear_history=True)
    try:
        yield
    finally:
        torch.cuda.memory._record_memory_history(None)


@contextmanager
def leave_uninitialized() -> Iterator[None]:
    """Makes torch leave new memory uninitialized, even with deterministic algorithms.

    Torch would fill it by a kernel otherwise, whose only purpose is to reveal reads before writes. There are none:
    before a run is stored, it is verified that it computes the same from other memory.
    """
    before = torch.utils.deterministic.fill_uninitialized_memory
    torch.utils.deterministic.fill_uninitialized_memory = False
    try:
        yield
    finally:
        torch.utils.deterministic.fill_uninitialized_memory = before


def _list_allocations(device: int) -> list[dict[str, Any]]:
    events = torch._C._cuda_memorySnapshot(None)["device_traces"][device]
    return [event for event in events if event["action"] == "alloc"]


def _capture_run(driver: Driver, run: Run, args: Sequence[Any]) -> _CapturedRun:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.stream(side):
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            with leave_uninitialized():
                outputs = run(args)
        finally:
            graph.capture_end()
    return _CapturedRun(*read_graph(driver, graph.raw_cuda_graph()), args, outputs, graph, side.cuda_stream)


def _map_memory(run: _CapturedRun, allocations: Sequence[dict[str, Any]]) -> MemoryMap:
    """Returns the memory of a run: its inputs, then the allocations that it uses."""
    inputs = [make_range(arg.data_ptr(), read_layout(arg).extent) for arg in run.args]
    own = [make_range(event["addr"], event["size"]) for event in allocations if event["stream"] == run.stream]
    used = _list_addresses(run)
    return MemoryMap([*inputs, *(memory for memory in merge_ranges(own) if any(map(memory.__contains__, used)))])


def make_range(start: int, size: int) -> range:
    """Returns ``size`` addresses from ``start`` on."""
    return range(start, start + size)


def _list_addresses(run: _CapturedRun) -> list[int]:
    """Returns every number that may be an address in the memory of a run. False positives do no harm."""
    addresses = [output.data_ptr() for output in run.outputs]
    for step in run.steps:
        if isinstance(step, Fill):
            addresses.append(step.delta)
            continue
        for parameter in step.parameters:
            words = (parameter[offset : offset + WORD] for offset in range(0, len(parameter), WORD))
            addresses += [int.from_bytes(word, "little") for word in words if len(word) == WORD]
    return addresses


def merge_ranges(allocations: Iterable[range]) -> tuple[range, ...]:
    """Returns allocations with overlapping ranges merged, in the order of their first allocation.

    Freed memory is allocated again during a run, so one address may belong to several allocations. Which one does not
    matter if a later run gets the same memory, each range as large as all allocations that were ever in it.
    """
    merged: list[tuple[int, range]] = []
    numbered = ((number, range_) for number, range_ in enumerate(allocations) if range_)
    for number, range_ in sorted(numbered, key=lambda item: item[1].start):
        if merged and range_.start in merged[-1][1]:
            first, before = merged.pop()
            number, range_ = min(first, number), range(before.start, max(before.stop, range_.stop))
        merged.append((number, range_))
    return tuple(range_ for _, range_ in sorted(merged, key=lambda item: item[0]))


def _describe_outputs(run: _CapturedRun, memory: MemoryMap) -> tuple[Output, ...]:
    return tuple(_describe_output(index, run, memory) for index in range(len(run.outputs)))


def _describe_output(index: int, run: _CapturedRun, memory: MemoryMap) -> Output:
    output = run.outputs[index]
    for earlier in range(index):
        if run.outputs[earlier] is output:
            return Duplicate(earlier)
    if not output.is_cuda or output.is_conj() or output.is_neg():
        raise Declined("an output that is no plain tensor", Scope.STORING)
    layout = read_layout(output)
    for input_, arg in enumerate(run.args):
        if output is arg:
            return View(layout, input_, 0, itself=True)
    if not layout.extent:
        raise Declined("an output without elements", Scope.STORING)
    found = memory.find(output.data_ptr())
    if found is None:
        raise Declined("an output in unknown memory", Scope.STORING)
    buffer, delta = found
    if delta + layout.extent > len(memory.ranges[buffer]):
        raise Declined("an output that reaches beyond its allocation", Scope.STORING)
    if buffer >= len(run.args):
        return Fresh(layout, buffer - len(run.args), delta)
    if run.args[buffer].dtype != output.dtype or delta % ITEM_BYTES[layout.dtype]:
        raise Declined("an output that is a view of an input in another dtype", Scope.STORING)
    return View(layout, buffer, delta // ITEM_BYTES[layout.dtype], itself=False)


def resolve_addresses(
    first: Sequence[Step],
    memory: MemoryMap,
    second: Sequence[Step],
    other: MemoryMap,
    is_pointer: Callable[[int], bool],
) -> tuple[Step, ...]:
    """Returns the steps of a run that was captured twice, with everything at other addresses. They name no cubin yet.

    The memories of both are the same, range by range. ``is_pointer`` returns whether a number is an address of memory
    that the GPU can read.

    Raises:
        Declined: if anything is ambiguous.
    """
    if len(first) != len(second) or [*map(len, memory.ranges)] != [*map(len, other.ranges)]:
        raise Declined("launches that differ between two runs", Scope.STORING)
    steps: list[Step] = []
    for one, two in zip(first, second, strict=True):
        if isinstance(one, Launch) and isinstance(two, Launch):
            steps.append(_resolve_launch(one, memory, two, other, is_pointer))
        elif isinstance(one, Fill) and isinstance(two, Fill):
            steps.append(_resolve_fill(one, memory, two, other))
        else:
            raise Declined("launches that differ between two runs", Scope.STORING)
    return tuple(steps)


def _resolve_fill(one: Fill, memory: MemoryMap, two: Fill, other: MemoryMap) -> Fill:
    found = memory.find(one.delta)
    if found is None or found != other.find(two.delta) or (one.size, one.value) != (two.size, two.value):
        raise Declined("a fill of unknown memory", Scope.STORING)
    buffer, delta = found
    if delta + one.size > len(memory.ranges[buffer]):
        raise Declined("a fill that reaches beyond its allocation", Scope.STORING)
    return Fill(buffer, delta, one.size, one.value)


def _resolve_launch(
    one: Launch, memory: MemoryMap, two: Launch, other: MemoryMap, is_pointer: Callable[[int], bool]
) -> Launch:
    same_sizes = [*map(len, one.parameters)] == [*map(len, two.parameters)]
    if not same_sizes or one != replace(two, parameters=one.parameters):
        raise Declined("launches that differ between two runs", Scope.STORING)
    parameters, pointers = [], []
    for index, (left, right) in enumerate(zip(one.parameters, two.parameters, strict=True)):
        content = bytearray(left)
        for offset in range(0, len(left), WORD):
            word, again = left[offset : offset + WORD], right[offset : offset + WORD]
            found = _resolve_word(
                word, memory, again, other, is_pointer, f"parameter {index} of {shorten(one.function)}"
            )
            if found is not None:
                content[offset : offset + WORD] = bytes(WORD)
                pointers.append(Pointer(index, offset, *found))
        parameters.append(bytes(content))
    return replace(one, parameters=tuple(parameters), pointers=tuple(pointers))


def _resolve_word(
    word: bytes, memory: MemoryMap, again: bytes, other: MemoryMap, is_pointer: Callable[[int], bool], what: str
) -> tuple[int, int] | None:
    """Returns the buffer and the offset that a word of a parameter points to; None if it is not an address."""
    number, number_again = int.from_bytes(word, "little"), int.from_bytes(again, "little")
    found = memory.find(number) if len(word) == WORD else None
    if word == again:
        if found is not None or (number >= _LEAST_ADDRESS and len(word) == WORD and is_pointer(number)):
            raise Declined(f"memory that outlives a run, or a number that may be an address: {what}", Scope.STORING)
        return None
    if found is None or found != other.find(number_again):
        raise Declined(f"a kernel argument that differs between two runs: {what}", Scope.STORING)
    return found
