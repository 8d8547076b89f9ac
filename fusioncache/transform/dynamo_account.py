"""Measures the seconds of Dynamo, of Thunder's splitter and of TorchInductor in a first step.

``thunderfx`` lets Dynamo make graphs of a model. Thunder's splitter cuts each graph at operations that Thunder lacks,
and TorchInductor compiles the parts between. None of this is part of fusioncache, but most of a step that loads its
programs is spent there. So it is measured, and the splitter's reasons are counted: ``stats`` and the report show both.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache, partial, wraps
from typing import Any

from fusioncache.observe.record.stats import NOT_GIVEN
from fusioncache.process.warning import log_errors, warn_once
from fusioncache.thunder_adapter.versions import explain_fault, find_fault_of_graph
from fusioncache.transform.passes import Accelerator, pick_ours

_TARGET = re.compile(r"target: (?:<(?:built-in )?\w+ (\S+)[^>]*>|(\S+)) (.*)", re.DOTALL)
_SEE, _LINE_BREAK = ", see exception field", "\n"
_WHY = 120
"""How many characters of a splitter's reason are stored."""


@dataclass(slots=True)
class DynamoClock:
    """Measures Dynamo's own seconds while it compiles a frame.

    Attributes:
        started: start time of the frame; None outside a frame.
        elsewhere: seconds since then in which it waited for Thunder's backend.
        transforms: fusioncache's transforms with which parts of the frame's graph were compiled.
        caller: fusioncache's transform of the model that is being called.
        known: seconds of all its phases before Dynamo began in that call; None if it did not.
    """

    started: float | None = None
    elsewhere: float = 0.0
    transforms: list[Any] = field(default_factory=list)
    caller: Any = None
    known: float | None = None

    def start(self, _: object) -> None:
        """Starts the clock. Dynamo calls this when it begins a frame."""
        self.started, self.elsewhere, self.transforms = time.perf_counter(), 0.0, []
        if self.caller is not None and self.known is None:
            self.known = _sum_seconds(self.caller)

    def stop(self, _: object) -> None:
        """Stops the clock and records the seconds. Dynamo calls this after a frame and its nested frames."""
        started, self.started = self.started, None
        if started is not None:
            for transform in self.transforms:
                transform.ledger.history.add_seconds("dynamo", time.perf_counter() - started - self.elsewhere)


def _sum_seconds(transform: Any) -> float:
    """Returns the seconds of all ``Phases`` so far, of all transforms that share this one's cache."""
    return sum(transform.cache.ledger.phases().to_dict().values())


_clock_of_process = cache(DynamoClock)


def dynamo_clock_of_process() -> DynamoClock:
    """Returns the clock of this process. Registers it with Dynamo, which uses it until ``torch._dynamo.reset``."""
    from torch._dynamo.callback import callback_handler

    clock = _clock_of_process()
    if clock.start not in callback_handler.start_callbacks:
        callback_handler.register_start_callback(clock.start)
        callback_handler.register_end_callback(clock.stop)
    return clock


def time_call(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a replacement of a model's call that records its seconds beside its phases, if Dynamo compiles in it.

    The original only calls ``_func``. The replacement calls that directly, because Dynamo would compile the original
    within ``torch.compile``.
    """

    @wraps(original)
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        clock = dynamo_clock_of_process()
        ours = pick_ours(self._backend.thunder_options.get("transforms", ()))
        if clock.caller is not None or len(ours) != 1:
            return self._func(*args, **kwargs)
        clock.caller, clock.known, start = ours[0], None, time.perf_counter()
        try:
            return self._func(*args, **kwargs)
        finally:
            known, clock.caller, clock.known = clock.known, None, None
            if known is not None:
                spent = time.perf_counter() - start - (_sum_seconds(ours[0]) - known)
                ours[0].ledger.history.add_seconds("other", max(spent, 0.0))

    return __call__


def time_splitter(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a splitter that records its seconds and TorchInductor's, and why parts do not go to Thunder."""

    @wraps(original)
    def _splitter(gm: Any, thunder_jit: Any, *rest: Any, **options: Any) -> Any:
        start, inductor = time.perf_counter(), list[float]()
        warn_of_fault(gm)
        if rest and callable(rest[0]):  # later versions compile these parts when they run
            rest = (_time_calls(rest[0], inductor.append), *rest[1:])
        with ExitStack() as contexts:
            for accelerator in _list_accelerators(thunder_jit):
                contexts.enter_context(accelerator.around_splitting(gm))
            split, info = original(gm, thunder_jit, *rest, **options)
        with log_errors("what Thunder's splitter did is not counted"):  # as in another Thunder: the graphs run anyway
            transforms = _list_transforms(info)
            _account(transforms, info, time.perf_counter() - start, sum(inductor))
            _time_lazy_parts(split, transforms)
        return split, info

    return _splitter


def _time_calls(function: Callable[..., Any], note: Callable[[float], object]) -> Callable[..., Any]:
    """Returns a function that does the same, and passes on the seconds of each call."""

    @wraps(function)
    def timed(*args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            note(time.perf_counter() - start)

    return timed


def _time_lazy_parts(split: Any, transforms: Sequence[Any]) -> None:
    """Measures each part's first call, in which TorchInductor compiles it."""

    def note_first(module: Any, seconds: float) -> None:
        del module.forward  # later calls find the class's method
        for transform in transforms:
            transform.ledger.history.add_seconds("other_compilers", seconds)

    for module in split.children():
        if type(module).__name__ == "LazyInductorModule":
            module.forward = _time_calls(module.forward, partial(note_first, module))


def warn_of_fault(graph: Any) -> None:
    """Warns once if Thunder computes wrong results, or fails, for a graph of Dynamo."""
    fault = find_fault_of_graph(graph)
    if fault is not None:
        warn_once(explain_fault(fault))


def _list_accelerators(thunder_jit: Any) -> Iterator[Accelerator]:
    """Yields the accelerators of the transforms with which a graph's parts are compiled."""
    for transform in getattr(thunder_jit, "keywords", {}).get("transforms", ()):
        yield from getattr(transform, "accelerators", ())


def _list_transforms(info: Any) -> list[Any]:
    """Returns fusioncache's transforms of the functions that a graph was split into."""
    given = [each for function in info.thunder_compiled_fns or () for each in function._lc_cd.transforms or ()]
    return list({id(each): each for each in pick_ours(given)}.values())


def _account(transforms: Iterable[Any], info: Any, seconds: float, inductor: float) -> None:
    clock = dynamo_clock_of_process()
    clock.elsewhere += seconds
    for transform in transforms:
        clock.transforms.append(transform)
        transform.ledger.history.add_seconds("splitting", seconds - inductor)
        if inductor:
            transform.ledger.history.add_seconds("other_compilers", inductor)
        for reason in info.split_reasons or ():
            transform.report_unchanged(write_reason(reason.info or reason.reason_type.name, reason.exception))


def write_reason(text: str, exception: str | None = None) -> str:
    """Returns the reason why an operation is not given to Thunder, without its name in one graph.

    Args:
        text: Thunder's reason.
        exception: Thunder's exception, if the text refers to one.
    """
    if exception:
        text = f"{text.removesuffix(_SEE)} raises: {exception.partition(_LINE_BREAK)[0]}"
    found = _TARGET.search(text)
    if found is None:
        return f"{NOT_GIVEN}{text[:_WHY]}"
    return f"{NOT_GIVEN}{found[1] or found[2]} {found[3][:_WHY]}".rstrip(".")
