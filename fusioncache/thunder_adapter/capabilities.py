"""The capabilities of the installed Thunder: how each is established, and which accelerators need it.

A capability works if the sources of its functions are known. With unknown sources, or in a version that was not tried,
its probe must pass: it looks up names, or runs a few lines in Thunder, and compares the outcome with the expected one.
Without a probe, an unknown source means that the capability is missing.

Regions and templates work with any Thunder that compiles a small function as expected. The first call of each template
is verified, unless the version was tried and its sources are unchanged. An accelerator is on if the capabilities that
it needs work.

``names.txt`` lists the names of Thunder that each accelerator uses; a test compares it with the sources.
"""

from __future__ import annotations

import dis
import importlib
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import CodeType, MappingProxyType
from typing import Any

from fusioncache.thunder_adapter import hooks, installation
from fusioncache.thunder_adapter.installation import find_misfit, list_patches
from fusioncache.thunder_adapter.versions import TRIED, is_tried, read_version

_LOADED_ONLY = frozenset({"thunder.dynamo", "thunder.executors.nvfuserex_impl"})
"""Modules that are checked only if they were imported: an import takes long, or needs another package."""
_KEY = "key"
_GLOBALS, _CALLS = {"_KEY": 3, "_generate": 1}, {"module _Plain": 1, "lookaside tanh": 1, "opaque sum": 1}
"""How often ``exercise`` looks up these globals, and makes these calls."""
_changed = 0
_ENTRY_FIELDS = ("prologue_fn", "computation_fn", "backward_fn", "return_none_instead_of_grads")
_FUNCTIONS = ("exercise", "add", "forget", "plus", "_generate", "__call__")


@cache
def list_names() -> Mapping[str, Mapping[str, tuple[str, ...]]]:
    """Returns the names in ``names.txt`` by accelerator (or ``core``) and module."""
    names: dict[str, dict[str, tuple[str, ...]]] = {}
    for line in Path(__file__).with_name("names.txt").read_text().splitlines():
        if line.startswith("["):
            names[line.strip("[]")] = found = {}
        elif line:
            module, _, rest = line.partition(": ")
            found[module] = tuple(rest.split())
    return MappingProxyType(names)


def find_missing(accelerator: str) -> list[str]:
    """Returns the names that the installed Thunder lacks, as ``module.name``."""
    return [
        name
        for module, names in list_names().get(accelerator, {}).items()
        if module not in _LOADED_ONLY or module in sys.modules
        for name in _find_missing(module, names)
    ]


def _find_missing(module: str, names: tuple[str, ...]) -> Iterator[str]:
    if not _is_module(module):
        yield module
        return
    for name in names:
        if not hasattr(sys.modules[module], name) and not _is_module(f"{module}.{name}"):
            yield f"{module}.{name}"


def _is_module(name: str) -> bool:
    try:
        importlib.import_module(name)
    except ImportError:
        return False
    return True


@cache
def find_missing_name() -> str | None:
    """Returns a reason that lists missing names of the core, which reads regions; None if none is missing."""
    missing = find_missing("core")
    return f"it lacks {', '.join(missing[:3])}" if missing else None


@cache
def find_problem() -> str | None:
    """Returns how this Thunder differs from what reading regions relies on; None if no difference was found.

    It looks up the names that the core uses, and compiles a function of two tensors on the CPU.
    """
    try:
        return find_missing_name() or next(_find_differences(), None)
    except ImportError as error:
        return f"it lacks a name: {error}"
    except Exception as error:  # any error means that this Thunder differs
        return f"a small function fails in it: {type(error).__name__}: {error}"


