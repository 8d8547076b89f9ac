"""The data classes of the record: a run with its counts, phases and name, and its regions, streams and collectives."""

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
"""Which of a program's two traces."""


@dataclass(frozen=True, slots=True)
class ThunderCost:
    """The seconds that Thunder alone spends on the regions that one executable serves.

    Attributes:
        first: on the first region.
        further: on each further equal region; less than ``first`` if the compiler has its own cache.
    """

    first: float
    further: float


@dataclass(frozen=True, slots=True)
class Line:
    """A line of source.

    Attributes:
        file: its path, as in Python's tracebacks.
        number: from 1.
        library: whether the file belongs to Python or to an installed package, not to the user.
    """

    file: str
    number: int
    library: bool = False

    def __str__(self) -> str:
        return f"{self.file}:{self.number}"


@dataclass(frozen=True, slots=True)
class Source:
    """The position of a region in the user's model. Unknown parts are None or empty.

    Attributes:
        module: dotted path of the innermost module that contains the whole region, such as ``transformer.h.3``; empty
            for the model itself.
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
class Record:
    """Base class of the observations of a trace, which are stored one by one.

    Attributes:
        model: class of the module, or name of the function, that was compiled; None if not known.
        trace: ``forward`` or ``backward``.
        trace_number: counts a run's compilations, from 0. A forward trace and its backward trace have the same number.
    """

    model: str | None
    trace: Side
    trace_number: int


@dataclass(frozen=True, slots=True)
class RegionRecord(Record):
    """One region of one trace, and its outcome.

    Attributes:
        position: index among the bound symbols of Thunder's trace.
        name: of the fusion in Thunder's trace, such as ``nvFusion3``.
        digest: of its template; None if it was bypassed.
        outcome: ``hit``, ``miss`` or ``bypass``, as ``Stats`` counts it.
        reason: why it was bypassed; for a hit or a miss, why it runs without its template, if it does.
        arities: the number of terms of each of its residual chains.
        plan: how the chains are summed: ``inline`` or ``fold``; None if it was bypassed. A region without chains is
            ``inline``. It is ``any sizes`` while a function for any sizes serves it, until it gets one for its own.
        source: its position in the model.
        ops: number of operations.
        inputs: number of inputs.
        outputs: number of outputs.
    """

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
    """The cost of a plan for a residual stream.

    Attributes:
        plan: ``inline``, ``fold``, ``carry`` or ``segmented``.
        moved: bytes read and written for the stream, beyond the minimum of any plan.
        alive: peak bytes of sums that are alive at once.
        kernels: number of kernels to compile.
    """

    plan: str
    moved: int
    alive: int
    kernels: int


@dataclass(frozen=True, slots=True)
class ChoiceRecord(Record):
    """The plan chosen for a residual stream.

    Attributes:
        stream: name of its first value.
        sums: number of partial sums that are used.
        plan: the chosen plan.
        costs: of each possible plan, including the chosen one.
    """

    stream: str
    sums: int
    plan: str
    costs: tuple[PlanCost, ...]


@dataclass(frozen=True, slots=True)
class FlightRecord:
    """A collective in flight, from the step of the trace that starts it to the one that waits for it.

    Attributes:
        kind: ``gather`` or ``reduce``.
        name: its value, with dtype and shape.
        size: the bytes that it moves.
        start: its first step, from 0.
        end: its last step.
        beside: number of computing calls between the two.
    """

    kind: Annotated[str, re.compile("gather|reduce")]
    name: str
    size: int
    start: int
    end: int
    beside: int


@dataclass(frozen=True, slots=True)
class PeakRecord:
    """The peak bytes of an order of steps.

    Attributes:
        gathering: of gathers in flight.
        reducing: of reduces in flight.
        alive: of values that collectives move.
    """

    gathering: int
    reducing: int
    alive: int


@dataclass(frozen=True, slots=True)
class BoundRecord:
    """The effect of a memory bound.

    Attributes:
        name: of the bound.
        bound: in bytes.
        most: peak of the bounded bytes in flight.
        without: the same peak without this bound.
        delayed: number of collectives that would start earlier without it.
    """

    name: str
    bound: int
    most: int
    without: int
    delayed: int


@dataclass(frozen=True, slots=True)
class PlacementRecord(Record):
    """The positions of the collectives of a trace.

    Attributes:
        reason: why they are at Thunder's positions; empty if they were moved.
        calls: the name of each step's call.
        alive: for each step, the bytes of values alive that collectives move.
        flights: the collectives, by start.
        before: peaks of Thunder's order.
        after: peaks of this order.
        bounds: the memory bounds.
    """

    reason: str
    calls: tuple[str, ...]
    alive: tuple[int, ...]
    flights: tuple[FlightRecord, ...]
    before: PeakRecord
    after: PeakRecord
    bounds: tuple[BoundRecord, ...]

    def validate(self) -> None:
        """Raises a ``ValueError`` if a collective does not end after its start, or its steps do not exist."""
        steps = len(self.calls)
        if len(self.alive) != steps or not all(0 <= each.start < each.end < steps for each in self.flights):
            raise ValueError("a placement with a way that is not from one step to a later one")


@dataclass(frozen=True, slots=True)
class PhaseAbout:
    """Description of one field of ``Phases``.

    Attributes:
        title: its name in words.
        owner: whose code runs in it.
        about: what happens in it.
    """

    title: str
    owner: str
    about: str


_DYNAMO, _THUNDER, _COMPILERS, _OWN, _REST = "Dynamo", "Thunder", "compilers", "fusioncache", "the rest"


def _phase(title: str, owner: str, about: str) -> float | None:
    """Returns a field of ``Phases``, not measured by default, with its description."""
    found: float | None = field(default=None, metadata={"about": PhaseAbout(title, owner, about)})
    return found


@dataclass(frozen=True, slots=True)
class Phases:
    """The seconds of a run by phase; None for a phase that was not measured. The phases do not overlap.

    Attributes:
        dynamo: with ``thunderfx``: Dynamo made graphs of the model's Python, and guards for them.
        splitting: Thunder split these graphs at operations that it lacks, and tried each operation for that.
        other_compilers: TorchInductor compiled the parts that do not go to Thunder, or loaded them from its own cache.
        loading_programs: loading programs from the store instead of tracing, fusing, planning and canonicalizing:
            their keys, comparing their reads, and building them. Unsuccessful lookups are included.
        tracing: Thunder ran the model's Python and wrote the first trace; its own figure.
        fusing: from there until the traces were fused: prologue, autograd, Thunder's executors, rematerialization, and
            transforms that were registered before this one.
        planning: choosing the plans for sums of residual streams, and rewriting the traces for these.
        canonicalizing: turning regions into templates, keys and calls, and finding their sources.
        keeping_programs: recording Thunder's reads while it traces, and writing programs into the store.
        recording: writing the record. The last save is missing, because its duration would be part of that record.
        starting: the one-time start of compilers in this process.
        compiling: in the backend: lowering, compiling, and the execution that ends it, because nvFuser compiles then.
        loading: executables from the store.
        first_execution: the first call of each template for each layout, once its executables were built. On a GPU that
            is launching them, not waiting for them. If a template could not be compiled, it includes compiling and
            calling Thunder's region instead.
        other: with ``thunderfx``: the rest of the calls in which Dynamo compiled, such as imports and the model's own
            operations. With this, the phases add up to these calls and, for backward, to the first calls there.
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
        """Returns the seconds of the measured phases, in the phases' order."""
        named = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: seconds for name, seconds in named.items() if seconds is not None}

    @property
    def owners(self) -> Mapping[str, float]:
        """The seconds by owner of phases, in the order of each owner's first phase."""
        found: dict[str, float] = {}
        for name, seconds in self.to_dict().items():
            owner = PHASES[name].owner
            found[owner] = found.get(owner, 0.0) + seconds
        return found


