"""Passes over final traces, and the accelerators that bring them.

Thunder hands a transform the final forward trace and then the final backward trace. Passes change them in one order,
that of ``ORDER``: each takes a trace and returns one. The core has one pass, ``templates``; all others belong to
accelerators. What a pass leaves in ``TraceContext.leaves`` for a forward trace, the pass of that name finds in
``TraceContext.left`` for its backward trace.

A pass that fails leaves the trace as it was, and its failure is reported. There is one exception: if the pass changed
the forward trace and left something, the backward trace is wrong without it, and the error is raised.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from fusioncache.ir import Scope, is_declined

if TYPE_CHECKING:
    from fusioncache.cache.generals import Generation
    from fusioncache.transform.provenance.trace_notes import TraceNotes
    from fusioncache.transform.shared_region import SharedRegion

ORDER = (
    "attention copies",
    "saved sums",
    "residual streams",
    "templates",
    "saved shards",
    "collectives",
    "agreement",
    "lean steps",
)
"""The names of all passes, in the order in which they run."""


@dataclass(frozen=True, slots=True)
class TraceContext:
    """What passes know of a trace beside its statements.

    Attributes:
        is_backward: whether it is a backward trace.
        notes: take what becomes of its regions.
        generation: the program that the trace is of; None if that is not known.
        left: what the passes of its forward trace left, by the name of the pass. Empty for a forward trace.
        leaves: takes what a pass leaves for the backward trace, by the name of the pass.
    """

    is_backward: bool
    notes: TraceNotes
    generation: Generation | None = None
    left: Mapping[str, Any] = field(default_factory=dict)
    leaves: dict[str, Any] = field(default_factory=dict)


class Pass(Protocol):
    """A pass over final traces."""

    @property
    def name(self) -> str:
        """One of ``ORDER``."""

    def apply(self, trace: Any, context: TraceContext, /) -> Any:
        """Returns a new trace, or the same one. It does not change the one that it is given.

        Raises:
            Declined: with a reason that is counted, if the trace stays as it is.
        """


@dataclass(frozen=True, slots=True)
class NamedPass:
    """A pass that is one function.

    Attributes:
        name: one of ``ORDER``.
        apply: as that of ``Pass``.
    """

    name: str
    apply: Callable[[Any, TraceContext], Any]


class Accelerator:
    """A part of fusioncache that the core does without. This base class changes nothing.

    Attributes:
        name: by which users switch it on and off.
    """

    name: ClassVar[str]

    def passes(self) -> Sequence[Pass]:
        """Returns its passes."""
        return ()

    def ingredients(self) -> str:
        """Returns the options on which the programs depend that its passes make."""
        return ""

    def start(self, module: Any) -> None:
        """Prepares a module that ``thunder.jit`` is about to return."""

    def foresee(self, trace: Any, regions: Sequence[SharedRegion], context: TraceContext) -> None:
        """Learns the regions of a trace that share templates, before the calls of these replace them."""

    def around_splitting(self) -> AbstractContextManager[None]:
        """Returns a context in which Thunder's splitter cuts a graph of Dynamo."""
        return nullcontext()


def order_passes(passes: Iterable[Pass]) -> tuple[Pass, ...]:
    """Returns passes in the order in which they run.

    Raises:
        ValueError: if the name of one is not in ``ORDER``.
    """
    return tuple(sorted(passes, key=lambda each: ORDER.index(each.name)))


class Reports(Protocol):
    """Takes what passes do not do."""

    def report_left(self, reason: str) -> None:
        """Counts something that stays as it is, with the reason."""

    def report_failure(self, what: str, error: Exception) -> None:
        """Counts a failure, and warns once of its kind."""


def run_passes(
    passes: Iterable[Pass],
    trace: Any,
    context: TraceContext,
    reports: Reports,
    watch: Callable[[str, Any, float], None] | None = None,
) -> Any:
    """Returns the trace that passes make of a trace.

    Args:
        passes: in order.
        trace: a final one.
        context: of the trace.
        reports: takes reasons and failures.
        watch: is given the name of each pass, the trace behind it and its seconds.
    """
    for each in passes:
        start = time.perf_counter()
        try:
            trace = each.apply(trace, context)
        except Exception as error:
            if each.name in context.left:
                raise
            if is_declined(error, Scope.REGION):
                reports.report_left(error.reason)
            else:
                reports.report_failure(f"pass {each.name!r}: a trace", error)
        if watch is not None:
            watch(each.name, trace, time.perf_counter() - start)
    return trace