def _find_differences() -> Iterator[str]:
    import thunder
    import torch

    from fusioncache.thunder_adapter.api import PrimIDs, TraceCtx, TraceTag, Transform

    around = (PrimIDs.UNPACK_TRIVIAL, PrimIDs.DEL, PrimIDs.RETURN)
    traces: list[Any] = []

    class ProbeWatch(Transform):
        def transform_trace_post_optimization(self, trace: Any, **_: Any) -> Any:
            traces.append(trace)
            return trace

    def function(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x * weight) + x

    inputs = [torch.linspace(-1, 1, 6).reshape(2, 3), torch.linspace(1, 2, 6).reshape(2, 3).requires_grad_()]
    # Without fusion executors, results equal torch's bit for bit.
    found = thunder.jit(function, executors=[], transforms=[ProbeWatch()])(*inputs)
    expected = function(*inputs)
    if not torch.equal(found, expected):
        yield "a small function has another result in it"
    gradients = [torch.autograd.grad(result.sum(), inputs[1])[0] for result in (found, expected)]
    if not torch.allclose(*gradients, rtol=1e-6):
        yield "a small function has another gradient in it"
    if not all(isinstance(trace, TraceCtx) for trace in traces):
        yield "its transforms are not given traces"
    tags = [[tag for tag in (TraceTag.AUGMENTED_FORWARD, TraceTag.BACKWARD) if tag in trace.tags] for trace in traces]
    if tags != [[TraceTag.AUGMENTED_FORWARD], [TraceTag.BACKWARD]]:
        yield "its transforms are not given a forward trace and then a backward one"
    names = [call.sym.name for call in traces[0].bound_symbols if call.sym.id not in around]
    if names != ["mul", "tanh", "add"]:
        yield f"its forward trace of a small function has other operations: {', '.join(names)}"


class _Counter(hooks.Observer):
    """Counts the events of the functions in this file."""

    def __init__(self) -> None:
        self.executed, self.globals, self.calls = Counter[str](), Counter[str](), Counter[str]()

    def see_call(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, is_opaque: bool) -> None:
        self.calls[f"{'opaque' if is_opaque else 'lookaside'} {getattr(fn, '__name__', '')}"] += 1

    def replace_call(self, fn: Any) -> Callable[..., Any] | None:
        self.calls[f"module {type(fn).__name__}"] += 1
        return None

    def see_function(self, function: Any) -> None:
        code = getattr(function, "__code__", None)
        if code is not None and code.co_filename == __file__:
            self.executed[function.__name__] += 1

    def see_global(self, namespace: Any, name: str) -> None:
        if namespace is globals():
            self.globals[name] += 1

    def see_instruction(self, name: str, inst: Any, state: dict[str, Any]) -> None:
        if state["co"].co_filename == __file__:
            self.executed[name] += 1


def find_unobserved() -> str | None:
    """Returns the first difference between the events that are observed and that Python executes; None if equal.

    Python executes the same function, and ``sys.monitoring`` counts its calls and instructions. All tracing shortcuts
    are installed meanwhile, so that the comparison covers their results and the events that they skip.
    """
    import thunder
    import torch

    class _Plain(torch.nn.Module):
        def __call__(self, x: Any) -> Any:  # torch's ``__call__`` would take most of the time
            return torch.tanh(x)

    x, module, counter = torch.linspace(-1, 1, 6), _Plain(), _Counter()
    with _counted_by_python() as expected:
        result = exercise(x, module, {"other": 2})
    with _observable(), hooks.observe(counter):
        found = thunder.jit(exercise, executors=[])(x, module, {"other": 2})
    if not torch.equal(found, result):
        return "an interpreted function has another result"
    for name in expected.keys() | counter.executed.keys():
        if expected[name] != counter.executed[name]:
            return f"{name} was observed {counter.executed[name]} times, not {expected[name]} times"
    for counts, known in ((counter.globals, _GLOBALS), (counter.calls, _CALLS)):
        for name, count in known.items():
            if counts[name] != count:
                return f"{name} was observed {counts[name]} times, not {count} times"
    return None


@contextmanager
def _counted_by_python() -> Iterator[Counter[str]]:
    """Yields counts of this file's functions that Python calls in the body, and of the instructions it executes."""
    counts, names = Counter[str](), dict[tuple[int, int], str]()
    monitoring, events = sys.monitoring, sys.monitoring.events
    tool = next(number for number in range(5, -1, -1) if monitoring.get_tool(number) is None)

    def see_start(code: CodeType, offset: int) -> Any:
        if code.co_filename != __file__ or code.co_name not in _FUNCTIONS:
            return monitoring.DISABLE
        counts[code.co_name] += 1
        names.update(((id(code), each.offset), each.opname) for each in dis.get_instructions(code))
        monitoring.set_local_events(tool, code, events.INSTRUCTION)
        return None

    def see_instruction(code: CodeType, offset: int) -> None:
        name = names.get((id(code), offset))
        if name in hooks.INSTRUCTIONS:
            counts[name] += 1

    monitoring.use_tool_id(tool, "fusioncache")
    try:
        monitoring.register_callback(tool, events.PY_START, see_start)
        monitoring.register_callback(tool, events.INSTRUCTION, see_instruction)
        monitoring.set_events(tool, events.PY_START)
        yield counts
    finally:
        monitoring.set_events(tool, 0)
        monitoring.free_tool_id(tool)


