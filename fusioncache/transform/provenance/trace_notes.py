"""Notes the outcome and the source of each region of a trace. No failure here reaches the model."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from fusioncache.backends.bound_symbols import outputs_of
from fusioncache.ir import Template
from fusioncache.observe.record.ledger import History
from fusioncache.observe.record.observations import ChoiceRecord, PlacementRecord, PlanCost, RegionRecord, Source
from fusioncache.process.warning import log_errors
from fusioncache.template.plan import Arities, Plan
from fusioncache.transform.provenance.source import Compilation, Sources, current_compilation, find_sources

_NOT_REWRITTEN = "its trace stayed as it was"


def begin_notes(trace: Any, history: History, forward: TraceNotes | None) -> TraceNotes:
    """Returns the notes on a trace, before any pass.

    Args:
        trace: a forward or a backward trace.
        history: receives the observations.
        forward: the notes on the forward trace of a backward trace; None if not known.
    """
    from fusioncache.thunder_adapter.api import TraceTag

    is_backward = TraceTag.BACKWARD in trace.tags
    if is_backward and forward is not None:
        return TraceNotes("backward", history, forward.number, forward.compilation, forward.sources)
    compilation = _compilation()
    number = history.begin_trace(compilation.model)
    if is_backward:
        return TraceNotes("backward", history, number, compilation, Sources())
    for phase, seconds in (("tracing", compilation.tracing), ("fusing", compilation.fusing)):
        if seconds is not None:
            history.add_seconds(phase, seconds)
    return TraceNotes("forward", history, number, compilation)


@dataclass(slots=True, eq=False)
class TraceNotes:
    """The notes on one trace of a model until they are recorded.

    Attributes:
        direction: ``forward`` or ``backward``.
        history: receives the records.
        number: counts the forward traces of a run; that of a backward trace is its forward trace's.
        compilation: the compilation that the trace belongs to.
        forward: the sources of the forward trace's regions, if this is a backward trace.
        sources: the sources of this trace's regions.
    """

    direction: str
    history: History
    number: int
    compilation: Compilation
    forward: Sources | None = None
    sources: Sources = field(default_factory=Sources)
    _regions: dict[int, RegionRecord] = field(default_factory=dict)

    def locate_regions(self, trace: Any) -> None:
        """Finds the sources of the trace's regions."""
        with log_errors("where the regions of a trace come from is not known"):
            self.sources = find_sources(trace, self.compilation, self.forward)

    def record_choice(self, stream: str, sums: int, plan: str, costs: Iterable[PlanCost]) -> None:
        """Records the plan that was chosen for a residual stream of the trace, and the cost of each plan."""
        where = (self.compilation.model, self.direction, self.number)
        self.history.add(ChoiceRecord(*where, stream, sums, plan, tuple(costs)))

    def record_placement(self, describe: Callable[[], PlacementRecord]) -> None:
        """Records the positions of the trace's collectives."""
        with log_errors("the placement of collectives is not recorded"):
            model, number = self.compilation.model, self.number
            self.history.add(replace(describe(), model=model, trace=self.direction, trace_number=number))

    def note_template(self, position: int, fusion: Any, template: Template, arities: Arities, *, hit: bool) -> None:
        """Notes that a region has this template."""
        outcome = "hit" if hit else "miss"
        self._note(position, fusion, outcome, _NOT_REWRITTEN, digest=template.key.digest, arities=arities)

    def note_plan(self, position: int, plan: Plan) -> None:
        """Notes how the chains of a region with a template are summed."""
        self._regions[position] = replace(self._regions[position], plan=plan.value)

    def note_rewritten(self) -> None:
        """Notes that calls of templates replaced the regions that have one."""
        for position, region in self._regions.items():
            if region.digest is not None:
                self._regions[position] = replace(region, reason=None)

    def note_bypass(self, position: int, fusion: Any, reason: str) -> None:
        """Notes that a region stays as Thunder made it."""
        self._note(position, fusion, "bypass", reason)

    def finish(self) -> None:
        """Records the regions."""
        self.history.add(*(self._regions[position] for position in sorted(self._regions)))

    def _note(
        self, position: int, fusion: Any, outcome: str, reason: str, digest: str | None = None, arities: Arities = ()
    ) -> None:
        self._regions[position] = RegionRecord(
            model=self.compilation.model,
            trace=self.direction,
            trace_number=self.number,
            position=position,
            name=fusion.sym.name,
            digest=digest,
            outcome=outcome,
            reason=reason,
            arities=arities,
            plan=None,
            source=self.sources.regions.get(position, Source()),
            ops=len(fusion.subsymbols),
            inputs=len(fusion.args),
            outputs=len(outputs_of(fusion)),
        )


def _compilation() -> Compilation:
    with log_errors("what is compiled is not known"):  # in another version of Thunder
        return current_compilation()
    return Compilation()
