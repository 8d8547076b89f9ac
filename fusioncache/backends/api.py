"""The contract between fusioncache and a compiler: what each backend does, what passes between the two, and its name.

Importing this module, or the module of a backend, imports neither torch nor a compiler: the command line describes what
a backend persisted without starting it. The start of each compiler is timed by itself, so that no region is charged for
it.
"""

from __future__ import annotations

import logging
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
from fusioncache.observe.record.observations import Alone
from fusioncache.process import forks

Run = Callable[[Sequence[Any]], Sequence[Any]]
"""A compiled function. It takes the arguments as one sequence and returns the outputs."""

Progress = Callable[[int], None]
"""Is told how many are left to compile."""

GeneralFunction = Callable[[Sequence[Any], Sequence[Value]], Run]
"""What a backend compiled for any sizes. Takes arguments and the values of a region's variables, and returns the
function for arguments of these sizes. Compiles nothing: what was not compiled for them raises ``Declined``."""

Sum = Callable[[Any, Sequence[Any]], Any]
"""Takes head and terms of a residual chain. Returns their sum, or None where folds are to add them this time."""

FOLDS = ("auto", "nvfuser", "triton")
"""The values of the option ``fold``."""


@dataclass(frozen=True, slots=True)
class Compiled[F]:
    """A compiled function, with what another process needs to load it.

    Attributes:
        run: the function, ready: a ``Run``, or a ``GeneralFunction``.
        artifacts: what makes the same function in another process; None if there are none.
        reason: why there are no artifacts: a short phrase; None if the backend persists nothing at all.
        lasting: whether that reason is permanent. Then the store notes it, and no process tries again.
        exact: does the same as ``run`` in less time, for arguments of the very layouts that it was compiled with; None
            if nothing does.
        alone_seconds: what compiling it alone takes, without its artifacts: an estimate if it was compiled together
            with others. None if all that it took here was that.
    """

    run: F
    artifacts: Mapping[str, bytes] | None
    reason: str | None
    lasting: bool = True
    exact: Run | None = None
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
    """What artifacts are, for people.

    Attributes:
        sources: the artifacts that are text.
        launches: of each kernel that is launched, in order: its function, its cubin, and the size of its launch.
        lacks_source: whether there are kernels without their source.
    """

    sources: tuple[GraphSource, ...] = ()
    launches: tuple[Mapping[str, Any], ...] = ()
    lacks_source: bool = False