@contextmanager
def _observable() -> Iterator[None]:
    """Installs all tracing shortcuts while the body runs, and hooks around functions of any source."""
    before = installation.list_installed()
    installation.install(name for name in installation.TRACING if name != "layers")
    installation.install_more("hooks", partial(installation.find_replacements, "hooks", any_source=True))
    try:
        yield
    finally:
        if not {"hooks", *installation.TRACING}.issubset({*before, "layers"}):
            installation.uninstall()
            installation.install(name for name in before if name in installation.TRACING)


def probe_cache_entries() -> str | None:
    """Returns how a compiled function's search for a cache entry differs from the expected one; None if it does not."""
    import thunder

    asked: list[str] = []
    own = thunder.thunder_general_jit

    class Entries(list[Any]):
        def __reversed__(self) -> Iterator[Any]:
            asked.append("entries")
            return super().__reversed__()

    def watched(*args: Any, **options: Any) -> Any:
        asked.append("interpreter")
        return own(*args, **options)

    compiled = thunder.jit(_double, executors=[])
    statistics = compiled._lc_cs
    if not isinstance(statistics.interpreter_cache, list):
        return "the entries of a compiled function are no list"
    statistics.interpreter_cache = Entries()
    thunder.thunder_general_jit = watched
    try:
        compiled(2)
    finally:
        thunder.thunder_general_jit = own
    if asked != ["entries", "interpreter"] or len(statistics.interpreter_cache) != 1:
        return f"a first call asks for {', '.join(asked)}, and leaves {len(statistics.interpreter_cache)} entries"
    (entry,) = statistics.interpreter_cache
    missing = [name for name in _ENTRY_FIELDS if name not in getattr(entry, "_fields", ())]
    if missing:
        return f"entries have no {', '.join(missing)}"
    return _find_other_lookup(compiled, entry, asked)


def _find_other_lookup(compiled: Any, entry: Any, asked: list[str]) -> str | None:
    """Returns how Thunder's use of a cache entry that it did not make is unexpected; None if it is as expected."""

    def prologue(*args: Any, **kwargs: Any) -> Any:
        asked.append("prologue")
        return entry.prologue_fn(*args, **kwargs)

    statistics = compiled._lc_cs
    statistics.interpreter_cache[0] = entry._replace(prologue_fn=prologue)
    asked.clear()
    compiled(2)
    hits = statistics.cache_hits
    if asked != ["entries", "prologue"] or hits != 1:
        return f"a second call asks for {', '.join(asked)}, with {hits} hits"
    return None


def _double(number: int) -> int:
    return number * 2


def exercise(x: Any, module: Any, box: dict[str, int]) -> Any:
    """Returns a multiple of ``module(x)``, and executes every instruction in ``hooks.INSTRUCTIONS``."""
    global _changed
    count = 0

    def add(number: int) -> int:
        nonlocal count
        count = count + number
        return count

    keys = {_KEY, *box}
    table = {_KEY: 1, **box}
    lengths = {name: 1 for name in box}  # noqa: C420  # the probe needs its instructions
    letters = {letter for letter in lengths}  # noqa: C416
    _changed = 1
    del _changed
    gone = add(1)

    def forget() -> None:
        nonlocal gone
        del gone

    forget()
    try:
        raise KeyError(_KEY)
    except KeyError:
        add(2)

    def plus(**named: int) -> int:
        return named["a"] + named["b"]

    total = plus(**{"a": 1}, **{"b": 2})
    if x is box or len(keys) == 0:
        return letters
    return module(x) * (total + count + sum(_generate([1])) + len(table))


def _generate(values: list[int]) -> Iterator[int]:
    for value in values:
        yield value * 3


ACCELERATORS = ("programs", "sizes", "tracing", "lean steps", "graphs", "schedule", "splitting")
"""The parts that can be switched off separately. All else is the core."""

_NEEDED_BY = {**dict.fromkeys(ACCELERATORS, ()), "tracing": ("programs", "sizes"), "programs": ("sizes",)}
"""For each accelerator, the others that are off without it."""

_WITH = " or ".join(f"lightning-thunder=={each}" for each in TRIED)


