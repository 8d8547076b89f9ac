"""What a function launches, seen by capturing it in CUDA graphs that are never run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from fusioncache.backends.api import NotPersistable, NotPersistableNow, Run
from fusioncache.backends.nvfuser.addresses import Memory, Piece, regions, resolved
from fusioncache.backends.nvfuser.driver import Driver
from fusioncache.backends.nvfuser.nodes import Kernel, Node, read_graph
from fusioncache.backends.nvfuser.parts import ITEM_BYTES, Again, Fresh, Input, Layout, Output, View
from fusioncache.backends.nvfuser.recipe import Recipe


@dataclass(frozen=True, slots=True)
class Captured:
    """A run.

    Attributes:
        recipe: whose launches name no cubin yet.
        functions: the function of each launch, as it is loaded in this process.
    """

    recipe: Recipe
    functions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Run:
    """One captured run, with what must live as long as its addresses mean something."""

    nodes: list[Node]
    args: Sequence[Any]
    outputs: Sequence[Any]
    graph: Any
    stream: int


def capture(driver: Driver, run: Run, args: Sequence[Any], others: Sequence[Any]) -> Captured:
    """What ``run`` launches for such arguments.

    Args:
        driver: of CUDA.
        run: called once before, so that nothing is left to compile, and twice now, without effect.
        args: tensors of one device.
        others: like these, bit for bit in layout and alignment, in other memory. Nothing else may lie in the memory of
            either.

    Raises:
        NotPersistable: if it launches anything that is not understood.
    """
    widest = widest_access(args[0].get_device())
    with _recorded():
        first, second = (_captured(driver, run, given) for given in (args, others))
        allocated = _allocated(args[0].get_device())
    memory, other = _memory(first, allocated), _memory(second, allocated)
    steps = resolved(first.nodes, memory, second.nodes, other, driver.is_pointer)
    outputs = tuple(_output(position, first, memory) for position in range(len(first.outputs)))
    if outputs != tuple(_output(position, second, other) for position in range(len(second.outputs))):
        raise NotPersistable("outputs that are not the same twice")
    inputs = tuple(Input(layout_of(arg), alignment(arg.data_ptr(), widest)) for arg in args)
    sizes = tuple(piece.size for piece in memory.pieces[len(args) :])
    recipe = _checked(inputs, sizes, outputs, steps, widest)
    return Captured(recipe, tuple(node.function for node in first.nodes if isinstance(node, Kernel)))


def widest_access(device: int) -> int:
    """Bytes of the widest access that nvFuser compiles for this device."""
    return 32 if torch.cuda.get_device_capability(device)[0] >= 10 else 16


def alignment(address: int, widest: int) -> int:
    """The largest power of two that divides an address, as far as it matters."""
    return min(address & -address, widest) if address else widest


def layout_of(tensor: Any) -> Layout:
    """The layout of a tensor.

    Raises:
        NotPersistable: if it is of a dtype that is not known here.
    """
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in ITEM_BYTES:
        raise NotPersistable(f"a tensor of dtype {dtype}")
    return Layout(dtype, tuple(tensor.shape), tuple(tensor.stride()))


@contextmanager
def _recorded() -> Iterator[None]:
    """Has torch take note of what is allocated."""
    if torch._C._cuda_isHistoryEnabled():
        raise NotPersistableNow("torch's memory history is in use")
    torch.cuda.memory._record_memory_history("all", context=None, stacks="python", clear_history=True)
    try:
        yield
    finally:
        torch.cuda.memory._record_memory_history(None)


@contextmanager
def _left_uninitialized() -> Iterator[None]:
    """Has torch leave new memory as it is where deterministic algorithms are asked for.

    It would be filled by a kernel of torch's own otherwise, which is only there to show what is read before it is
    written. Nothing is: whether the run computes the same from other memory is tried before it is kept.
    """
    before = torch.utils.deterministic.fill_uninitialized_memory
    torch.utils.deterministic.fill_uninitialized_memory = False
    try:
        yield
    finally:
        torch.utils.deterministic.fill_uninitialized_memory = before


def _allocated(device: int) -> list[dict[str, Any]]:
    events = torch._C._cuda_memorySnapshot(None)["device_traces"][device]
    return [event for event in events if event["action"] == "alloc"]


def _captured(driver: Driver, run: Run, args: Sequence[Any]) -> _Run:
    side = torch.cuda.Stream(args[0].device)
    side.wait_stream(torch.cuda.current_stream(args[0].device))
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.stream(side):
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            with _left_uninitialized():
                outputs = run(args)
        finally:
            graph.capture_end()
    nodes = read_graph(driver, graph.raw_cuda_graph())
    return _Run(nodes, args, outputs, graph, side.cuda_stream)


def _memory(captured: _Run, allocated: Sequence[dict[str, Any]]) -> Memory:
    """The memory of a run: its inputs, then what it allocated and uses."""
    inputs = [Piece(arg.data_ptr(), layout_of(arg).extent) for arg in captured.args]
    mine = [Piece(event["addr"], event["size"]) for event in allocated if event["stream"] == captured.stream]
    fresh = [piece for piece in regions(mine) if _used(piece, captured)]
    return Memory([*inputs, *fresh])


def _used(piece: Piece, captured: _Run) -> bool:
    """Whether an address in this memory occurs anywhere. What only looks like one does no harm."""
    low, high = piece.start, piece.start + piece.size
    if any(low <= output.data_ptr() < high for output in captured.outputs):
        return True
    for node in captured.nodes:
        if not isinstance(node, Kernel):
            if low <= node.address < high:
                return True
            continue
        for parameter in node.parameters:
            words = (parameter[place : place + 8] for place in range(0, len(parameter), 8))
            if any(low <= int.from_bytes(word, "little") < high for word in words if len(word) == 8):
                return True
    return False


def _output(position: int, captured: _Run, memory: Memory) -> Output:
    output = captured.outputs[position]
    for before in range(position):
        if captured.outputs[before] is output:
            return Again(before)
    if not output.is_cuda or output.is_conj() or output.is_neg():
        raise NotPersistable("an output that is no plain tensor")
    layout = layout_of(output)
    for number, arg in enumerate(captured.args):
        if output is arg:
            return View(layout, number, 0, itself=True)
    if not layout.extent:
        raise NotPersistable("an output without elements")
    place = memory.find(output.data_ptr())
    if place is None:
        raise NotPersistable("an output in unknown memory")
    buffer, delta = place
    if delta + layout.extent > memory.pieces[buffer].size:
        raise NotPersistable("an output beyond its memory")
    if buffer >= len(captured.args):
        return Fresh(layout, buffer - len(captured.args), delta)
    if captured.args[buffer].dtype != output.dtype or delta % ITEM_BYTES[layout.dtype]:
        raise NotPersistable("an output that is a view of an input in another dtype")
    return View(layout, buffer, delta // ITEM_BYTES[layout.dtype], itself=False)


def _checked(inputs: Any, sizes: Any, outputs: Any, steps: Any, widest: int) -> Recipe:
    try:
        return Recipe(inputs, sizes, outputs, steps, widest)
    except ValueError as error:
        raise NotPersistable(str(error)) from error