class Backend(ABC):
    """A compiler of graphs without parameters, for arguments of one layout.

    Args:
        fold: what sums residual chains that are not inlined: ``"nvfuser"`` by folds, ``"triton"`` in one launch where
            that can be done, ``"auto"`` in one launch where it is faster. A backend that only folds ignores it.

    Raises:
        ValueError: if ``fold`` is none of these, or the backend does not work here. The message says what to do.

    Attributes:
        name: in options, keys and the store.
        title: for people.
        source_hint: a sentence that tells how to see the source of kernels where it was not persisted. ``{name}`` in
            it is the template's name.
        compiles: whether there is a compiler, and not only torch's operations.
        generalizes: whether it compiles regions for any sizes, where it can.
        derives_sizes: whether what it compiles for any sizes serves to make code for each size in milliseconds, by
            ``persist_size``, and is not called itself.
        lays_out_as_torch: whether results are to have the strides of torch's own operations; else those that the
            compiler gives them stay, because Thunder leaves them to it.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    source_hint: ClassVar[str] = ""
    compiles: ClassVar[bool] = True
    generalizes: ClassVar[bool] = False
    derives_sizes: ClassVar[bool] = False
    lays_out_as_torch: ClassVar[bool] = True

    def __init__(self, *, fold: str = "auto"):
        check_fold(fold)
        self.fold = fold

    @classmethod
    def problem(cls, device: str) -> str | None:
        """Tells why the backend does not work here for regions on this type of device; None if it does."""
        return None

    def options(self) -> Mapping[str, Option]:
        """Returns the options that make the same backend in another process."""
        return {}

    @abstractmethod
    def environment(self) -> Mapping[str, str]:
        """Returns the ingredients of a key that come from the backend: versions, options, architecture, settings.

        They are those of this moment: settings of torch may change from one compilation to the next.

        Raises:
            Declined: of ``Scope.REGION``, if nothing that is compiled now may be shared. The reason says what cannot be
                compared.
        """

    def artifact_environment(self) -> Mapping[str, str] | None:
        """Returns what artifacts depend on besides ``environment``, by ingredient; None if there are never any."""
        return None

    def why_unkept(self, graph: Graph) -> str | None:
        """Tells why ``persist`` would give no artifacts for this graph, whatever the arguments; None if it might."""
        return None if self.artifact_environment() is not None else f"backend {self.name} persists nothing"

    @classmethod
    def prepare(cls) -> None:
        """Imports all that compiling needs, and opens no device: a process that is forked afterwards can use one."""
        import torch  # noqa: F401

    @classmethod  # noqa: B027  # most have none to open
    def open_device(cls, number: int | None) -> None:
        """Makes the device ready to compile for: a GPU of this number, or the one that is in use.

        Raises:
            Exception: if nothing can be compiled for it here. The message says why.
        """

    def start(self, device: str) -> None:  # noqa: B027  # most have nothing to do
        """Does what compiling for this type of device costs once in a process, and compiles no region.

        It changes nothing of what is compiled. It is called right before the first compile, and timed by itself.

        Args:
            device: its type, such as ``cpu``.

        Raises:
            Exception: if nothing can be compiled here. The compile that follows says why.
        """

    def alone(self, seconds: float, operations: int, *, loaded: bool) -> Alone:
        """Returns what Thunder alone spends on the regions of an executable that took these seconds to compile.

        Args:
            seconds: that compiling it took, here or where it was compiled.
            operations: of the regions.
            loaded: whether it was loaded. Then a cache of the compiler's own on disk may have its code as well.
        """
        return Alone(seconds, seconds)

    @abstractmethod
    def layout(self, layouts: ArgumentLayouts) -> Hashable:
        """Returns the part of the arguments' layouts that compiled code depends on. Equal parts share one function."""

    @abstractmethod
    def arithmetic(self, device: str) -> Arithmetic:
        """Returns how kernels of this compiler round and contract on this type of device."""

    @abstractmethod
    def compile(self, graph: Graph, args: Sequence[Any]) -> Run:
        """Compiles a function for arguments of this layout, and runs it once, so that nothing is left to compile."""

    @classmethod
    def find_rejection(cls, error: Exception) -> str | None:
        """Returns what the compiler says of a graph that it rejects, in a line, if this error is that.

        Returns:
            None for an error that may have another cause, such as the state of the machine.
        """
        return None

    def persist(self, graph: Graph, args: Sequence[Any]) -> Compiled[Run]:
        """Compiles the same function as ``compile``, bit for bit, and gives artifacts, or why there are none."""
        return Compiled(self.compile(graph, args), None, f"backend {self.name} persists nothing")

    @contextmanager
    def compiled_together(self, graphs: Sequence[tuple[Graph, Sequence[Any]]], progress: Progress) -> Iterator[None]:
        """Compiles several graphs at once, if that is faster. In the body ``persist`` takes what was compiled.

        Args:
            graphs: each with arguments.
            progress: is told how many are left.
        """
        yield

    def load(self, artifacts: Mapping[str, bytes], graph: Graph, args: Sequence[Any]) -> Run:
        """Makes the function of these artifacts. Nothing is compiled.

        Raises:
            Exception: whatever is wrong with the artifacts, or with these arguments for them.
        """
        raise ValueError(f"backend {self.name} persists nothing")

    def general_layout(self, layouts: ArgumentLayouts) -> Hashable:
        """Returns what a compilation for any sizes depends on, of the layouts of the arguments."""
        return self.layout(layouts)

    def persist_size(self, made: GeneralInstance, region: Graph, args: Sequence[Any]) -> Compiled[Run]:
        """Makes code for one size of code for any sizes. That is compiled first if this process does not have it.

        Args:
            made: the region, as an instance of a general one.
            region: itself, with inputs and outputs in the order of its template.
            args: of the region. Nothing writes into them.

        Returns:
            A function that has artifacts.

        Raises:
            Declined: of ``Scope.GENERAL``, if that cannot be done, or of ``Scope.STORING_NOW``, if it cannot be done at
                the moment. The reason is a short phrase.
        """
        raise Declined(f"backend {self.name} makes no code for one size of code for any", Scope.GENERAL)

    def compile_general(self, general: GeneralRegion, args: Sequence[Any], values: Sequence[Value]) -> GeneralFunction:
        """Compiles a region for any sizes, with arguments of one of its instances, and the values of its variables.

        Raises:
            Declined: of ``Scope.GENERAL``, if that cannot be done. The reason is a short phrase.
        """
        raise Declined(f"backend {self.name} compiles each size", Scope.GENERAL)

    def persist_general(
        self, general: GeneralRegion, args: Sequence[Any], values: Sequence[Value]
    ) -> Compiled[GeneralFunction]:
        """Compiles what ``compile_general`` compiles, and gives artifacts, or why there are none.

        Raises:
            Declined: of ``Scope.GENERAL``, if that cannot be done. The reason is a short phrase.
        """
        return Compiled(self.compile_general(general, args, values), None, None)

    def load_general(
        self, artifacts: Mapping[str, bytes], general: GeneralRegion, args: Sequence[Any]
    ) -> GeneralFunction:
        """Makes the function of these artifacts. Nothing is compiled.

        Raises:
            Exception: whatever is wrong with the artifacts, or with these arguments for them.
        """
        raise ValueError(f"backend {self.name} persists nothing for any sizes")

    def sum_chain(self, dtype: str, head: Any, terms: Sequence[Any], compiled: Callable[[float], None]) -> Sum | None:
        """Makes a function that sums residual chains in the backend's own way, bitwise the same as folds.

        Args:
            dtype: of the sum, by its full name.
            head: what terms are added to.
            terms: of a chain. The function is for tensors of this layout and dtype; nothing is left to compile.
            compiled: is told the seconds, if something had to be compiled.

        Returns:
            The function; None if folds are to add such chains.
        """
        return None

    @classmethod
    def describe(cls, artifacts: Mapping[str, bytes]) -> Description:
        """Describes what was persisted, as far as it can be read: some artifacts may be missing."""
        return Description()

    @classmethod
    def definition(cls, graph: Graph, args: Sequence[Any] | None = None) -> str | None:
        """Writes what the compiler is given for a graph, where that is a text.

        Args:
            graph: without parameters.
            args: whose layout it is for; contiguous tensors if None.

        Raises:
            ValueError: if it cannot be written here. The message says what to do.

        Returns:
            The text; None if the compiler is not given a text.
        """
        return None


