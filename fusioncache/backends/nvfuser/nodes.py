"""What a captured CUDA graph launches: kernels with the bytes of their parameters, and fills."""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass
from typing import Any

from fusioncache.backends.api import NotPersistable
from fusioncache.backends.nvfuser.parts import WORD
from fusioncache.backends.nvfuser.structures import CLUSTER, COOPERATIVE, KernelNode

_KERNEL, _MEMSET = 0, 2
_NODE_TYPES = {1: "memcpy", 3: "host", 4: "child graph", 5: "empty", 10: "allocation", 11: "free"}
_COMPILED = "nvfuser_"
"""In the name of every kernel that nvFuser compiles, and in no other."""
_FILL = re.compile(
    r"_ZN2at6native29vectorized_elementwise_kernelILi\d+ENS0_11FillFunctorI([abhstijlmxyfd])EE"
    r"St5arrayIPcLm1EEEEviT0_T1_"
)
"""Torch's kernel that fills contiguous memory. It takes the number of items, one of them, and the address."""
_FILL_ITEMS = {**dict.fromkeys("abh", 1), **dict.fromkeys("st", 2), **dict.fromkeys("ijf", 4)}
_FILL_ITEMS |= dict.fromkeys("lmxyd", 8)


@dataclass(frozen=True, slots=True)
class Kernel:
    """A launch of a kernel, as it was captured: ``parameters`` with addresses in them."""

    function: int
    name: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    most_shared: int
    cooperative: bool
    parameters: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Filling:
    """Writes ``size`` bytes of this ``value`` at ``address``."""

    address: int
    size: int
    value: int


Node = Kernel | Filling


def read_graph(driver: Any, graph: int) -> list[Node]:
    """What a captured graph launches, in order.

    Raises:
        NotPersistable: if there is anything in it that is not understood.
    """
    return [_read(driver, node) for node in in_order(driver, graph)]


def in_order(driver: Any, graph: int) -> list[int]:
    """The nodes of a graph that is a chain.

    Raises:
        NotPersistable: if it is none.
    """
    nodes = driver.nodes(graph)
    after: dict[int | None, int] = {}
    for node in nodes:
        waits_for = driver.dependencies(node)
        before = waits_for[0] if waits_for else None
        if len(waits_for) > 1 or before in after:
            raise NotPersistable("kernels in no fixed order")
        after[before] = node
    ordered = []
    node = after.get(None)
    while node is not None:
        ordered.append(node)
        node = after.get(node)
    if len(ordered) != len(nodes):
        raise NotPersistable("kernels in no fixed order")
    return ordered


def _read(driver: Any, node: int) -> Node:
    kind = driver.node_type(node)
    if kind == _MEMSET:
        return _memset(driver.memset_node(node))
    if kind != _KERNEL:
        raise NotPersistable(f"a {_NODE_TYPES.get(kind, f'type {kind}')} node")
    found, function = driver.kernel_node(node)
    name = driver.name(function)
    parameters = _parameters(driver, found, function, name)
    if _COMPILED not in name:
        return _torch_fill(name, parameters)
    _check_attributes(driver, node, function)
    grid, block = found.grid, found.block
    return Kernel(
        function,
        name,
        (grid[0], grid[1], grid[2]),
        (block[0], block[1], block[2]),
        found.shared,
        max(driver.attribute(function, 8), found.shared),
        bool(driver.launch_attribute(node, COOPERATIVE).number),
        parameters,
    )


def _memset(found: Any) -> Filling:
    item, value = found.item_bytes, found.value
    if found.height != 1 or item not in (1, 2, 4):
        raise NotPersistable("a memset of rows")
    pattern = (value & (2 ** (8 * item) - 1)).to_bytes(item, "little")
    if len(set(pattern)) != 1:
        raise NotPersistable("a memset of more than one byte")
    return Filling(found.address, found.width * item, pattern[0])


def _parameters(driver: Any, found: KernelNode, function: int, name: str) -> tuple[bytes, ...]:
    if found.extra or not found.parameters:
        raise NotPersistable(f"parameters of {short(name)} in one piece")
    sizes = [size for _, size in driver.parameters(function)]
    places = [found.parameters[place] for place in range(len(sizes))]
    if not all(places):
        raise NotPersistable(f"parameters of {short(name)} that are not there")
    return tuple(ctypes.string_at(place, size) for place, size in zip(places, sizes, strict=True))


def _check_attributes(driver: Any, node: int, function: int) -> None:
    # A kernel that may overlap with the one before shows in the order of the graph, which is none then.
    cluster = driver.launch_attribute(node, CLUSTER).dimensions
    if any(size > 1 for size in cluster) or driver.has_cluster(function):
        raise NotPersistable("a kernel in clusters")


def _torch_fill(name: str, parameters: tuple[bytes, ...]) -> Filling:
    """Torch zeroes workspaces by a kernel. Its name says all that it does, so its parameters say the rest."""
    match = _FILL.fullmatch(name)
    if match is None:
        raise NotPersistable(f"a kernel that nvFuser did not compile: {short(name)}")
    item = _FILL_ITEMS[match[1]]
    if [len(parameter) for parameter in parameters] != [4, item, WORD]:
        raise NotPersistable(f"a kernel with other parameters than expected: {short(name)}")
    count, pattern, address = parameters
    if len(set(pattern)) != 1:
        raise NotPersistable("a fill of more than one byte")
    return Filling(int.from_bytes(address, "little"), int.from_bytes(count, "little") * item, pattern[0])


def short(name: str) -> str:
    """A name that fits into a line."""
    return name if len(name) <= 100 else f"{name[:97]}..."
