"""The interface between fusioncache and compilers: ``Backend``, the values that it exchanges, the list of backends.

Importing this module or a backend's module imports neither torch nor a compiler, because the command line describes
stored artifacts without starting one. The start of each compiler is timed separately and charged to no region.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, ClassVar, cast

from fusioncache.ir import Arithmetic, Declined, GeneralInstance, GeneralRegion, Graph, Scope, TensorType, Value
from fusioncache.ir.template import ArgumentLayouts, Option
from fusioncache.observe.record.observations import ThunderCost
from fusioncache.process import forks
from fusioncache.process.warning import log_errors

Run = Callable[[Sequence[Any]], Sequence[Any]]
"""A compiled function. It takes the arguments as one sequence and returns the outputs."""

Progress = Callable[[int], None]
"""Is called with the number of graphs that are left to compile."""

GeneralFunction = Callable[[Sequence[Any], Sequence[Value]], Run]
"""Code that a backend compiled for any sizes. Takes arguments and the values of a region's variables, and returns the
function for arguments of these sizes. Compiles nothing, and raises ``Declined`` for sizes that the code excludes."""


@dataclass(frozen=True, slots=True)
class Compiled[F]:
    """A compiled function, with the artifacts from which another process loads it.

    Attributes:
        run: the function, ready to call: a ``Run``, or a ``GeneralFunction``.
        artifacts: files from which another process loads the same function; None if there are none.
        reason: why there are no artifacts: a short phrase; None if the backend persists nothing at all.
        is_permanent: whether that reason is permanent. Then the store records it, and no process tries again.
        exact_run: a faster function with the same results, for arguments of exactly the layouts of the compilation;
            None if there is none.
        alone_seconds: seconds to compile it alone, without making artifacts: an estimate if it was compiled together
            with others. None if the whole call took just that.
    """

    run: F
    artifacts: Mapping[str, bytes] | None
    reason: str | None
    is_permanent: bool = True
    exact_run: Run | None = None
    alone_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class GraphSource:
    """An artifact that is text.

    Attributes:
        name: of the artifact.
        language: ``python``, ``cpp`` or ``cuda``.
        text: its content.
    """

    name: str
    language: str
    text: str


@dataclass(frozen=True, slots=True)
class Description:
    """A description of artifacts for human readers.

    Attributes:
        sources: the artifacts that are text.
        launches: for each kernel launch, in order: the function, its cubin, and the size of the launch.
        lacks_source: whether there are kernels without their source.
    """

    sources: tuple[GraphSource, ...] = ()
    launches: tuple[Mapping[str, Any], ...] = ()
    lacks_source: bool = False


class Backend(ABC):
    """A compiler of graphs without parameters, for arguments of one layout.

    Raises:
        ValueError: if the backend does not work here. The message says what to do.

    Attributes:
        name: its name in options, keys and the store.
        title: its name for users.
        source_hint: a sentence on how to see the source of kernels where it was not stored. ``{name}`` in it is
            replaced by the template's name.
        compiles: whether there is a compiler; False if it only calls torch's operations.
        generalizes: whether it compiles regions for any sizes, where it can.
        derives_sizes: whether its code for any sizes is not called, but only serves to make code for each size in
            milliseconds, by ``persist_size``.
        lays_out_as_torch: whether results must have the strides of torch's operations. If not, results keep the strides
            that the compiler chose, because Thunder leaves them to it.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    source_hint: ClassVar[str] = ""
    compiles: ClassVar[bool] = True
    generalizes: ClassVar[bool] = False
    derives_sizes: ClassVar[bool] = False
    lays_out_as_torch: ClassVar[bool] = True

    @classmethod
    def problem(cls, device: str) -> str | None:
        """Returns why the backend does not work here for regions on this type of device; None if it does."""
        return None

    def options(self) -> Mapping[str, Option]:
        """Returns the options that make the same backend in another process."""
        return {}

    @abstractmethod
    def environment(self) -> Mapping[str, str]:
        """Returns the ingredients of a key that come from the backend: versions, options, architecture, settings.

        They are read at each call, because settings of torch may change from one compilation to the next.

        Raises:
            Declined: with ``Scope.REGION``, if no code that is compiled now may be shared. The reason names what cannot
                be compared.
        """

    def artifact_environment(self) -> Mapping[str, str] | None:
        """Returns the ingredients that artifacts depend on besides ``environment``; None if none are made here."""
        return None

    def find_obstacle(self, graph: Graph) -> str | None:
        """Returns why ``persist`` makes no artifacts for this graph with any arguments; None if it might."""
        return None if self.artifact_environment() is not None else f"backend {self.name} persists nothing"

    def find_least_size(self) -> int:
        """Returns the least size for which code for any sizes has the bits of code for one size.

        By default 2, the least size that varies.
        """
        return 2

    @classmethod
    def prepare(cls) -> None:
        """Imports all that compiling needs. Opens no device, so that a process forked afterwards can use one."""
        import torch  # noqa: F401

    @classmethod  # noqa: B027  # most have none to open
    def open_device(cls, number: int | None) -> None:
        """Makes the device ready to compile for: the GPU of this number, or the current one.

        Raises:
            Exception: if nothing can be compiled for it here. The message says why.
        """

    def start(self, device: str) -> None:  # noqa: B027  # most have nothing to do
        """Does the work that compiling for this type of device needs once per process. Compiles no region.

        It does not change what is compiled. It is called right before the first compile, and timed separately.

        Args:
            device: its type, such as ``cpu``.

        Raises:
            Exception: if nothing can be compiled here. The compile that follows reports why.
        """

    def estimate_cost(self, seconds: float, operations: int, *, loaded: bool) -> ThunderCost:
        """Returns the seconds that plain Thunder spends on the regions of one executable.

        Args:
            seconds: how long compiling the executable took, here or in the process that compiled it.
            operations: the number of operations of each region.
            loaded: whether it was loaded. Then the compiler's cache on disk may contain its code as well.
        """
        return ThunderCost(seconds, seconds)

    @abstractmethod
    def layout(self, layouts: ArgumentLayouts) -> Hashable:
        """Returns the part of the arguments' layouts that compiled code depends on. Equal parts share one function."""

    @abstractmethod
    def arithmetic(self, device: str) -> Arithmetic:
        """Returns how kernels of this compiler round and contract on this type of device."""

    @abstractmethod
    def compile(self, graph: Graph, args: Sequence[Any]) -> Run:
        """Compiles a function for arguments of this layout. Runs it once, so that later calls compile nothing."""

    @classmethod
    def find_rejection(cls, error: Exception) -> str | None:
        """Returns the compiler's message in one line, if this error means that it rejects the graph.

        Returns:
            None for an error that may have another cause, such as the state of the machine.
        """
        return None

    def persist(self, graph: Graph, args: Sequence[Any]) -> Compiled[Run]:
        """Compiles the same function as ``compile``, bit for bit. Adds artifacts, or the reason why there are none."""
        return Compiled(self.compile(graph, args), None, f"backend {self.name} persists nothing")

    @contextmanager
    def compiled_together(self, graphs: Sequence[tuple[Graph, Sequence[Any]]], progress: Progress) -> Iterator[None]:
        """Compiles several graphs at once, if that is faster. In the body, ``persist`` uses the results.

        Args:
            graphs: each with its arguments.
            progress: is called with the number of graphs that are left.
        """
        yield

    def load(self, artifacts: Mapping[str, bytes], graph: Graph, args: Sequence[Any]) -> Run:
        """Returns the function of these artifacts. Compiles nothing.

        Raises:
            Exception: if the artifacts are invalid, or not for these arguments.
        """
        raise ValueError(f"backend {self.name} persists nothing")

    def general_layout(self, layouts: ArgumentLayouts) -> Hashable:
        """Returns the part of the arguments' layouts that a compilation for any sizes depends on."""
        return self.layout(layouts)

    def persist_size(self, as_general: GeneralInstance, region: Graph, args: Sequence[Any]) -> Compiled[Run]:
        """Makes code for one size from code for any sizes, which is compiled first if this process does not have it.

        Args:
            as_general: the region, as an instance of a general one.
            region: the same region, with inputs and outputs in the order of its template.
            args: of the region, which does not write into them.

        Returns:
            A function that has artifacts.

        Raises:
            Declined: with ``Scope.GENERAL`` if that is impossible, with ``Scope.STORING_NOW`` if it is impossible at
                the moment. The reason is a short phrase.
        """
        raise Declined(f"backend {self.name} makes no code for one size of code for any", Scope.GENERAL)

    def persist_general(
        self, general: GeneralRegion, args: Sequence[Any], values: Sequence[Value]
    ) -> Compiled[GeneralFunction]:
        """Compiles a region for any sizes, with the arguments and the variables' values of one of its instances.

        Adds its artifacts, or the reason why there are none.

        Raises:
            Declined: with ``Scope.GENERAL``, if that is impossible. The reason is a short phrase.
        """
        raise Declined(f"backend {self.name} compiles each size", Scope.GENERAL)

    def load_general(
        self, artifacts: Mapping[str, bytes], general: GeneralRegion, args: Sequence[Any]
    ) -> GeneralFunction:
        """Returns the function of these artifacts. Compiles nothing.

        Raises:
            Exception: if the artifacts are invalid, or not for these arguments.
        """
        raise ValueError(f"backend {self.name} persists nothing for any sizes")

    @classmethod
    def describe(cls, artifacts: Mapping[str, bytes]) -> Description:
        """Describes artifacts as far as they can be read: some may be missing."""
        return Description()

    @classmethod
    def definition(cls, graph: Graph, args: Sequence[Any] | None = None) -> str | None:
        """Returns the compiler's input for a graph, if it is a text.

        Args:
            graph: without parameters.
            args: the arguments for whose layout it is written; contiguous tensors if None.

        Raises:
            ValueError: if it cannot be written here. The message says what to do.

        Returns:
            The text; None if the compiler's input is not a text.
        """
        return None


