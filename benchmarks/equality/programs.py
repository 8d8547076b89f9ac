"""Checks that a second process trains every model with the stored programs of the first, with the bits of Thunder.

A model is trained for three steps in three fresh processes: by Thunder without fusioncache; with fusioncache and empty
cache directories; and again with fusioncache's directory, which was moved to another path. Each has another
``PYTHONHASHSEED``. In the last process Thunder's interpreter must not be called, and nothing may be compiled. Output,
loss and all gradients of each step, and the final parameters, must have the same bits.
"""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import CodeType, MappingProxyType
from typing import Any

import torch

from benchmarks import zoo
from benchmarks.common import processes
from benchmarks.common.counting import use_backend
from benchmarks.common.runner import Columns, Point, pick
from benchmarks.common.tensors import digest
from benchmarks.common.thunder_jit import executors, make_transform
from fusioncache import FusionCache

THUNDER, FIRST, SECOND = "thunder", "first", "second"
"""The processes: Thunder without fusioncache, one that stores the programs that it makes, one that loads them."""

HASH_SEEDS: Mapping[str, str] = MappingProxyType({THUNDER: "0", FIRST: "1", SECOND: "2"})
"""``PYTHONHASHSEED`` of each process, so that sets of strings have another order in each."""

STEPS = 3
_EXPLANATION = "fusioncache: the program of "
_KEPT = "fusioncache_dir"
"""The name of fusioncache's directory among the cache directories of a process."""
_COUNTS = ("traces", "programs_made", "programs_loaded", "regions", "templates", "compiles", "loads")
_REASONS = ("programs_refused", "unkept", "bypasses", "explained")
_TOOL = 4
"""An identifier that neither debuggers, nor profilers, nor coverage use in ``sys.monitoring``."""


@dataclass(slots=True)
class Interpretation:
    """Counts of Thunder's interpreter.

    Attributes:
        traces: how often Thunder started to trace.
    """

    traces: int = 0


@contextmanager
def watch_interpreter(*, allowed: bool) -> Iterator[Interpretation]:
    """Yields the counts of Thunder's traces within its body.

    Args:
        allowed: whether Thunder may interpret code; otherwise it raises an ``AssertionError`` when it starts to.
    """
    from thunder.core import interpreter, jit_ext

    # Wrappers of Thunder's functions, such as fusioncache's, have other code objects.
    jit, run = _own_code(jit_ext.thunder_general_jit), _own_code(interpreter.interpret)
    found = Interpretation()

    def note(code: CodeType, _: int) -> None:
        if code is jit:
            found.traces += 1
        elif not allowed:
            raise AssertionError("Thunder's interpreter was called")

    monitoring = sys.monitoring
    event = monitoring.events.PY_START
    monitoring.use_tool_id(_TOOL, "fusioncache's benchmarks")
    monitoring.register_callback(_TOOL, event, note)
    for code in (jit, run):
        monitoring.set_local_events(_TOOL, code, event)
    try:
        yield found
    finally:
        for code in (jit, run):
            monitoring.set_local_events(_TOOL, code, monitoring.events.NO_EVENTS)
        monitoring.register_callback(_TOOL, event, None)
        monitoring.free_tool_id(_TOOL)


def _own_code(function: object) -> CodeType:
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType):
        raise TypeError(f"{function} has no code of its own")
    return code


