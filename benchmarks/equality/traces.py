"""Checks that every model has the same traces with each set of shortcuts as with Thunder alone.

In a process of its own, a model is traced by Thunder alone, then with each set of groups of shortcuts: all, each alone,
all but each. The text of all traces is compared: prologue, forward, backward and epilogue, from the first to the final
ones. Nothing is compiled or run. The first tracing includes the one-time costs of the process, so the seconds of
``none, again`` are the better baseline.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from itertools import zip_longest
from typing import Any
from unittest import mock

import thunder
import torch

from benchmarks.common.runner import Columns, pick
from benchmarks.zoo import Workload, make
from fusioncache.accelerators.programs.describe import Describer
from fusioncache.accelerators.programs.recorder import Recorder
from fusioncache.ir.errors import Declined, Scope

KINDS = ("again", "all", "only", "without")
"""Which sets of groups are installed: none a second time, all, each alone, all but each."""


_LISTS = {
    "prologue": "last_prologue_traces",
    "forward": "last_traces",
    "backward": "last_backward_traces",
    "epilogue": "last_epilogue_traces",
}
_TIMES = re.compile(r"took \d+ (?:milli|micro)?seconds")


@dataclass(frozen=True, slots=True)
class Difference:
    """The first line in which two texts differ.

    Attributes:
        trace: the name of the trace.
        line: its number, from 1; 0 if only one of the two has this trace.
        own: the line from Thunder alone.
        found: the line with shortcuts.
    """

    trace: str
    line: int
    own: str
    found: str

    def __str__(self) -> str:
        return f"{self.trace}, line {self.line}: {self.found!r} in place of {self.own!r}"


def read_texts(compiled: Any) -> dict[str, str]:
    """Returns the text of every trace of a compiled function's last call, from the first to the final ones, by name.

    The duration of a pass, which some traces contain, is removed.
    """
    stats = thunder.compile_stats(compiled)
    return {
        f"{name} {number}": _TIMES.sub("took some time", str(trace))
        for name, attribute in _LISTS.items()
        for number, trace in enumerate(getattr(stats, attribute, None) or (), 1)
    }


def find_difference(own: Mapping[str, str], found: Mapping[str, str]) -> Difference | None:
    """Returns the first difference between the traces of two calls, in the order of the traces, or None."""
    for name in dict.fromkeys([*own, *found]):
        if name not in own or name not in found:
            return Difference(name, 0, *("there" if name in texts else "missing" for texts in (own, found)))
        if own[name] != found[name]:
            pairs = zip_longest(own[name].split("\n"), found[name].split("\n"), fillvalue="")
            return next(Difference(name, line, *pair) for line, pair in enumerate(pairs, 1) if pair[0] != pair[1])
    return None


def digest(texts: Mapping[str, str]) -> str:
    """Returns the first digits of a digest of all these texts and their names."""
    content = hashlib.sha256("".join(f"{name}\n{text}\n" for name, text in texts.items()).encode())
    return content.hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class TracedModule:
    """A module with its options for ``thunder.jit`` and its inputs."""

    module: torch.nn.Module
    options: Mapping[str, Any]
    inputs: tuple[Any, ...]

    def trace(self) -> dict[str, str]:
        """Traces the module anew with Thunder and makes it executable; returns the text of every trace by name."""
        compiled = thunder.jit(self.module, **self.options)
        thunder.compile_data(compiled).get_computation_and_inputs(*self.inputs)
        return read_texts(compiled)


class RecordingModule(torch.nn.Module):
    """Replaces a module that Thunder compiled: runs the original module, and records the inputs of each call."""

    def __init__(self, module: torch.nn.Module, options: Mapping[str, Any], pieces: list[TracedModule]):
        super().__init__()
        self._run, self._options, self._pieces = [module], options, pieces  # in a list it is not a submodule

    def forward(self, *inputs: Any) -> Any:
        """Runs the module."""
        self._pieces.append(TracedModule(self._run[0], self._options, inputs))
        return self._run[0](*inputs)


def find_traced_modules(workload: Workload, executors: Sequence[Any]) -> list[TracedModule]:
    """Returns the parts of a model that Thunder traces."""
    if workload.way == "jit":
        return [TracedModule(workload.model, {"executors": list(executors)}, workload.inputs)]
    pieces: list[TracedModule] = []
    torch.compiler.reset()  # Dynamo counts compilations of a forward function over all models, and stops at 8
    with mock.patch.object(thunder, "jit", lambda module, **options: RecordingModule(module, options, pieces)):
        workload.compile(executors)(*workload.inputs)
    return pieces


@contextmanager
def recording() -> Iterator[None]:
    """Records the reads of every trace that is made within its body."""
    own = thunder.thunder_general_jit

    def trace(function: Any, args: Any, kwargs: Any, /, **options: Any) -> Any:
        return trace_recorded(own, function, args, kwargs, **options)[0]

    with mock.patch.object(thunder, "thunder_general_jit", trace):
        yield


def trace_recorded(
    trace: Callable[..., Any], function: Any, args: Any, kwargs: Any, /, **options: Any
) -> tuple[Any, Recorder | None]:
    """Returns the result of ``trace``, and its recorder; None if the call cannot be described, so is not recorded."""
    key, describer = describe_call(function, args, kwargs)
    if key is None:
        return trace(function, args, kwargs, **options), None
    with Recorder(describer).observing() as recorder:
        return trace(function, args, kwargs, **options), recorder


def describe_call(
    function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...] | None, Describer]:
    """Returns the key of a call, without its reads, and the describer. The key is None if it cannot be made."""
    describer = Describer()
    state = (
        torch.get_default_dtype(), torch.get_default_device(), torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"),
    )  # fmt: skip
    options = vars(thunder.core.compile_data.get_compile_data())
    try:
        lines = [*describer.walk("model", function), *describer.walk("args", args), *describer.walk("kwargs", kwargs)]
    except Declined as declined:
        declined.require(Scope.VALUE, Scope.AMOUNT)
        return None, describer
    return (*lines, *describer.list_classes(), repr(state), repr(options["cache_option"])), describer


def list_shortcut_sets(kinds: Sequence[str], groups: Sequence[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yields the name and the groups of each set of shortcuts that is compared with Thunder alone.

    Args:
        kinds: some of ``KINDS``.
        groups: the names of all groups.
    """
    if "again" in kinds:
        yield "none, again", ()
    if "all" in kinds:
        yield "all", tuple(groups)
    if "only" in kinds:
        yield from ((f"only {name}", (name,)) for name in groups)
    if "without" in kinds and len(groups) > 1:
        yield from ((f"without {name}", tuple(other for other in groups if other != name)) for name in groups)


