"""The CUDA driver functions that inspect a captured graph, and load and launch a cubin.

The calls go through ``cuda.bindings``, which comes with torch. It is imported when ``driver`` is first called.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

NO_CONTEXT = 201
"""The result code of a call in a thread that has no context yet."""

_COMPILED_AS = (
    "MAX_THREADS_PER_BLOCK",
    "SHARED_SIZE_BYTES",
    "CONST_SIZE_BYTES",
    "LOCAL_SIZE_BYTES",
    "NUM_REGS",
    "PTX_VERSION",
    "BINARY_VERSION",
)
"""Attributes of a function that describe how it was compiled."""
_CLUSTER = ("CLUSTER_SIZE_MUST_BE_SET", *(f"REQUIRED_CLUSTER_{side}" for side in ("WIDTH", "HEIGHT", "DEPTH")))
_SHARED_LIMIT = "MAX_DYNAMIC_SHARED_SIZE_BYTES"


class DriverError(RuntimeError):
    """A call of the CUDA driver failed."""


@cache
def driver() -> Driver:
    """Returns the driver of this machine.

    Raises:
        ImportError: if there is no ``cuda.bindings``.
    """
    import cuda.bindings.driver

    return Driver(cuda.bindings.driver)


class Driver:
    """Calls the CUDA driver through ``bindings``, the module ``cuda.bindings.driver``. Handles are plain numbers."""

    def __init__(self, bindings: Any):
        self.bindings = bindings
        self._modules: dict[tuple[int, bytes], int] = {}

    def call(self, name: str, *args: Any) -> Any:
        """Calls a function of the driver. Returns its result: None, one value, or a list of several.

        Raises:
            DriverError: if it fails.
        """
        try:
            code, *values = getattr(self.bindings, name)(*args)
        except (KeyError, ValueError) as error:  # a result code that is newer than the bindings
            raise DriverError(f"{name}: an unknown result, {error}") from error
        self.check(name, code)
        return values if len(values) > 1 else values[0] if values else None

    def check(self, name: str, code: int) -> None:
        """Raises an error if the result code of a call is not 0.

        Raises:
            DriverError: if the call failed.
        """
        if code:
            raise DriverError(f"{name}: {self.describe_result(code)}")

    def describe_result(self, code: int) -> str:
        """Returns the driver's description of the result code of a failed call."""
        try:
            result = self.bindings.CUresult(code)
        except ValueError:
            return f"unknown error ({code})"
        _, text = self.bindings.cuGetErrorString(result)
        return f"{result.name} ({int(code)}), {(text or b'').decode()}"

    def version(self) -> int:
        """Returns the newest CUDA version that the driver supports, such as 13000."""
        return int(self.call("cuDriverGetVersion"))

    def bind(self, device: int) -> None:
        """Makes the device's primary context, which torch uses, the current one of this thread."""
        self.call("cuCtxSetCurrent", self.call("cuDevicePrimaryCtxRetain", self.call("cuDeviceGet", device)))

    def load(self, image: bytes, device: int) -> int:
        """Loads a cubin on the current device, which has this number. Returns its module, which is never unloaded.

        A cubin that is already loaded there is not loaded again: many sizes share one.
        """
        identity = device, hashlib.sha256(image).digest()
        if identity not in self._modules:
            with self.allow_while_capturing():
                self._modules[identity] = int(self.call("cuModuleLoadData", image))
        return self._modules[identity]

    @contextmanager
    def allow_while_capturing(self) -> Iterator[None]:
        """Lets this thread load modules and allocate memory while a CUDA graph is captured."""
        relaxed = self.bindings.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        before = self.call("cuThreadExchangeStreamCaptureMode", relaxed)
        try:
            yield
        finally:
            self.call("cuThreadExchangeStreamCaptureMode", before)

    def function(self, module: int, name: str) -> int:
        """Returns the function of this name."""
        return int(self.call("cuModuleGetFunction", module, name.encode()))

    def function_name(self, function: int) -> str:
        """Returns the name of a function, as the compiler mangled it."""
        return (self.call("cuFuncGetName", function) or b"").decode()

    def parameter_sizes(self, function: int) -> list[int]:
        """Returns the bytes of each parameter of a function."""
        end = self.bindings.CUresult.CUDA_ERROR_INVALID_VALUE
        sizes: list[int] = []
        while True:
            code, _, size = self.bindings.cuFuncGetParamInfo(function, len(sizes))
            if code == end:
                return sizes
            self.check("cuFuncGetParamInfo", code)
            sizes.append(size)

    def describe_code(self, function: int) -> dict[str, int]:
        """Returns the attributes that describe how a function was compiled."""
        return {name: self._attribute(function, name) for name in _COMPILED_AS}

    def has_cluster(self, function: int) -> bool:
        """Returns whether a function requires clusters of blocks."""
        return any(self._attribute(function, name) for name in _CLUSTER)

    def shared_limit(self, function: int) -> int:
        """Returns how many bytes of dynamic shared memory a function may use."""
        return self._attribute(function, _SHARED_LIMIT)

    def raise_shared_limit(self, function: int, size: int) -> None:
        """Raises the limit of a function's dynamic shared memory to ``size``, if it is lower."""
        if self.shared_limit(function) < size:
            self.call("cuFuncSetAttribute", function, self._attribute_id(_SHARED_LIMIT), size)

    def _attribute(self, function: int, name: str) -> int:
        return int(self.call("cuFuncGetAttribute", self._attribute_id(name), function))

    def _attribute_id(self, name: str) -> Any:
        return getattr(self.bindings.CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{name}")

    def is_pointer(self, value: int) -> bool:
        """Returns whether CUDA recognizes a number as an address of its memory."""
        memory_type = self.bindings.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
        return not self.bindings.cuPointerGetAttribute(memory_type, value)[0]

    def nodes(self, graph: int) -> list[int]:
        """Returns the nodes of a graph, in no particular order."""
        count = self.call("cuGraphGetNodes", graph)[-1]
        return [int(node) for node in self.call("cuGraphGetNodes", graph, count)[0]]

    def dependencies(self, node: int) -> list[int]:
        """Returns the nodes that a node waits for, without edge types: to wait for a whole kernel is always enough."""
        # CUDA 12's first version of the call fails if a kernel may begin before the previous one has ended, as
        # nvFuser's may. CUDA 13 contains only the second version, under the name of the first.
        name = "cuGraphNodeGetDependencies"
        name = f"{name}_v2" if hasattr(self.bindings, f"{name}_v2") else name
        count = self.call(name, node)[-1]
        return [int(before) for before in self.call(name, node, count)[0]]

    def node_type(self, node: int) -> str:
        """Returns the type of a node, such as ``KERNEL`` or ``MEMSET``."""
        return str(self.call("cuGraphNodeGetType", node).name).removeprefix("CU_GRAPH_NODE_TYPE_")

    def kernel_node(self, node: int) -> tuple[Any, int]:
        """Returns the ``CUDA_KERNEL_NODE_PARAMS`` of a kernel node, and its function."""
        found = self.call("cuGraphKernelNodeGetParams", node)
        return found, int(found.func) or int(self.call("cuKernelGetFunction", int(found.kern)))

    def launch_attribute(self, node: int, name: str) -> Any:
        """Returns the ``CUlaunchAttributeValue`` of an attribute of a kernel node's launch, such as ``COOPERATIVE``."""
        return self.call("cuGraphKernelNodeGetAttribute", node, self.launch_attribute_id(name))

    def launch_attribute_id(self, name: str) -> Any:
        """Returns the number of an attribute of a launch."""
        return getattr(self.bindings.CUlaunchAttributeID, f"CU_LAUNCH_ATTRIBUTE_{name}")

    def memset_node(self, node: int) -> Any:
        """Returns the ``CUDA_MEMSET_NODE_PARAMS`` of a memset node."""
        return self.call("cuGraphMemsetNodeGetParams", node)