@dataclass(frozen=True, slots=True)
class Capability:
    """Something that fusioncache relies on in Thunder.

    Attributes:
        name: the name that users see.
        users: the accelerators that are off without it.
        patches: the name of its rows in the table; empty if it has none, so that the probe always runs.
        probe: returns a difference from the expected behaviour, or None for no difference; None for no probe.
    """

    name: str
    users: tuple[str, ...] = ()
    patches: str = ""
    probe: Callable[[], str | None] | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """The state of a capability in the installed Thunder.

    Attributes:
        misfits: for each row of the table that does not fit, the reason.
        problem: why it does not work; empty if it works.
        seconds: the duration of the probe; 0 if it did not run.
    """

    misfits: tuple[str, ...]
    problem: str
    seconds: float = 0.0

    @property
    def works(self) -> bool:
        """True if the capability works."""
        return not self.problem


def _name_capability(accelerator: str) -> Capability:
    def probe() -> str | None:
        missing = find_missing(accelerator)
        return f"Thunder has no {', '.join(missing[:3])}" if missing else None

    return Capability(f"names of {accelerator}", (accelerator, *_NEEDED_BY[accelerator]), probe=probe)


CAPABILITIES = (
    *map(_name_capability, ACCELERATORS),
    Capability("observed interpreter", ("programs", "sizes", "tracing"), "hooks", find_unobserved),
    Capability("list of entries", ("programs", "graphs"), "stored programs", probe_cache_entries),
    Capability("symbolic sizes", ("sizes",), "sizes"),
    Capability("symbolic passes", ("sizes",), "symbolic passes"),
)
"""The capabilities that accelerators cannot do without."""


def list_capabilities() -> tuple[Capability, ...]:
    """Returns all capabilities: first those that accelerators need, then the optional ones."""
    needed = {row.patches for row in CAPABILITIES}
    return (*CAPABILITIES, *(Capability(name, (), name) for name in list_patches() if name not in needed))


def examine(capability: Capability, *, thorough: bool = False) -> Finding:
    """Returns whether a capability works here.

    Args:
        capability: the capability to examine.
        thorough: whether to run the probe even if the sources are known.
    """
    rows = list_patches()[capability.patches].rows if capability.patches else ()
    misfits = tuple(filter(None, map(find_misfit, rows)))
    problem, seconds = "; ".join(misfits[:3]), 0.0
    if capability.probe and (thorough or misfits or not rows or not is_tried()):
        start = time.perf_counter()
        problem = _run(capability.probe) or ""
        seconds = time.perf_counter() - start
        if misfits and not problem:
            installation.accepted_capabilities.add(capability.patches)
    return Finding(misfits, problem, seconds)


@cache
def find_off() -> Mapping[str, str]:
    """Returns the accelerators that are off in the installed Thunder, each with the reason."""
    off: dict[str, str] = {}
    for capability in CAPABILITIES:
        missing = [user for user in capability.users if user not in off]
        if missing and (problem := examine(capability).problem):
            off.update(dict.fromkeys(missing, problem))
    return MappingProxyType(off)


def _run(probe: Callable[[], str | None]) -> str | None:
    try:
        return probe()
    except Exception as error:  # any error means that this Thunder differs
        return f"a probe fails: {type(error).__name__}: {error}"


def explain_limits() -> str | None:
    """Returns which accelerators are off in this Thunder, why, and advice; None if all are on and it was tried."""
    off = find_off()
    if is_tried() and not off:
        return None
    known = "differs from the one that was tried" if read_version() in TRIED else "was not tried"
    shared = "regions are shared, and the first call of each template is verified"
    causes = defaultdict[str, list[str]](list)
    for accelerator, reason in off.items():
        causes[reason].append(accelerator)
    parts = [f"{', '.join(names)} (off: {reason})" for reason, names in causes.items()]
    without = f"; it does without {'; '.join(parts)}" if parts else ""
    more = "fusioncache doctor shows more"
    return f"Thunder {read_version()} {known}: {shared}{without}. {more}; all works with {_WITH}"


def explain_unusable() -> str | None:
    """Returns why nothing is shared in this Thunder, and advice; None if regions can be shared."""
    problem = find_missing_name() if is_tried() else find_problem()
    if problem is None:
        return None
    known = f"install {_WITH}, with which this was tried"
    return f"Thunder {read_version()} is left as it is and nothing is shared, as {problem}: {known}"