def measure(options: Mapping[str, Any]) -> dict[str, Any]:
    """Traces a model without and with shortcuts; returns differences, counts and CPU seconds."""
    from benchmarks.common.counting import use_backend
    from benchmarks.common.thunder_jit import executors
    from fusioncache.thunder_adapter.installation import TRACING

    use_backend(options["backend"])
    workload = make(*(options[name] for name in ("model", "layers", "device", "dtype")))
    pieces = find_traced_modules(workload, executors(options["backend"]))
    seconds: dict[str, float] = {}
    own, seconds["none"] = trace(pieces, ())
    differing = {}
    for name, groups in list_shortcut_sets(options["kinds"], tuple(TRACING)):
        found, seconds[name] = trace(pieces, groups)
        difference = find_difference(own, found)
        if difference:
            differing[name] = asdict(difference)
    return {
        "layers": workload.layers,
        "way": workload.way,
        "pieces": len(pieces),
        "traces": len(own),
        "lines": sum(text.count("\n") for text in own.values()),
        "digest": digest(own),
        "compared": [name for name in seconds if name != "none"],
        "differing": differing,
        "cpu_seconds": {name: round(value, 2) for name, value in seconds.items()},
    }


def trace(pieces: Sequence[TracedModule], groups: Sequence[str]) -> tuple[dict[str, str], float]:
    """Returns the texts of all traces with these groups of shortcuts, and the CPU seconds of tracing.

    With shortcuts the reads are recorded, as for programs that are stored. If tracing fails, the error is the text.
    """
    from fusioncache import tracing

    tracing.uninstall()
    tracing.install(groups)
    try:
        start = time.process_time()
        with recording() if groups else nullcontext():
            texts = {f"piece {n}, {name}": text for n, piece in enumerate(pieces, 1) for name, text in _trace(piece)}
        return texts, time.process_time() - start
    finally:
        tracing.uninstall()


def _trace(piece: TracedModule) -> list[tuple[str, str]]:
    try:
        return list(piece.trace().items())
    except Exception as error:
        return [("error", f"{type(error).__name__}: {error}")]


def find_problem(point: Mapping[str, Any]) -> str | None:
    """Returns the problem that a comparison found, or None."""
    if not point["traces"]:
        return "there are no traces"
    if point["differing"]:
        name, first = next(iter(point["differing"].items()))
        where = f"{first['trace']}, line {first['line']}: {first['found']!r} in place of {first['own']!r}"
        return f"{len(point['differing'])} of {len(point['compared'])} differ, the first is {name}: {where}"
    return None


COLUMNS: Columns = {
    **{name: pick(name) for name in ("pieces", "traces", "lines")},
    "compared": lambda point: str(len(point["compared"])),
    "s, none": pick("cpu_seconds", "none"),
    "s, all": pick("cpu_seconds", "all"),
}