def compile_when_called(compile_: Callable[[Sequence[Any]], Run]) -> Run:
    """Returns a function that is compiled for the arguments of its first call. Other threads wait for that compile."""
    made: list[Run] = []
    lock = forks.lock()

    def run(args: Sequence[Any]) -> Sequence[Any]:
        with lock:
            if not made:
                made.append(compile_(args))
        return made[0](args)

    return run


BACKENDS: Mapping[str, str] = {
    "nvfuser": "fusioncache.backends.nvfuser.backend:NvFuser",
    "inductor": "fusioncache.backends.inductor.backend:Inductor",
    "eager": "fusioncache.backends.eager:Eager",
}
"""The module and class of each backend. The best is first, and the last works everywhere."""


def backend_class(name: str) -> type[Backend]:
    """Returns the class of the backend with this name. Imports neither torch nor a compiler.

    Raises:
        ValueError: if the name is unknown; the message lists the known ones.
    """
    if name not in BACKENDS:
        raise ValueError(f"unknown backend {name!r}: use 'auto' or one of {', '.join(map(repr, BACKENDS))}")
    module, _, class_ = BACKENDS[name].partition(":")
    return cast(type[Backend], getattr(import_module(module), class_))


def make_backend(name: str, **options: Any) -> Backend:
    """Returns a new backend with this name.

    Raises:
        ValueError: if the name is unknown, or the backend does not work here; the message says what to do.
        TypeError: if the backend has no such options.
    """
    return backend_class(name)(**options)


