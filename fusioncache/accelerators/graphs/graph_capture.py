"""Turns one of Thunder's cache entries into one whose forward and backward are captured in CUDA graphs.

All captured programs of a transform share one pool of memory for each device. Operations that would silently be wrong
in a replay are found in the text of the programs: a capture records what happens on the device, and nothing of what
happens on the host. What the device refuses while it captures is counted then.
"""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import FunctionType, MappingProxyType, ModuleType
from typing import Any

from fusioncache.accelerators.graphs.captured_backward import BackwardFunction
from fusioncache.accelerators.graphs.captured_forward import ForwardFunction
from fusioncache.accelerators.graphs.cuda import find_recorder
from fusioncache.accelerators.graphs.graphed_programs import BackwardProgram, ForwardProgram
from fusioncache.accelerators.graphs.memory import GraphMemory
from fusioncache.accelerators.graphs.recorder import Failures, GraphRecorder
from fusioncache.accelerators.programs.build import LoadedTrace
from fusioncache.accelerators.programs.functions import list_names
from fusioncache.accelerators.programs.options import TRANSFORM
from fusioncache.backends.bound_symbols import may_write
from fusioncache.ir import Graph
from fusioncache.ir.ops import writes_of
from fusioncache.observe.record.ledger import Ledger
from fusioncache.process.settings import GRAPHS
from fusioncache.thunder_adapter.installation import install_more
from fusioncache.transform.passes import Accelerator


@dataclass(frozen=True, slots=True)
class Program:
    """Forward and backward as Thunder compiled them.

    Attributes:
        forward: its computation.
        backward: None if it has none.
        refused: why forward, and why backward, is not captured; None for what can be.
    """

    forward: ForwardFunction
    backward: BackwardFunction | None
    refused: tuple[str | None, str | None] = (None, None)


class CudaGraphs(Accelerator):
    """Captures the programs of one transform, all in one pool of memory for each device.

    Args:
        ledger: counts.
        find_recorder: returns what captures on a device, or raises ``Declined``.

    Attributes:
        find_recorder: the same. It is asked once for each device.
    """

    name = "graphs"

    def __init__(self, ledger: Ledger, find_recorder: Callable[[Any], GraphRecorder]):
        install_more("stored programs")
        self._failures = Failures(ledger)
        self.find_recorder = find_recorder
        self._memories: dict[Any, GraphMemory] = {}

    def count_refusal(self, reason: str) -> None:
        """Counts a program that is left as it is."""
        self._failures.refuse(reason)

    def capture(self, program: Program) -> tuple[Callable[..., Any], Callable[..., Any] | None]:
        """Returns forward and backward, which are captured when they are called again."""
        why_forward, why_backward = program.refused
        if why_forward is not None:
            self._failures.refuse(why_forward)
            return program.forward.call, program.backward
        forward = ForwardProgram(program.forward, self._failures, self.memory_of)
        backward = program.backward
        if backward is not None:
            backward = BackwardProgram(backward, self._failures, self.memory_of, why_backward)
        return forward, backward

    def memory_of(self, device: Any) -> GraphMemory:
        """Returns the memory of a device.

        Raises:
            Declined: if nothing can be captured there.
        """
        found = self._memories.get(device)
        if found is None:
            found = self._memories[device] = GraphMemory(self.find_recorder(device))
        return found


logger = logging.getLogger("fusioncache")

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
"""What is not captured, and the names by which programs call it."""
_REVIEWED = frozenset({"torch", "thunder", "fusioncache", "builtins", "math", "operator", "nvfuser_direct", "triton"})
"""Packages whose functions do nothing on the host that a replay would have to do."""


def make_graphs(option: bool | None, ledger: Ledger, *, verifies: bool) -> CudaGraphs | None:
    """Returns what captures the programs of a transform; None if that is not asked for.

    Args:
        option: of ``FusionCache``; None asks the environment.
        ledger: counts.
        verifies: whether results are compared on the host while programs run.

    Raises:
        TypeError: if the option is none of True, False and None.
        ValueError: if the environment says something else than 0 or 1.
    """
    if option is not None and not isinstance(option, bool):
        raise TypeError(f"graphs must be True, False or None, got {option!r}")
    if not (GRAPHS.get_text() == "1" if option is None else option):
        return None
    if verifies:
        ledger.count("not_captured", of="verify mode")
        return None
    return CudaGraphs(ledger, find_recorder)


def capture_entry(entry: Any, compile_data: Any) -> Any:
    """Returns an entry whose programs are captured, if a transform of ours asks for it; else the same. Never raises."""
    transforms = getattr(compile_data, "transforms", None) or ()
    ours = next((each for each in transforms if getattr(each, "graphs", None) is not None), None)
    if ours is None:
        return entry
    graphs: CudaGraphs = ours.graphs
    try:
        refused = _explain_refusal(compile_data, transforms)
        if refused is not None:
            graphs.count_refusal(refused)
            return entry
        templates = {call.target.function: call.template.graph for call in ours.calls()}
        forward, backward = graphs.capture(_read_program(entry, templates))
        return entry._replace(computation_fn=forward, backward_fn=backward)
    except Exception as error:  # whatever it is, the entry runs as Thunder made it
        logger.info("nothing is captured", exc_info=error)
        graphs.count_refusal(f"failed: {type(error).__name__}")
        return entry


def is_idle(entry: Any) -> bool:
    """True if nothing of an entry is captured at this moment: what is runs in memory that it owns."""
    forward = entry.computation_fn
    return not isinstance(forward, ForwardProgram) or not forward.is_captured


def _explain_refusal(compile_data: Any, transforms: Collection[Any]) -> str | None:
    from fusioncache.thunder_adapter.api import CACHE_OPTIONS

    classes = {f"{base.__module__}.{base.__qualname__}" for each in transforms for base in type(each).__mro__}
    if TRANSFORM in classes:
        return "Thunder's CUDAGraphTransform captures it"
    if compile_data.cache_option is not CACHE_OPTIONS.CONSTANT_VALUES:
        return "a function whose sizes are not fixed"
    return None


def _read_program(entry: Any, templates: Mapping[Callable[..., Any], Graph]) -> Program:
    forward, backward = entry.computation_fn, entry.backward_fn
    writes = _writes(forward, entry.computation_traces, templates)
    why_backward = None
    if backward is not None:
        why_backward = _find_obstacle(backward)
        if why_backward is None and _writes(backward, entry.backward_traces, templates):
            why_backward = "a backward pass that writes into its inputs"
    function = ForwardFunction(forward, backward is not None, writes)
    return Program(function, backward, (_find_obstacle(forward), why_backward))


def _find_obstacle(function: Any) -> str | None:
    inner = _code_of(function)
    names = list_names(inner.__code__)
    known = next((why for why, pattern in _OBSTACLES.items() if any(map(pattern.search, names))), None)
    return known or _find_foreign(inner, names)


def _find_foreign(inner: FunctionType, names: Collection[str]) -> str | None:
    """Returns why a program is not captured that calls what may do something on the host each time."""
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
    # Of a loaded program all is in its text: whatever is no template is a function that has a name.
    last = traces[-1] if isinstance(traces, list) and traces else None
    return last is not None and not isinstance(last, LoadedTrace) and any(map(may_write, last.bound_symbols))
