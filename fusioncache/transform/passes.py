"""Passes over final traces, and the accelerators that provide them.

Thunder calls a transform with the final forward trace and then with the final backward trace. Passes change them in a
fixed order, that of ``ORDER``: each takes a trace and returns one. The core has one pass, ``templates``; all others
belong to accelerators. For a forward trace, a pass may store data in ``TraceContext.for_backward``; for the backward
trace the pass of the same name finds it in ``TraceContext.from_forward``.

If a pass fails, the trace stays as it was and the failure is reported. There is one exception: if the pass changed the
forward trace and left data, the backward trace would be wrong without the pass, so the error is raised.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from fusioncache.ir import Scope, is_declined

if TYPE_CHECKING:
    from fusioncache.cache.generals import Generation
    from fusioncache.transform.provenance.trace_notes import TraceNotes
    from fusioncache.transform.shared_region import SharedRegion
    from fusioncache.transform.transform import TemplateTransform

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
    """The data of a trace for passes, beside its statements.

    Attributes:
        is_backward: whether it is a backward trace.
        notes: records the outcome of its regions.
        generation: the program that the trace belongs to; None if not known.
        from_forward: the data that the passes of its forward trace left, by pass name. Empty for a forward trace.
        for_backward: receives the data that a pass leaves for the backward trace, by pass name.
    """

    is_backward: bool
    notes: TraceNotes
    generation: Generation | None = None
    from_forward: Mapping[str, Any] = field(default_factory=dict)
    for_backward: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pass:
    """A pass over final traces.

    Attributes:
        name: one of ``ORDER``.
        apply: returns a new trace of ``derive``, or the same one, and does not modify its argument. If it raises
            ``Declined``, the trace stays as it is, and the reason is counted.
    """

    name: str
    apply: Callable[[Any, TraceContext], Any]


def pair_passes(
    name: str, forward: Callable[[Any, TraceContext], tuple[Any, Any]], backward: Callable[[Any, Any], Any]
) -> Pass:
    """Returns a pass that changes a backward trace if it has changed the forward trace.

    Args:
        name: one of ``ORDER``.
        forward: returns the forward trace, and the data that the backward trace needs; None if it needs no change.
        backward: returns the backward trace, given the trace and these data.
    """

    def apply(trace: Any, context: TraceContext) -> Any:
        if context.is_backward:
            left = context.from_forward.get(name)
            return trace if left is None else backward(trace, left)
        trace, left = forward(trace, context)
        if left is not None:
            context.for_backward[name] = left
        return trace

    return Pass(name, apply)


class Accelerator:
    """An optional part of fusioncache. This base class changes nothing.

    Attributes:
        name: the name by which users switch it on and off.
    """

    name: ClassVar[str]

    def passes(self) -> Sequence[Pass]:
        """Returns the accelerator's passes."""
        return ()

    def ingredients(self) -> str:
        """Returns the options that affect the programs of its passes."""
        return ""

    def start(self, module: Any) -> None:
        """Prepares a module that ``thunder.jit`` is about to return."""

    def foresee(self, trace: Any, regions: Sequence[SharedRegion], context: TraceContext) -> None:
        """Receives a trace's regions that share templates, before calls replace them."""

    def around_splitting(self, graph: Any) -> AbstractContextManager[None]:
        """Returns a context manager that is active while Thunder's splitter cuts a graph of Dynamo.

        Args:
            graph: a module of ``torch.fx``, which may be changed.
        """
        return nullcontext()


def pick_ours(transforms: Iterable[Any]) -> list[Any]:
    """Returns the transforms of fusioncache among those of a function."""
    from fusioncache.transform.transform import TemplateTransform

    return [each for each in transforms if isinstance(each, TemplateTransform)]


def order_passes(passes: Iterable[Pass]) -> tuple[Pass, ...]:
    """Returns passes in the order in which they run.

    Raises:
        ValueError: if the name of one is not in ``ORDER``.
    """
    return tuple(sorted(passes, key=lambda each: ORDER.index(each.name)))


def run_passes(
    passes: Iterable[Pass],
    trace: Any,
    context: TraceContext,
    reports: TemplateTransform,
    watch: Callable[[str, Any, Any, float], None] | None = None,
) -> Any:
    """Returns the trace after all passes.

    Args:
        passes: in order.
        trace: a final trace.
        context: of the trace.
        reports: receives reasons and failures.
        watch: called with the name of each pass, the traces before and after it, and its seconds.
    """
    for each in passes:
        before, start = trace, time.perf_counter()
        try:
            trace = each.apply(trace, context)
        except Exception as error:
            if each.name in context.from_forward:
                raise
            if is_declined(error, Scope.REGION):
                reports.report_unchanged(error.reason)
            else:
                reports.report_failure(f"pass {each.name!r}: a trace", error)
        if watch is not None:
            watch(each.name, before, trace, time.perf_counter() - start)
    return trace