def measure(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns digests, counts, and the printed explanations of programs that were traced again.

    Args:
        options: the fields that identify the point, and ``process``: ``THUNDER``, ``FIRST`` or ``SECOND``.
    """
    backend, process = options["backend"], options["process"]
    torch.use_deterministic_algorithms(True, warn_only=True)
    workload = zoo.make(*(options[name] for name in ("model", "layers", "device", "dtype")))
    transforms = []
    if process == THUNDER:
        use_backend(backend)
    else:
        transforms.append(make_transform(backend, explain=True, jobs=0))
    compiled = workload.compile(executors(backend), transforms)
    found: dict[str, Any] = {"layers": workload.layers, "way": workload.way}
    printed = io.StringIO()
    with watch_interpreter(allowed=process != SECOND) as interpretation, redirect_stderr(printed):
        try:
            found |= train(workload, compiled)
        except Exception as error:  # the reasons for refused programs, added below, say more
            found["error"] = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    sys.stderr.write(printed.getvalue())
    found["traces"] = interpretation.traces
    found["explained"] = [line for line in printed.getvalue().splitlines() if line.startswith(_EXPLANATION)]
    for transform in transforms:
        found |= count(transform)
    return found


def train(workload: zoo.Workload, compiled: Callable[..., torch.Tensor]) -> dict[str, Any]:
    """Trains a model for ``STEPS`` steps.

    Returns:
        ``digests`` of the computed tensors, by name, and ``seconds`` of the first step.

    Raises:
        ValueError: if a computed tensor is not finite.
    """
    model = workload.model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    digests: dict[str, str] = {}
    seconds = []
    torch.manual_seed(0)
    for step in range(1, STEPS + 1):
        start = time.perf_counter()
        output = compiled(*workload.inputs)
        loss = workload.loss(output)
        loss.backward()
        found = {"output": output, "loss": loss}
        found |= {f"gradient of {name}": p.grad for name, p in model.named_parameters() if p.grad is not None}
        digests |= {f"{name}, step {step}": digest(tensor) for name, tensor in found.items()}
        seconds.append(time.perf_counter() - start)
        if not all(tensor.isfinite().all() for tensor in found.values()):
            raise ValueError(f"step {step} computes what is not finite")
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    digests |= {f"{name} in the end": digest(tensor) for name, tensor in model.state_dict().items()}
    return {"digests": digests, "seconds": round(seconds[0], 3)}


def count(transform: FusionCache) -> dict[str, Any]:
    """Returns the counts of a transform."""
    stats = transform.stats()
    names = ("programs_loaded", "programs_made", "compiles", "loads", "regions", "templates")
    counts = {name: getattr(stats, name) for name in names}
    reasons = {name: dict(getattr(stats, name)) for name in ("programs_refused", "unkept", "bypasses")}
    parts = {name: round(seconds, 3) for name, seconds in stats.program_seconds.items()}
    return {**counts, **reasons, "program_seconds": parts}


def compare(identity: Point) -> Point:
    """Returns the comparison of a model's three processes, which it runs."""
    with TemporaryDirectory(prefix="fusioncache-programs-") as directory:
        thunder, before, after = (Path(directory, process) for process in (THUNDER, FIRST, SECOND))
        results = {THUNDER: _call(identity, THUNDER, thunder), FIRST: _call(identity, FIRST, before)}
        after.mkdir()
        (before / _KEPT).rename(after / _KEPT)
        results[SECOND] = _call(identity, SECOND, after)
    return make_point(identity, results)


def _call(identity: Point, process: str, caches: Path) -> Point:
    caches.mkdir(exist_ok=True)
    variables = {"PYTHONHASHSEED": HASH_SEEDS[process], "FUSIONCACHE_STORE": "1", "FUSIONCACHE_PROGRAMS": "1"}
    argument = {**identity, "process": process}
    return dict(processes.call(f"{__name__}:measure", argument, caches=caches, environment=variables))


def make_point(identity: Point, results: Mapping[str, Point]) -> Point:
    """Returns the comparison of a model's processes, with ``error`` if there is a problem.

    Args:
        identity: the fields that identify the point.
        results: the result of each process, by name.
    """
    expected = results[THUNDER].get("digests", {})
    differing = {process: find_differing(expected, results[process].get("digests", {})) for process in (FIRST, SECOND)}
    point: Point = identity | {
        "layers": results[THUNDER]["layers"],
        "way": results[THUNDER]["way"],
        "tensors": len(expected),
        "differing": differing,
        "seconds": {process: each.get("seconds") for process, each in results.items()},
        "program_seconds": {process: results[process]["program_seconds"] for process in (FIRST, SECOND)},
    }
    for process in (FIRST, SECOND):
        point[process] = {name: results[process][name] for name in (*_COUNTS, *_REASONS) if results[process].get(name)}
    problem = find_problem(identity, results, differing)
    return point | ({"error": problem} if problem else {})


def find_differing(expected: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
    """Returns the names of tensors whose bits differ, or that only one of two processes has."""
    return [name for name in dict.fromkeys([*expected, *found]) if expected.get(name) != found.get(name)]


def find_problem(identity: Point, results: Mapping[str, Point], differing: Mapping[str, Sequence[str]]) -> str | None:
    """Returns the first problem with a model, or None."""
    first, second = results[FIRST], results[SECOND]
    reasons = [*first["programs_refused"], *second["programs_refused"], *second["explained"]]
    if second["traces"] or "error" in second or second["programs_loaded"] != first["traces"]:
        why = "; ".join(reasons) or second.get("error", "nothing says why")
        return f"{second['programs_loaded']} of {first['traces']} programs are loaded: {why}"
    for process in (THUNDER, FIRST):
        if "error" in results[process]:
            return f"{process}: {results[process]['error']}"
    if second["compiles"] and identity["backend"] != "eager":  # which stores nothing
        return f"the second process compiles {second['compiles']}"
    for process, names in differing.items():
        if names:
            total = len(results[THUNDER]["digests"])
            return f"{process}: {len(names)} of {total} tensors differ, the first is {names[0]}"
    return None


def _pick_count(name: str) -> Callable[[Point], str]:
    return lambda point: str(point[SECOND].get(name, 0))


COLUMNS: Columns = {
    "made": pick(FIRST, "programs_made"),
    **{name: _pick_count(name) for name in ("programs_loaded", "traces", "compiles", "loads")},
    "tensors": pick("tensors"),
    **{f"s, {name}": pick("seconds", name) for name in (THUNDER, FIRST, SECOND)},
}
