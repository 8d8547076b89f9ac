"""Takes down what becomes of each region of a trace, and where it comes from. Nothing here reaches the model."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from fusioncache.backends.symbols import outputs_of
from fusioncache.ir import Template
from fusioncache.provenance.compilation import Compilation, current_compilation
from fusioncache.provenance.source import Sources, sources_of
from fusioncache.record.history import Records
from fusioncache.record.ledger import Ledger
from fusioncache.record.observations import ChoiceRecord, PlanCost, RegionRecord, Source
from fusioncache.residual.plans import Choice
from fusioncache.template.plan import Arities, Plan

logger = logging.getLogger("fusioncache")

_UNDONE = "its trace stayed as it was"


@dataclass(frozen=True, slots=True)
class _Forward:
    """What is remembered of a forward trace until its backward trace comes."""

    number: int
    compilation: Compilation
    sources: Sources


class Watch:
    """Sees the traces of one transform: of each thread a forward trace and then, if there is one, its backward trace.

    Args:
        ledger: whose records are kept.
    """

    def __init__(self, ledger: Ledger):
        self._records = ledger.records
        self._waiting = threading.local()

    def begin(self, trace: Any) -> WatchedTrace:
        """A trace comes in, as Thunder made it."""
        from thunder.core.trace import TraceTag

        forward: _Forward | None = getattr(self._waiting, "forward", None)
        self._waiting.forward = None
        if TraceTag.BACKWARD in trace.tags:
            known = forward or self._unknown_forward()
            return WatchedTrace(self._records, "backward", known.number, known.compilation, known.sources)
        expects_backward = TraceTag.AUGMENTED_FORWARD in trace.tags
        compilation = _compilation()
        number = self._records.next_trace(compilation.model)
        for phase, seconds in (("tracing", compilation.tracing), ("fusing", compilation.fusing)):
            if seconds is not None:
                self._records.spent(phase, seconds)
        return WatchedTrace(self._records, "forward", number, compilation, None, expects_backward)

    def _unknown_forward(self) -> _Forward:
        compilation = _compilation()
        return _Forward(self._records.next_trace(compilation.model), compilation, Sources())

    def end(self, watched: WatchedTrace) -> None:
        """The trace is done with."""
        watched.end()
        if watched.expects_backward:
            self._waiting.forward = _Forward(watched.number, watched.compilation, watched.sources)


class WatchedTrace:
    """One trace of a model.

    Attributes:
        trace: ``forward`` or ``backward``.
        number: counts the forward traces of a run.
        expects_backward: whether it is a forward trace that a backward trace belongs to.
        compilation: that it is of.
        sources: of its regions, once they were looked for.
    """

    def __init__(
        self,
        records: Records,
        trace: str,
        number: int,
        compilation: Compilation,
        forward: Sources | None,
        expects_backward: bool = False,
    ):
        self.trace = trace
        self.expects_backward = expects_backward
        self.number = number
        self.compilation = compilation
        self.sources = Sources()
        self._forward = forward
        self._records = records
        self._regions: dict[int, RegionRecord] = {}

    def look(self, trace: Any) -> None:
        """Finds out where the regions of the trace come from."""
        try:
            self.sources = sources_of(trace, self.compilation, self._forward)
        except Exception as error:
            logger.info("where the regions of a trace come from is not known", exc_info=error)

    def source(self, position: int) -> Source:
        """Where the region at this place of the trace comes from."""
        return self.sources.regions.get(position, Source())

    def chose(self, choices: Iterable[Choice]) -> None:
        """What was chosen for the trace's residual streams."""
        for choice in choices:
            costs = tuple(
                PlanCost(plan.value, cost.moved, cost.alive, cost.kernels) for plan, cost in choice.costs.items()
            )
            where = (self.compilation.model, self.trace, self.number)
            self._records.choice(ChoiceRecord(*where, choice.stream, choice.sums, choice.plan.value, costs))

    def found(self, position: int, fusion: Any, template: Template, arities: Arities, *, hit: bool) -> None:
        """A region has this template."""
        outcome = "hit" if hit else "miss"
        self._note(position, fusion, outcome, _UNDONE, digest=template.key.digest, arities=arities)

    def planned(self, position: int, plan: Plan) -> None:
        """How the chains of the region that was found here are summed."""
        self._regions[position] = replace(self._regions[position], plan=plan.value)

    def rewritten(self) -> None:
        """The regions that were found are calls of their templates now."""
        for position, region in self._regions.items():
            if region.digest is not None:
                self._regions[position] = replace(region, reason=None)

    def left(self, position: int, fusion: Any, reason: str) -> None:
        """A region stays as Thunder made it."""
        self._note(position, fusion, "bypass", reason)

    def end(self) -> None:
        """Records the regions."""
        self._records.regions(self._regions[position] for position in sorted(self._regions))

    def _note(
        self, position: int, fusion: Any, outcome: str, reason: str, digest: str | None = None, arities: Arities = ()
    ) -> None:
        self._regions[position] = RegionRecord(
            model=self.compilation.model,
            trace=self.trace,
            trace_number=self.number,
            position=position,
            name=fusion.sym.name,
            digest=digest,
            outcome=outcome,
            reason=reason,
            arities=arities,
            plan=None,
            source=self.source(position),
            ops=len(fusion.subsymbols),
            inputs=len(fusion.args),
            outputs=len(outputs_of(fusion)),
        )


def _compilation() -> Compilation:
    try:
        return current_compilation()
    except Exception as error:  # another version of Thunder
        logger.info("what is compiled is not known", exc_info=error)
        return Compilation()