def compile_when_called(compile_: Callable[[Sequence[Any]], Run]) -> Run:
    """Returns a function that is compiled for the arguments of its first call, for which other threads wait."""
    made: list[Run] = []
    lock = forks.lock()

    def run(args: Sequence[Any]) -> Sequence[Any]:
        with lock:
            if not made:
                made.append(compile_(args))
        return made[0](args)

    return run


def check_fold(fold: str) -> None:
    """Checks the option ``fold``.

    Raises:
        ValueError: if it is none of ``FOLDS``.
    """
    if fold not in FOLDS:
        raise ValueError(f"fold must be one of {', '.join(map(repr, FOLDS))}, got {fold!r}")


BACKENDS: Mapping[str, str] = {
    "nvfuser": "fusioncache.backends.nvfuser.backend:NvFuser",
    "inductor": "fusioncache.backends.inductor.backend:Inductor",
    "eager": "fusioncache.backends.eager:Eager",
}
"""Where the class of each backend is. The best is first, and the last works everywhere."""


def backend_class(name: str) -> type[Backend]:
    """Returns the class of the backend with this name. That imports neither torch nor a compiler.

    Raises:
        ValueError: if there is none; the message says which there are.
    """
    if name not in BACKENDS:
        raise ValueError(f"unknown backend {name!r}: use 'auto' or one of {', '.join(map(repr, BACKENDS))}")
    module, _, class_ = BACKENDS[name].partition(":")
    return cast(type[Backend], getattr(import_module(module), class_))


def make_backend(name: str, **options: Any) -> Backend:
    """Makes the backend with this name.

    Raises:
        ValueError: if there is none, or if it does not work here; the message says what to do.
        TypeError: if it takes no such options.
    """
    return backend_class(name)(**options)


def problem(name: str, device: str) -> str | None:
    """Tells why a backend does not work here for regions on this type of device, and what to do; None if it does."""
    return backend_class(name).problem(device)


def best_backend(device: str) -> str:
    """Returns the name of the best backend that works here for regions on this type of device."""
    return next(name for name in BACKENDS if problem(name, device) is None)


def describe(name: str, artifacts: Mapping[str, bytes]) -> Description:
    """Describes what a backend persisted. Of a backend that is not known here nothing is known."""
    return backend_class(name).describe(artifacts) if name in BACKENDS else Description()


logger = logging.getLogger("fusioncache")

OnStart = Callable[[str, float], None]
"""Is told the title of a compiler that was started, and the seconds that it took."""


class CompilerStarts:
    """Starts each compiler once for each type of device.

    Args:
        clock: returns seconds of a clock that only goes forward.
    """

    def __init__(self, clock: Callable[[], float] = lambda: time.perf_counter()):
        self._clock = clock
        self._started: set[tuple[type[Backend], str]] = set()
        self._lock = forks.lock()

    def start(self, backend: Backend, graph: Graph, on_start: OnStart) -> float:
        """Starts the compiler if it is to compile its first graph for this type of device. Never raises.

        Args:
            backend: the compiler.
            graph: that is compiled next.
            on_start: is told of a start.

        Returns:
            The seconds that this call took. Waiting for another thread's start counts as start time.
        """
        kind = type(backend), device_of(graph)
        if kind in self._started:
            return 0.0
        begun = self._clock()
        with self._lock:
            if kind not in self._started:
                try:
                    backend.start(kind[1])
                except Exception as error:  # the compile that follows says what is wrong
                    logger.info("starting %s failed", backend.title, exc_info=error)
                self._started.add(kind)
                on_start(backend.title, self._clock() - begun)
        return self._clock() - begun


def device_of(graph: Graph) -> str:
    """Returns the type of device that a graph is compiled for: ``cuda`` if any of its tensors is there."""
    return "cuda" if "cuda" in device_types_of(graph) else "cpu"


def device_types_of(graph: Graph) -> frozenset[str]:
    """Returns the types of device that a graph's values lie on."""
    types = (*graph.inputs, *(type_ for op in graph.ops for type_ in op.outputs))
    return frozenset(type_.device for type_ in types if isinstance(type_, TensorType))


@cache
def process_starts() -> CompilerStarts:
    """Returns the starts of this process. In a forked child the compilers of the parent count as started."""
    return CompilerStarts()


def ignore_start(title: str, seconds: float) -> None:
    """Counts a start nowhere."""
