"""Replaces one of Thunder's cache entries by one whose forward and backward are captured in CUDA graphs.

Both are replayed if a replay has the effect of the call, and else run without a graph. All captured programs of a
transform share the memory pools of each device. Operations that would silently be wrong in a replay are found in the
text of the programs: a capture records the work of the device, but not of the host. Operations that CUDA refuses during
a capture are counted then.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial, update_wrapper
from types import FunctionType, MappingProxyType, ModuleType
from typing import Any

import torch

from fusioncache.accelerators.graphs.calls import CallKind, KindReader, WarmUp, is_saving_hooked
from fusioncache.accelerators.graphs.captures import (
    BackwardFunction,
    CapturedBackward,
    CapturedForward,
    ForwardCaptures,
    ForwardFunction,
)
from fusioncache.accelerators.graphs.cuda import CudaRecorder, find_recorder
from fusioncache.accelerators.graphs.memory import GraphMemory, SavedTensorsLease, find_lease
from fusioncache.accelerators.programs.build import LoadedTrace
from fusioncache.accelerators.programs.functions import list_names
from fusioncache.backends.bound_symbols import may_write
from fusioncache.ir import Graph
from fusioncache.ir.errors import Declined, Scope, is_declined
from fusioncache.ir.ops import writes_of
from fusioncache.observe.record.ledger import Ledger
from fusioncache.process.settings import GRAPHS
from fusioncache.process.warning import logger, warn
from fusioncache.thunder_adapter.api import CACHE_OPTIONS
from fusioncache.thunder_adapter.installation import install_more
from fusioncache.transform.passes import Accelerator

MemoryOf = Callable[[Any], GraphMemory]
"""Returns the memory of a device, or raises ``Declined``."""


def refuse(ledger: Ledger, reason: str) -> None:
    """Counts the reason why a program is not captured, or why a call is not replayed."""
    logger.debug("runs without a CUDA graph: %s", reason)
    ledger.count("not_captured", of=reason)


def explain(error: Exception, what: str) -> str:
    """Returns the reason to count for an error in a capture, and warns if the error was not expected."""
    if is_declined(error, Scope.CAPTURE):
        return error.reason
    logger.info("capturing %s failed", what, exc_info=error)
    warn(f"{what} runs without a CUDA graph, as it cannot be captured: {error}")
    return f"capture failed: {type(error).__name__}"


class _GraphedProgram:
    """Base class of forward and backward programs. The first call makes the reader of their calls."""

    def __init__(self, ledger: Ledger, memory_of: MemoryOf, refused: str | None = None):
        self._ledger = ledger
        self._memory_of = memory_of
        self._refused = refused
        self._reader: KindReader | None = None

    def _begin(self, args: Sequence[Any]) -> KindReader:
        """Returns the reader of calls with such arguments.

        Raises:
            Declined: if no such call can be captured.
        """
        try:
            reader = KindReader(args)
            self._memory_of(reader.device)
        except Declined as refusal:
            refusal.require(Scope.CAPTURE)
            self._refused = refusal.reason
            raise
        self._reader = reader
        return reader

    def _warm_up(self, warm_up: WarmUp, device: Any, tensors: Sequence[Any], call: Callable[[], Any]) -> Any:
        """Runs a call before the first capture. If it shows that there can be no capture, counts the reason."""
        result = warm_up.run(self._memory_of(device).recorder, tensors, call)
        if warm_up.refused is not None:
            refuse(self._ledger, warm_up.refused)
        return result


class ForwardProgram(_GraphedProgram):
    """A forward program that is replayed if that has the same effect, and else runs without a graph.

    Args:
        function: the program.
        ledger: counts captures, replays and the reasons why calls run without a graph.
        memory_of: returns the memory of a device.
    """

    def __init__(self, function: ForwardFunction, ledger: Ledger, memory_of: MemoryOf):
        super().__init__(ledger, memory_of)
        self._function = function
        self._kinds: dict[CallKind, ForwardCaptures] = {}
        update_wrapper(self, function.call)

    def __call__(self, *args: Any) -> Any:
        """Returns the results of the program."""
        if self._refused is not None:
            return self._function.call(*args)
        try:
            reader = self._reader or self._begin(args)
            captures = self._find_captures(reader, args)
            warm_up = captures.warm_up
            if warm_up.refused is None:  # else the reason was counted before
                if warm_up.is_warm:
                    return self._replay(captures, args)
                captures.observe(args)
                tensors = reader.take_tensors(args)
                return self._warm_up(warm_up, reader.device, tensors, lambda: self._function.call(*args))
        except Declined as refusal:
            refusal.require(Scope.CAPTURE)
            refuse(self._ledger, refusal.reason)
        return self._function.call(*args)

    @property
    def is_captured(self) -> bool:
        """True if it has a capture now."""
        return any(captures.count for captures in tuple(self._kinds.values()))

    def _find_captures(self, reader: KindReader, args: Sequence[Any]) -> ForwardCaptures:
        kind = reader.kind_of(args)
        found = self._kinds.get(kind)
        if found is None:
            parameters = [isinstance(each, torch.nn.Parameter) for each in reader.take_tensors(args)]
            memory = self._memory_of(reader.device)
            found = self._kinds[kind] = ForwardCaptures(self._function, reader.positions, parameters, memory)
        return found

    def _replay(self, captures: ForwardCaptures, args: Sequence[Any]) -> Any:
        if self._function.has_backward and is_saving_hooked():
            raise Declined("saved-tensor hooks are active", Scope.CAPTURE)
        captures.memory.begin()
        try:
            captured = captures.find_capture(args)
            if captured is None:
                captured = self._capture(captures, args)
            result = captured.run(args)
        finally:
            captures.memory.end()
        self._ledger.count("graph_replays")
        return result

    def _capture(self, captures: ForwardCaptures, args: Sequence[Any]) -> CapturedForward:
        try:
            with torch.inference_mode(False), torch.no_grad():
                captured = captures.capture(args)
        except Exception as error:
            if is_declined(error, Scope.CAPTURE):
                raise
            captures.warm_up.refused = explain(error, "a forward program")
            raise Declined(captures.warm_up.refused, Scope.CAPTURE) from None
        self._ledger.count("captures")
        return captured


class BackwardProgram(_GraphedProgram):
    """A backward program that is captured for each capture of its forward program, and else runs without a graph.

    Args:
        function: the program.
        ledger: counts captures, replays and the reasons why calls run without a graph.
        memory_of: returns the memory of a device.
        refused: why it is not captured; None if it can be.
    """

    def __init__(self, function: BackwardFunction, ledger: Ledger, memory_of: MemoryOf, refused: str | None):
        super().__init__(ledger, memory_of, refused)
        self._function = function
        self._kinds: dict[CallKind, WarmUp] = {}
        update_wrapper(self, function)
        if refused:
            refuse(ledger, refused)

    def __call__(self, saved_for_backward: list[Any], cotangents: list[Any]) -> Any:
        """Runs or replays it. Empties the lists, as Thunder does."""
        lease = find_lease(saved_for_backward[1])
        if self._refused is not None:
            return self._run(saved_for_backward, cotangents, lease)
        try:
            kind = (self._reader or self._begin(cotangents)).kind_of(cotangents)
            return self._call(kind, saved_for_backward, cotangents, lease)
        except Declined as refusal:
            refusal.require(Scope.CAPTURE)
            refuse(self._ledger, refusal.reason)
        return self._run(saved_for_backward, cotangents, lease)

    def _call(
        self, kind: CallKind, saved_for_backward: list[Any], cotangents: list[Any], lease: SavedTensorsLease | None
    ) -> Any:
        warm_up = self._kinds.get(kind)
        if warm_up is None:
            warm_up = self._kinds[kind] = WarmUp()
        if warm_up.refused is not None or (lease is None and warm_up.is_warm):
            return self._run(saved_for_backward, cotangents, lease)
        if not warm_up.is_warm:
            run = partial(self._run, saved_for_backward, cotangents, lease)
            return self._warm_up(warm_up, cotangents[0].device, [*cotangents], run)
        assert lease is not None
        if lease.is_over:
            raise Declined(
                "the memory of its forward pass was given to another program before the backward pass", Scope.CAPTURE
            )
        if keeps_graph():
            raise Declined("a backward pass with retain_graph=True", Scope.CAPTURE)
        return self._replay(kind, saved_for_backward, cotangents, lease)

    def _replay(
        self, kind: CallKind, saved_for_backward: list[Any], cotangents: list[Any], lease: SavedTensorsLease
    ) -> Any:
        saved, others = saved_for_backward
        memory = lease.captured.memory
        memory.begin()
        try:
            if not lease.captured.matches_lease(saved, lease):
                raise Declined("the tensors saved for backward were replaced", Scope.CAPTURE)
            memory.gradient_leases.settle()
            captured = lease.captured.find_backward(kind)
            if captured is None:
                complete = lease.captured.complete(saved)
                captured = self._capture(kind, lease, others, (complete, cotangents))
            gradients = captured.run(saved, cotangents)
            lease.end()
        finally:
            memory.end()
        self._ledger.count("graph_replays")
        self._ledger.count("gradients_copied", captured.count_copies())
        for emptied in (saved, cotangents, saved_for_backward):
            emptied.clear()
        return gradients

    def _capture(
        self,
        kind: CallKind,
        lease: SavedTensorsLease,
        others: Sequence[Any],
        given: tuple[Sequence[Any], Sequence[Any]],
    ) -> CapturedBackward:
        pool = lease.captured.find_backward_pool(kind)
        try:
            with torch.inference_mode(False), torch.no_grad():
                captured = CapturedBackward(self._function, lease.captured, others, given, kind, pool)
        except Exception as error:
            reason = explain(error, "a backward program")
            self._kinds[kind].refused = reason
            raise Declined(reason, Scope.CAPTURE) from None
        lease.captured.backwards.append(captured)
        lease.captured.release_saved()
        self._ledger.count("captures")
        return captured

    def _run(self, saved_for_backward: list[Any], cotangents: list[Any], lease: SavedTensorsLease | None) -> Any:
        """Runs the program without a graph. Ends the lease, unless autograd keeps the saved tensors."""
        if lease is None:
            return self._function(saved_for_backward, cotangents)
        keeps = keeps_graph()
        saved_for_backward[0][:] = lease.captured.complete(saved_for_backward[0])
        try:
            return self._function(saved_for_backward, cotangents)
        finally:
            lease.captured.memory.wait_for_readers()
            if not keeps:
                lease.end()


def keeps_graph() -> bool:
    """True if autograd keeps the saved tensors for another backward, as with ``retain_graph=True``."""
    try:
        return bool(torch._C._autograd._get_current_graph_task_keep_graph())
    except (AttributeError, RuntimeError):  # another version of torch, or outside of a backward
        return True


class CudaGraphs(Accelerator):
    """Captures the programs of one transform, which share the memory pools of each device.

    Args:
        ledger: stores the counts.
        find_recorder: returns the recorder of a device, or raises ``Declined``.

    Attributes:
        find_recorder: the same. It is called once for each device, and again if it raised.
        ledger: the same.
    """

    name = "graphs"

    def __init__(self, ledger: Ledger, find_recorder: Callable[[Any], CudaRecorder]):
        install_more("stored programs")
        self.ledger = ledger
        self.find_recorder = find_recorder
        self._memories: dict[Any, GraphMemory] = {}

    def capture(
        self,
        forward: ForwardFunction,
        backward: BackwardFunction | None,
        why_forward: str | None = None,
        why_backward: str | None = None,
    ) -> tuple[Callable[..., Any], Callable[..., Any] | None]:
        """Returns forward and backward as programs that are captured when they are called again.

        Args:
            forward: the computation, as Thunder compiled it.
            backward: the backward function, or None.
            why_forward: the reason why forward is not captured; None if it can be.
            why_backward: the same for backward.
        """
        if why_forward is not None:
            refuse(self.ledger, why_forward)
            return forward.call, backward
        captured = ForwardProgram(forward, self.ledger, self.memory_of)
        if backward is not None:
            backward = BackwardProgram(backward, self.ledger, self.memory_of, why_backward)
        return captured, backward

    def memory_of(self, device: Any) -> GraphMemory:
        """Returns the memory of a device.

        Raises:
            Declined: if nothing can be captured there.
        """
        found = self._memories.get(device)
        if found is None:
            # Atomic: all threads use one memory, because each capture keeps the memory that it was made with.
            found = self._memories.setdefault(device, GraphMemory(self.find_recorder(device)))
        return found


_OBSTACLES: Mapping[str, re.Pattern[str]] = MappingProxyType(
    {
        "collectives": re.compile(
            "all_gather|all_reduce|reduce_scatter|all_to_all|broadcast_prim|wait_prim|landed|_together|for_fsdp"
            "|bucket_view|pack_prim"
        ),
        "a value that the host reads": re.compile("^(item|tolist|nonzero|is_nonzero|synchronize)$"),
        "random numbers": re.compile("rng_state"),
        "state of Transformer Engine's": re.compile("^te_"),
    }
)
"""Operations that prevent a capture, each kind with a pattern of the names by which programs call it."""
_REVIEWED = frozenset({"torch", "thunder", "fusioncache", "builtins", "math", "operator", "nvfuser_direct", "triton"})
"""Packages whose functions have no effects on the host that a replay would have to repeat."""


def make_graphs(option: bool | None, ledger: Ledger, *, verifies: bool) -> CudaGraphs | None:
    """Returns the accelerator that captures the programs of a transform; None if it is off.

    Args:
        option: of ``FusionCache``; None reads the environment.
        ledger: stores the counts.
        verifies: whether results are compared on the host while programs run.

    Raises:
        TypeError: if the option is not True, False or None.
        ValueError: if the environment variable is neither 0 nor 1.
    """
    if not GRAPHS.is_on(option):
        return None
    if verifies:
        ledger.count("not_captured", of="verify mode")
        return None
    return CudaGraphs(ledger, find_recorder)


def capture_entry(entry: Any, compile_data: Any) -> Any:
    """Returns an entry with captured programs if a fusioncache transform asks for it; else the same. Never raises."""
    transforms = getattr(compile_data, "transforms", None) or ()
    ours = next((each for each in transforms if getattr(each, "graphs", None) is not None), None)
    if ours is None:
        return entry
    graphs: CudaGraphs = ours.graphs
    try:
        refused = _explain_refusal(compile_data, transforms)
        if refused is not None:
            refuse(graphs.ledger, refused)
            return entry
        templates = {call.target.function: call.template.graph for call in ours.calls()}
        forward, backward = _capture_programs(graphs, entry, templates)
        return entry._replace(computation_fn=forward, backward_fn=backward)
    except Exception as error:  # after any error, the entry runs as Thunder made it
        logger.info("nothing is captured", exc_info=error)
        refuse(graphs.ledger, f"failed: {type(error).__name__}")
        return entry


def is_idle(entry: Any) -> bool:
    """True if an entry has no captures now: a captured program runs in memory that it owns."""
    forward = entry.computation_fn
    return not isinstance(forward, ForwardProgram) or not forward.is_captured


def _explain_refusal(compile_data: Any, transforms: Collection[Any]) -> str | None:
    classes = {f"{base.__module__}.{base.__qualname__}" for each in transforms for base in type(each).__mro__}
    if "thunder.transforms.cudagraph.CUDAGraphTransform" in classes:
        return "Thunder's CUDAGraphTransform captures it"
    if compile_data.cache_option is not CACHE_OPTIONS.CONSTANT_VALUES:
        return "a function whose sizes are not fixed"
    return None


def _capture_programs(
    graphs: CudaGraphs, entry: Any, templates: Mapping[Callable[..., Any], Graph]
) -> tuple[Callable[..., Any], Callable[..., Any] | None]:
    forward, backward = entry.computation_fn, entry.backward_fn
    writes = _writes(forward, entry.computation_traces, templates)
    why_backward = None
    if backward is not None:
        why_backward = _find_obstacle(backward)
        if why_backward is None and _writes(backward, entry.backward_traces, templates):
            why_backward = "a backward pass that writes into its inputs"
    function = ForwardFunction(forward, backward is not None, writes)
    return graphs.capture(function, backward, _find_obstacle(forward), why_backward)


def _find_obstacle(function: Any) -> str | None:
    inner = _code_of(function)
    names = list_names(inner.__code__)
    known = next((why for why, pattern in _OBSTACLES.items() if any(map(pattern.search, names))), None)
    return known or _find_foreign(inner, names)


def _find_foreign(inner: FunctionType, names: Collection[str]) -> str | None:
    """Returns the reason if a program calls an unknown function, which may act on the host each time; else None."""
    for name in sorted(names & inner.__globals__.keys()):
        value = inner.__globals__[name]
        module = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
        home = module or type(value).__module__
        if callable(value) and home.partition(".")[0] not in _REVIEWED:
            return f"an unknown function, {name.rstrip('0123456789_')}"
    return None


def _code_of(function: Any) -> FunctionType:
    found = inspect.unwrap(function)
    if not isinstance(found, FunctionType):
        raise TypeError(f"a program of type {type(found).__qualname__}")
    return found


def _writes(function: Any, traces: Collection[Any], templates: Mapping[Callable[..., Any], Graph]) -> bool:
    """True if a program may write into its arguments."""
    inner = _code_of(function)
    names = list_names(inner.__code__)
    if any(name.endswith("_") and not name.startswith("_") for name in names):
        return True
    called = [inner.__globals__[name] for name in names & inner.__globals__.keys()]
    graphs = [templates[each] for each in called if isinstance(each, FunctionType) and each in templates]
    if any(True for graph in graphs for _ in writes_of(graph)):
        return True
    # The text of a loaded program shows all its calls: a callee without a template is a function that has a name.
    last = traces[-1] if isinstance(traces, list) and traces else None
    return last is not None and not isinstance(last, LoadedTrace) and any(map(may_write, last.bound_symbols))
