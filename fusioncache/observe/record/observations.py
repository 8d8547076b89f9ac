"""What a run leaves behind: its counts, where its regions come from, what became of each, its seconds and its name."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from pathlib import PurePath
from types import MappingProxyType
from typing import Annotated

from fusioncache.observe.record.stats import Stats

Side = Annotated[str, re.compile("forward|backward")]
"""Which of the two traces of a program it is."""


@dataclass(frozen=True, slots=True)
class Alone:
    """The seconds that Thunder alone spends on the regions that one executable serves.

    Attributes:
        first: on the first region.
        again: on each further equal region. It is less than ``first`` where the compiler has a cache of its own.
    """

    first: float
    again: float


@dataclass(frozen=True, slots=True)
class Line:
    """A line of source.

    Attributes:
        file: its path, as Python names it.
        number: from 1.
        library: whether the file belongs to Python or to an installed package, and not to the user.
    """

    file: str
    number: int
    library: bool = False

    def __str__(self) -> str:
        return f"{self.file}:{self.number}"


@dataclass(frozen=True, slots=True)
class Source:
    """Where in the user's model a region comes from. What is not known is None or empty.

    Attributes:
        module: dotted path of the innermost module that all of the region belongs to, such as ``transformer.h.3``;
            empty for the model itself.
        layer: the first number in that path.
        lines: distinct lines, the user's before those of libraries, both in the order of the operations. At most
            ``MOST_LINES``.
    """

    module: str | None = None
    layer: int | None = None
    lines: tuple[Line, ...] = ()


MOST_LINES = 32


ANY_SIZES = "any sizes"
"""The plan of regions that a function for any sizes serves."""


@dataclass(frozen=True, slots=True)
class RegionRecord:
    """One region of one trace, and what became of it.

    Attributes:
        model: class of the module, or name of the function, that was compiled; None if not known.
        trace: ``forward`` or ``backward``.
        trace_number: counts what a run compiled, from 0. A forward trace and its backward trace have the same one.
        position: index among the bound symbols of Thunder's trace.
        name: of the fusion in Thunder's trace, such as ``nvFusion3``.
        digest: of its template; None if it was bypassed.
        outcome: ``hit``, ``miss`` or ``bypass``, as ``Stats`` counts it.
        reason: why it was bypassed; of a hit or a miss, why it runs without its template all the same, if it does.
        arities: the number of terms of each of its residual chains.
        plan: how these are summed: ``inline``, ``fold`` or ``one launch``; None if it was bypassed. A region without
            chains is ``inline``. It is ``one launch`` from when it was first called, and ``any sizes`` from when a
            function serves it that was compiled for any, until it gets one for its own.
        source: where in the model it comes from.
        ops: number of operations.
        inputs: number of inputs.
        outputs: number of outputs.
    """

    model: str | None
    trace: Side
    trace_number: int
    position: int
    name: str
    digest: str | None
    outcome: Annotated[str, re.compile("hit|miss|bypass")]
    reason: str | None
    arities: tuple[int, ...]
    plan: str | None
    source: Source
    ops: int
    inputs: int
    outputs: int


@dataclass(frozen=True, slots=True)
class PlanCost:
    """What a plan for a residual stream costs, or would have cost.

    Attributes:
        plan: ``inline``, ``fold``, ``carry`` or ``segmented``.
        moved: bytes read and written for the sake of the stream, beyond what any plan must.
        alive: bytes of sums that are kept alive at once, at most.
        kernels: how many kernels are compiled.
    """

    plan: str
    moved: int
    alive: int
    kernels: int


@dataclass(frozen=True, slots=True)
class ChoiceRecord:
    """What was chosen for a residual stream.

    Attributes:
        model: as that of a region.
        trace: as that of a region.
        trace_number: as that of a region.
        stream: name of the value that it starts from.
        sums: how many partial sums are wanted.
        plan: the one that is used.
        costs: of each plan that could have been, that one included.
    """

    model: str | None
    trace: Side
    trace_number: int
    stream: str
    sums: int
    plan: str
    costs: tuple[PlanCost, ...]


@dataclass(frozen=True, slots=True)
class FlightRecord:
    """A collective on its way, from the step of the trace that starts it to the one that waits for it.

    Attributes:
        kind: ``gather`` or ``reduce``.
        name: what it is, with dtype and shape.
        size: the bytes that it moves.
        start: a step, from 0.
        end: a step.
        beside: how many calls compute between the two.
    """

    kind: Annotated[str, re.compile("gather|reduce")]
    name: str
    size: int
    start: int
    end: int
    beside: int


@dataclass(frozen=True, slots=True)
class PeakRecord:
    """The most bytes that an order has at any time.

    Attributes:
        gathering: of gathers under way.
        reducing: of reduces under way.
        alive: of what travels.
    """

    gathering: int
    reducing: int
    alive: int


@dataclass(frozen=True, slots=True)
class BoundRecord:
    """What a bound costs.

    Attributes:
        name: of it.
        bound: bytes.
        most: bytes in flight that it is about, at most.
        without: the same without this bound.
        delayed: how many collectives would start earlier without it.
    """

    name: str
    bound: int
    most: int
    without: int
    delayed: int


@dataclass(frozen=True, slots=True)
class PlacementRecord:
    """Where the collectives of a trace are.

    Attributes:
        model: as that of a region.
        trace: as that of a region.
        trace_number: as that of a region.
        reason: why they are where Thunder put them; empty if they were moved.
        calls: the name of each step's call.
        alive: the bytes of what travels that are alive during each step.
        flights: the collectives, in the order in which they start.
        before: peaks of the order that Thunder made.
        after: peaks of this one.
        bounds: what was to be kept to.
    """

    model: str | None
    trace: Side
    trace_number: int
    reason: str
    calls: tuple[str, ...]
    alive: tuple[int, ...]
    flights: tuple[FlightRecord, ...]
    before: PeakRecord
    after: PeakRecord
    bounds: tuple[BoundRecord, ...]

    def validate(self) -> None:
        """Raises a ``ValueError`` if a collective is not on its way from one step to a later one."""
        steps = len(self.calls)
        if len(self.alive) != steps or not all(0 <= each.start < each.end < steps for each in self.flights):
            raise ValueError("a placement with a way that is not from one step to a later one")


@dataclass(frozen=True, slots=True)
class PhaseAbout:
    """One phase, which has a field in ``Phases``.

    Attributes:
        title: its name in words.
        owner: whose code runs in it.
        about: what happens in it.
    """

    title: str
    owner: str
    about: str


_DYNAMO, _THUNDER, _COMPILERS, _OWN, _REST = "Dynamo", "Thunder", "compilers", "fusioncache", "the rest"


Record = RegionRecord | ChoiceRecord | PlacementRecord
"""What is kept one by one."""


def _phase(title: str, owner: str, about: str) -> float | None:
    """Returns a field of ``Phases`` that was not measured, with its description for people."""
    found: float | None = field(default=None, metadata={"about": PhaseAbout(title, owner, about)})
    return found


@dataclass(frozen=True, slots=True)
class Phases:
    """Where the seconds of a run went. None where it was not measured. The phases do not overlap.

    Attributes:
        dynamo: with ``thunderfx``: Dynamo made graphs of the model's Python, and guards for them.
        splitting: Thunder cut these graphs where it lacks an operation, and tried each operation for that.
        other_compilers: TorchInductor compiled the parts that do not go to Thunder, or loaded them from its own cache.
        loading_programs: programs from the store: their keys, comparing what they read, and putting them
            together, in place of tracing, fusing, planning and canonicalizing. Lookups in vain are in it as well.
        tracing: Thunder ran the model's Python and wrote the first trace; its own figure.
        fusing: from there until the traces were fused: prologue, autograd, Thunder's executors, rematerialization, and
            transforms that were registered before this one.
        planning: choosing how the sums of residual streams come about, and rewriting the traces for it.
        canonicalizing: turning regions into templates, keys and calls, and finding where they come from.
        keeping_programs: recording what Thunder reads while it traces, and writing programs into the store.
        recording: writing the record. What the last save took is missing, because it is in that record.
        starting: the one-time start of compilers in this process.
        compiling: in the backend: lowering, compiling, and the execution that a compilation ends with, because that is
            when nvFuser compiles.
        loading: executables from the store.
        first_execution: the first call of each template for each layout, once its executables were there. On a GPU that
            is launching them, not waiting for them. Of a template that could not be compiled, it is Thunder's own
            region that is called first, and compiled.
        other: with ``thunderfx``: what else there was in the calls in which Dynamo compiled, such as imports and the
            model's own operations. With this the phases are the whole of these calls, and of what is behind them in
            backward the first calls.
    """

    dynamo: float | None = _phase("Dynamo", _DYNAMO, "Dynamo makes graphs and guards of the model's Python")
    splitting: float | None = _phase("splitting", _THUNDER, "Thunder cuts these graphs where it lacks an operation")
    other_compilers: float | None = _phase(
        "other compilers", _COMPILERS, "TorchInductor compiles what is not given to Thunder"
    )
    loading_programs: float | None = _phase(
        "loading programs", _OWN, "programs are looked up, compared and loaded, in place of tracing and fusing"
    )
    tracing: float | None = _phase("tracing", _THUNDER, "Thunder runs the model's Python and writes the first trace")
    fusing: float | None = _phase("fusing", _THUNDER, "Thunder transforms the traces up to the fused ones")
    planning: float | None = _phase("planning", _OWN, "residual streams are planned, and the traces rewritten for it")
    canonicalizing: float | None = _phase("canonicalizing", _OWN, "regions become templates, keys and calls")
    keeping_programs: float | None = _phase(
        "storing programs", _OWN, "what Thunder reads is recorded, and its programs are written into the store"
    )
    recording: float | None = _phase("recording", _OWN, "this record is written")
    starting: float | None = _phase("starting", _COMPILERS, "compilers are started, once in a process")
    compiling: float | None = _phase(
        "compiling", _COMPILERS, "the backend lowers and compiles, first execution of each executable included"
    )
    loading: float | None = _phase("loading", _OWN, "executables come from the store")
    first_execution: float | None = _phase(
        "first execution", _REST, "each template is called for the first time for each layout"
    )
    other: float | None = _phase(
        "rest of the call", _REST, "imports, the model's own operations, and all else while Dynamo compiles"
    )

    def to_dict(self) -> dict[str, float]:
        """Returns the seconds of the phases that were measured, in the order in which they come."""
        named = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: seconds for name, seconds in named.items() if seconds is not None}


PHASES: Mapping[str, PhaseAbout] = MappingProxyType({each.name: each.metadata["about"] for each in fields(Phases)})
"""All phases, in the order in which they come."""


def add_up_owners(seconds: Mapping[str, float]) -> Mapping[str, float]:
    """Returns the seconds of each owner of phases that were measured, in the order in which owners come first."""
    found: dict[str, float] = {}
    for name, about in PHASES.items():
        if name in seconds:
            found[about.owner] = found.get(about.owner, 0.0) + seconds[name]
    return found


@dataclass(frozen=True, slots=True)
class Lifetime:
    """What all runs did that a record knows of, those included whose details it has forgotten.

    Attributes:
        since: when the first of them started, in seconds since the epoch.
        runs: how many there were.
        regions: as ``Stats`` counts them, of all runs; so is all that follows.
        hits: see above.
        compiles: see above.
        compile_seconds: see above.
        loads: see above.
        load_seconds: see above.
        saved_seconds: see above.
    """

    since: float
    runs: int
    regions: int
    hits: int
    compiles: int
    compile_seconds: float
    loads: int
    load_seconds: float
    saved_seconds: float


_MOST_MODELS = 2


@dataclass(frozen=True, slots=True)
class Run:
    """One cache of one process.

    Attributes:
        id: of the run.
        started: seconds since the epoch.
        pid: process that ran it.
        command: its command line.
        stats: its counts when it was last saved.
        phases: where its seconds had gone by then.
        unrecorded: how many regions, streams and templates of it the record had no room for.
        models: classes of the modules, or names of the functions, that it compiled.
        updated: when it was last saved, in seconds since the epoch.
        ended: whether its process came to an end by itself. If not, it goes on, or it was killed.
    """

    id: str
    started: float
    pid: int
    command: str
    stats: Stats
    phases: Phases = field(default_factory=Phases)
    unrecorded: int = 0
    models: tuple[str, ...] = ()
    updated: float = 0.0
    ended: bool = False

    @property
    def why_without_regions(self) -> str:
        """What to say of the run if it has no region."""
        loaded = "Its programs were loaded, so that nothing was traced"
        otherwise = loaded if self.stats.programs_loaded else "Thunder found nothing to fuse in what it traced"
        return ". ".join(self.stats.bypasses) or otherwise

    @property
    def missing(self) -> str:
        """What to say of the run if the record had no room for all of it; empty if it had."""
        if not self.unrecorded:
            return ""
        return f"{self.unrecorded} regions, streams and templates: counted, but the record had no room"

    @property
    def name(self) -> str:
        """What people call the run, such as ``train.py · GPT · 2026-01-31 14:03``, in local time."""
        moment = f"{datetime.fromtimestamp(self.started):%Y-%m-%d %H:%M}"
        return " · ".join(filter(None, (find_script(self.command), _format_models(self.models), moment)))


def find_script(command: str) -> str:
    """Returns what a command line runs, in a word or two: a script, a module, or Python itself."""
    try:
        first = next(iter(shlex.split(command)), "")
    except ValueError:
        first = command
    if first == "-c":
        return "python -c"
    path = PurePath(first)
    if path.name == "ipykernel_launcher.py":
        return "notebook"
    return (path.parent.name if path.name == "__main__.py" else path.name) or "python"


def find_whole_models(models: Sequence[str]) -> tuple[str, ...]:
    """Returns the names of models, each once: with ``thunderfx`` a model has many parts, as ``GPT (part 1 of 11)``."""
    return tuple(dict.fromkeys(model.partition(" (")[0] for model in models))


def _format_models(models: Sequence[str]) -> str:
    whole = find_whole_models(models)
    first = ", ".join(whole[:_MOST_MODELS])
    return first if len(whole) <= _MOST_MODELS else f"{first} and {len(whole) - _MOST_MODELS} more"