def problem(name: str, device: str) -> str | None:
    """Returns why a backend does not work here for regions on this type of device, and what to do; None if it does."""
    return backend_class(name).problem(device)


def best_backend(device: str) -> str:
    """Returns the name of the best backend that works here for regions on this type of device."""
    return next(name for name in BACKENDS if problem(name, device) is None)


def describe(name: str, artifacts: Mapping[str, bytes]) -> Description:
    """Describes artifacts of a backend. The description is empty if this version does not know the backend."""
    return backend_class(name).describe(artifacts) if name in BACKENDS else Description()


OnStart = Callable[[str, float], None]
"""Is called with the title of a compiler that was started, and the seconds that this took."""


class CompilerStarts:
    """Starts each compiler once for each type of device."""

    def __init__(self) -> None:
        self._started: set[tuple[type[Backend], str]] = set()
        self._lock = forks.lock()

    def start(self, backend: Backend, graph: Graph, on_start: OnStart) -> float:
        """Starts the compiler before it compiles its first graph for this type of device. Never raises.

        Args:
            backend: the compiler.
            graph: the graph that is compiled next.
            on_start: is called if the compiler was started.

        Returns:
            The seconds that this call took. Waiting for another thread's start counts as start time.
        """
        kind = type(backend), device_of(graph)
        if kind in self._started:
            return 0.0
        begun = time.perf_counter()
        with self._lock:
            if kind not in self._started:
                with log_errors("starting %s failed", backend.title):  # the compile that follows reports the cause
                    backend.start(kind[1])
                self._started.add(kind)
                on_start(backend.title, time.perf_counter() - begun)
        return time.perf_counter() - begun


def device_of(graph: Graph) -> str:
    """Returns the type of device that a graph is compiled for: ``cuda`` if any of its tensors is there."""
    return "cuda" if "cuda" in device_types_of(graph) else "cpu"


def device_types_of(graph: Graph) -> frozenset[str]:
    """Returns the types of device that a graph's values lie on."""
    return frozenset(type_.device for type_ in graph.types if isinstance(type_, TensorType))


@cache
def process_starts() -> CompilerStarts:
    """Returns the ``CompilerStarts`` of this process. Compilers that the parent of a fork started count as started."""
    return CompilerStarts()


def ignore_start(title: str, seconds: float) -> None:
    """Does nothing: an ``OnStart`` for starts that are not counted."""
