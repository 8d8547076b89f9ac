"""The CUDA driver: what is needed of it to look into a captured graph, and to load and launch a cubin."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint64, c_void_p
from functools import cache
from typing import Any

from fusioncache.backends.nvfuser.structures import AttributeValue, KernelNode, MemsetNode

INVALID_VALUE, NO_CONTEXT = 1, 201
SHARED_LIMIT = 8
"""The attribute of a function that limits its dynamic shared memory."""
CODE = {"threads": 0, "shared": 1, "constant": 2, "local": 3, "registers": 4, "ptx": 5, "binary": 6}
"""Attributes of a function that tell how it was compiled."""
_CLUSTER_SET = (10, 11, 12, 13)
_MEMORY_TYPE = 2
_RELAXED = 2


class DriverError(RuntimeError):
    """A call of the CUDA driver that failed."""

    def __init__(self, call: str, code: int, meaning: str):
        super().__init__(f"{call}: {meaning}")
        self.code = code


@cache
def driver() -> Driver:
    """The driver of this machine.

    Raises:
        OSError: if there is none.
    """
    return Driver(ctypes.CDLL("libcuda.so.1"))


class Driver:
    """Calls of the CUDA driver. Handles are plain numbers.

    Args:
        library: the driver's shared library.

    Attributes:
        library: the same.
    """

    def __init__(self, library: Any):
        self.library = library
        library.cuMemsetD8Async.argtypes = (c_uint64, ctypes.c_ubyte, c_size_t, c_void_p)

    def call(self, name: str, *args: Any) -> None:
        """Calls a function of the driver.

        Raises:
            DriverError: if it fails.
        """
        self.check(name, getattr(self.library, name)(*args))

    def check(self, name: str, code: int) -> None:
        """Raises a ``DriverError`` if this is the result of a call that failed."""
        if code:
            text = c_char_p()
            self.library.cuGetErrorName(c_int(code), byref(text))
            meaning = (text.value or b"unknown error").decode()
            self.library.cuGetErrorString(c_int(code), byref(text))
            raise DriverError(name, code, f"{meaning} ({code}), {(text.value or b'').decode()}")

    def version(self) -> int:
        """The newest CUDA version that the driver supports, such as 13000."""
        number = c_int()
        self.call("cuDriverGetVersion", byref(number))
        return number.value

    def bind(self, device: int) -> None:
        """Makes the device's primary context, which torch uses, the current one of this thread."""
        handle, context = c_int(), c_void_p()
        self.call("cuDeviceGet", byref(handle), c_int(device))
        self.call("cuDevicePrimaryCtxRetain", byref(context), handle)
        self.call("cuCtxSetCurrent", context)

    def load(self, image: bytes) -> int:
        """Loads a cubin into the current context. It stays there for good."""
        module = c_void_p()
        with self._allowed_while_capturing():
            self.call("cuModuleLoadData", byref(module), c_char_p(image))
        return int(module.value or 0)

    @contextmanager
    def _allowed_while_capturing(self) -> Iterator[None]:
        mode = c_int(_RELAXED)
        self.call("cuThreadExchangeStreamCaptureMode", byref(mode))
        try:
            yield
        finally:
            self.call("cuThreadExchangeStreamCaptureMode", byref(mode))

    def function(self, module: int, name: str) -> int:
        """The function of this name."""
        function = c_void_p()
        self.call("cuModuleGetFunction", byref(function), c_void_p(module), c_char_p(name.encode()))
        return int(function.value or 0)

    def name(self, function: int) -> str:
        """The name of a function, as the compiler wrote it."""
        text = c_char_p()
        self.call("cuFuncGetName", byref(text), c_void_p(function))
        return (text.value or b"").decode()

    def parameters(self, function: int) -> tuple[tuple[int, int], ...]:
        """Offset and size of each parameter of a function, in bytes."""
        found: list[tuple[int, int]] = []
        offset, size = c_size_t(), c_size_t()
        while True:
            code = self.library.cuFuncGetParamInfo(c_void_p(function), c_size_t(len(found)), byref(offset), byref(size))
            if code == INVALID_VALUE:
                return tuple(found)
            self.check("cuFuncGetParamInfo", code)
            found.append((offset.value, size.value))

    def attribute(self, function: int, which: int) -> int:
        """An attribute of a function."""
        value = c_int()
        self.call("cuFuncGetAttribute", byref(value), c_int(which), c_void_p(function))
        return value.value

    def code(self, function: int) -> dict[str, int]:
        """What tells how a function was compiled."""
        return {name: self.attribute(function, which) for name, which in CODE.items()}

    def has_cluster(self, function: int) -> bool:
        """Whether a function wants its blocks in clusters."""
        return any(self.attribute(function, which) for which in _CLUSTER_SET)

    def allow_shared(self, function: int, size: int) -> None:
        """Sets the limit of a function's dynamic shared memory, if it is lower."""
        if self.attribute(function, SHARED_LIMIT) < size:
            self.call("cuFuncSetAttribute", c_void_p(function), c_int(SHARED_LIMIT), c_int(size))

    def is_pointer(self, value: int) -> bool:
        """Whether CUDA knows this for an address of memory of its own."""
        kind = c_int()
        return not self.library.cuPointerGetAttribute(byref(kind), c_int(_MEMORY_TYPE), c_uint64(value))

    def nodes(self, graph: int) -> list[int]:
        """The nodes of a graph, in no order."""
        count = c_size_t()
        self.call("cuGraphGetNodes", c_void_p(graph), None, byref(count))
        nodes = (c_void_p * count.value)()
        if count.value:
            self.call("cuGraphGetNodes", c_void_p(graph), nodes, byref(count))
        return [int(node or 0) for node in nodes]

    def dependencies(self, node: int) -> list[int]:
        """What a node waits for. How it waits is left out: to wait for the whole of a kernel is always enough."""
        # Not the first version: it fails where a kernel may begin before the last one has ended, as nvFuser's may.
        name, count = "cuGraphNodeGetDependencies_v2", c_size_t()
        self.call(name, c_void_p(node), None, None, byref(count))
        nodes, edges = (c_void_p * count.value)(), (c_uint64 * count.value)()
        if count.value:
            self.call(name, c_void_p(node), nodes, edges, byref(count))
        return [int(node or 0) for node in nodes]

    def node_type(self, node: int) -> int:
        """The type of a node: 0 for a kernel, 2 for a memset."""
        kind = c_int(-1)
        self.call("cuGraphNodeGetType", c_void_p(node), byref(kind))
        return kind.value

    def kernel_node(self, node: int) -> tuple[KernelNode, int]:
        """What a kernel node launches, and its function."""
        found = KernelNode()
        self.call("cuGraphKernelNodeGetParams_v2", c_void_p(node), byref(found))
        function = c_void_p(found.function)
        if not function.value:
            self.call("cuKernelGetFunction", byref(function), c_void_p(found.kernel))
        return found, int(function.value or 0)

    def launch_attribute(self, node: int, which: int) -> AttributeValue:
        """An attribute of a kernel node's launch."""
        value = AttributeValue()
        self.call("cuGraphKernelNodeGetAttribute", c_void_p(node), c_int(which), byref(value))
        return value

    def memset_node(self, node: int) -> MemsetNode:
        """What a memset node writes."""
        found = MemsetNode()
        self.call("cuGraphMemsetNodeGetParams", c_void_p(node), byref(found))
        return found