PHASES: Mapping[str, PhaseAbout] = MappingProxyType({each.name: each.metadata["about"] for each in fields(Phases)})
"""All phases, in order."""


@dataclass(frozen=True, slots=True)
class Lifetime:
    """The totals of all runs of a record, including runs whose details were removed.

    Attributes:
        since: start of the first run, in seconds since the epoch.
        runs: number of runs.
        regions: the sum of ``Stats.regions`` over all runs; all fields below are such sums.
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
    """The activity of one cache in one process.

    Attributes:
        id: of the run.
        started: seconds since the epoch.
        pid: of the process.
        command: its command line.
        stats: its counts at the last save.
        phases: its seconds by phase at the last save.
        unrecorded: number of its regions, streams and templates that the record had no room for.
        models: classes of the modules, or names of the functions, that it compiled.
        updated: time of the last save, in seconds since the epoch.
        ended: whether its process exited normally. If not, it is running, or it was killed.
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
    def whole_models(self) -> tuple[str, ...]:
        """The names of its models, each once: with ``thunderfx`` a model has many parts, as ``GPT (part 1 of 11)``."""
        return tuple(dict.fromkeys(model.partition(" (")[0] for model in self.models))

    @property
    def no_regions_message(self) -> str:
        """The message for a run without regions."""
        loaded = "Its programs were loaded, so that nothing was traced"
        otherwise = loaded if self.stats.programs_loaded else "Thunder found nothing to fuse in what it traced"
        return ". ".join(self.stats.bypasses) or otherwise

    @property
    def missing(self) -> str:
        """The message for a run that the record had no room for; empty if it is complete."""
        if not self.unrecorded:
            return ""
        return f"{self.unrecorded} regions, streams and templates: counted, but the record had no room"

    @property
    def name(self) -> str:
        """The display name of the run, such as ``train.py · GPT · 2026-01-31 14:03``, in local time."""
        moment = f"{datetime.fromtimestamp(self.started):%Y-%m-%d %H:%M}"
        return " · ".join(filter(None, (find_script(self.command), _format_models(self.whole_models), moment)))


def find_script(command: str) -> str:
    """Returns a short name for the program of a command line: a script, a module, or Python."""
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


def _format_models(models: Sequence[str]) -> str:
    first = ", ".join(models[:_MOST_MODELS])
    return first if len(models) <= _MOST_MODELS else f"{first} and {len(models) - _MOST_MODELS} more"
