"""What a captured CUDA graph launches: kernels with the bytes of their parameters, and fills."""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass
from typing import Any

from fusioncache.backends.nvfuser.recipe import WORD
from fusioncache.ir.errors import Declined, Scope

_NODE_TYPES = {"GRAPH": "child graph", "MEM_ALLOC": "allocation", "MEM_FREE": "free"}
"""Types of nodes whose names in a refusal are not CUDA's own."""
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
class KernelNode:
    """A launch of a kernel, as it was captured: its ``parameters`` hold addresses."""

    function: int
    name: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    most_shared: int
    cooperative: bool
    parameters: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class FillNode:
    """A node that writes ``size`` bytes of this ``value`` at ``address``."""

    address: int
    size: int
    value: int


Node = KernelNode | FillNode


def read_graph(driver: Any, graph: int) -> list[Node]:
    """Returns what a captured graph launches, in order.

    Raises:
        Declined: if there is anything in it that is not understood.
    """
    return [_read_node(driver, node) for node in _sort_nodes(driver, graph)]


def _sort_nodes(driver: Any, graph: int) -> list[int]:
    """Returns the nodes of a graph that is a chain, and refuses any other graph."""
    nodes = driver.nodes(graph)
    after: dict[int | None, int] = {}
    for node in nodes:
        waits_for = driver.dependencies(node)
        before = waits_for[0] if waits_for else None
        if len(waits_for) > 1 or before in after:
            raise Declined("kernels in no fixed order", Scope.STORING)
        after[before] = node
    ordered = []
    node = after.get(None)
    while node is not None:
        ordered.append(node)
        node = after.get(node)
    if len(ordered) != len(nodes):
        raise Declined("kernels in no fixed order", Scope.STORING)
    return ordered


def _read_node(driver: Any, node: int) -> Node:
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
    return KernelNode(
        function,
        name,
        (found.gridDimX, found.gridDimY, found.gridDimZ),
        (found.blockDimX, found.blockDimY, found.blockDimZ),
        found.sharedMemBytes,
        max(driver.shared_limit(function), found.sharedMemBytes),
        bool(driver.launch_attribute(node, "COOPERATIVE").cooperative),
        parameters,
    )


def _read_memset(found: Any) -> FillNode:
    item, value = found.elementSize, found.value
    if found.height != 1 or item not in (1, 2, 4):
        raise Declined("a memset of rows", Scope.STORING)
    pattern = (value & (2 ** (8 * item) - 1)).to_bytes(item, "little")
    if len(set(pattern)) != 1:
        raise Declined("a memset of more than one byte", Scope.STORING)
    return FillNode(int(found.dst), found.width * item, pattern[0])


def _read_parameters(driver: Any, found: Any, function: int, name: str) -> tuple[bytes, ...]:
    if found.extra or not found.kernelParams:
        raise Declined(f"parameters of {shorten(name)} in one piece", Scope.STORING)
    sizes = driver.parameter_sizes(function)
    addresses = (ctypes.c_void_p * len(sizes)).from_address(found.kernelParams)
    if not all(addresses):
        raise Declined(f"parameters of {shorten(name)} that are not there", Scope.STORING)
    return tuple(ctypes.string_at(address, size) for address, size in zip(addresses, sizes, strict=True))


def _check_clusters(driver: Any, node: int, function: int) -> None:
    # A kernel that may overlap with the one before shows in the order of the graph, which is none then.
    cluster = driver.launch_attribute(node, "CLUSTER_DIMENSION").clusterDim
    if max(cluster.x, cluster.y, cluster.z) > 1 or driver.has_cluster(function):
        raise Declined("a kernel in clusters", Scope.STORING)


def _read_torch_fill(name: str, parameters: tuple[bytes, ...]) -> FillNode:
    """Torch zeroes workspaces by a kernel. Its name says all that it does, so its parameters say the rest."""
    match = _FILL.fullmatch(name)
    if match is None:
        raise Declined(f"a kernel that nvFuser did not compile: {shorten(name)}", Scope.STORING)
    item = _FILL_ITEMS[match[1]]
    if [len(parameter) for parameter in parameters] != [4, item, WORD]:
        raise Declined(f"a kernel with other parameters than expected: {shorten(name)}", Scope.STORING)
    count, pattern, address = parameters
    if len(set(pattern)) != 1:
        raise Declined("a fill of more than one byte", Scope.STORING)
    return FillNode(int.from_bytes(address, "little"), int.from_bytes(count, "little") * item, pattern[0])


def shorten(name: str) -> str:
    """Returns as much of a name as fits into a line."""
    return name if len(name) <= 100 else f"{name[:97]}..."
