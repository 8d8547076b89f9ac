"""Verify mode: each shared region is compiled on its own as well, and what its template computes is compared with that.

``FUSIONCACHE_VERIFY=1`` or ``FusionCache(verify=True)`` compares at each place of a trace that calls a template, in its
first call for each layout of the arguments; ``FUSIONCACHE_VERIFY=all`` or ``verify="all"`` compares in every call. Both
compute everything twice where they compare, wait for the GPU, and compile as much as Thunder would without fusioncache.
The ledger counts what was verified, and what was compiled for it apart from what was compiled.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from enum import Enum
from itertools import count
from typing import Any

import torch

from fusioncache.backends.api import Run
from fusioncache.cache.dispatch import Entry
from fusioncache.cache.program import Builder, Program
from fusioncache.ir.ops import writes_of
from fusioncache.process.settings import VERIFY
from fusioncache.record.ledger import Ledger
from fusioncache.template.expand import inline
from fusioncache.verification.mismatch import Site, problems, report
from fusioncache.verification.tensors import copied

__all__ = ["Site", "VerificationError", "VerifiedCall", "Verifier", "When", "own_function", "verified", "when_asked"]


class VerificationError(RuntimeError):
    """A template computed something else than its region. The message says what, and where both are written out."""


class When(Enum):
    """In which calls of a template its results are compared: for each layout the first, or every one."""

    FIRST = "1"
    EVERY = "all"


def when_asked(verify: bool | str | None) -> When | None:
    """When to compare, by the option of ``FusionCache`` and, if that does not say no, the environment; None for never.

    Raises:
        TypeError: if the option is none of True, False, "all" and None.
        ValueError: if the environment says something else than 0, 1 or all.
    """
    if not (verify is None or isinstance(verify, bool) or verify == When.EVERY.value):
        raise TypeError(f'verify must be True, False, "all" or None, got {verify!r}')
    if verify is False:
        return None
    said = VERIFY.read()
    if When.EVERY.value in (verify, said):
        return When.EVERY
    return When.FIRST if verify or said == "1" else None


class VerifiedCall:
    """What ``call_of`` takes in place of a ``TemplateCall``: for one site, under a name of its own."""

    def __init__(self, site: Site, name: str, entry: Entry):
        self.template = site.call.template
        self.name = name
        self.takes_arities = site.call.takes_arities
        self.entry = entry
        self.entry.__name__ = self.entry.__qualname__ = name
        self.entry.name = name  # type: ignore[attr-defined]  # as for ``TemplateCall``


class Verifier:
    """Makes verifying calls for the sites of a model's traces.

    Args:
        when: to compare.
        ledger: counts.
        called: is told when that counted something.
    """

    def __init__(self, when: When, ledger: Ledger, called: Callable[[], None]):
        self._when = when
        self._ledger = ledger
        self._called = called
        self._numbers = count()

    def at(self, site: Site) -> VerifiedCall:
        """The call for one site. Its name tells sites of one template apart."""
        entry = verified(site, self._when, self._ledger.count_verify_compile, self._good)
        return VerifiedCall(site, f"{site.call.name}_verified_{next(self._numbers)}", entry)

    def _good(self) -> None:
        self._ledger.count_verified()
        self._called()


def verified(site: Site, when: When, compiled: Callable[[float], None], compared: Callable[[], None]) -> Entry:
    """The entry of a site's template, which raises a ``VerificationError`` where it computes something else.

    While a CUDA graph is captured nothing is compared. A call that raised has written into its inputs all the same.

    Args:
        site: it.
        when: to compare.
        compiled: is told the seconds of what is compiled for the comparison only.
        compared: is told of the first comparison for each layout that found nothing.
    """
    run, takes_arities = site.call.entry, site.call.takes_arities
    own = own_function(site, compiled)
    targets = [target for _, target in writes_of(site.call.template.graph)]
    good: set[Any] = set()

    def entry(*args: Any) -> Sequence[Any]:
        values = args[1:] if takes_arities else args
        layout = _layout(values)
        if (when is When.FIRST and layout in good) or _capturing():
            return run(*args)
        own_values = [copied(value) if place in targets else value for place, value in enumerate(values)]
        expected = own(own_values)
        results = run(*args)
        found = list(problems(site, [*results, *values], [*expected, *own_values]))
        if found:
            raise VerificationError(report(site, values, found))
        if layout not in good:
            good.add(layout)
            compared()
        return results

    return entry


def own_function(site: Site, compiled: Callable[[float], None]) -> Run:
    """The region compiled on its own, in its template's terms. ``compiled`` is told of each layout it is compiled for.

    That is the region as its executor made it, unless that uses another compiler than the template, or wants inputs
    that it has in vain. Then the region is compiled from its own definition by the template's compiler.
    """
    if None not in site.fallback.inputs and site.own_backend == site.backend.name:
        return _timed(site.fallback, compiled)
    graph = inline(site.call.template.graph, site.binding.arities)
    program = Program(graph, Builder(site.backend), site.instance)
    return lambda args: program.run_for(args, lambda _, function: compiled(function.seconds))(args)


def _timed(run: Run, compiled: Callable[[float], None]) -> Run:
    """A function of an executor, which compiles in its first call for each layout."""
    layouts: set[Any] = set()

    def timed(args: Sequence[Any]) -> Sequence[Any]:
        layout = _layout(args)
        if layout in layouts:
            return run(args)
        start = time.perf_counter()
        results = run(args)
        compiled(time.perf_counter() - start)
        layouts.add(layout)
        return results

    return timed


def _layout(values: Sequence[Any]) -> tuple:
    return tuple((v.shape, v.stride(), v.device) if hasattr(v, "stride") else None for v in values)


def _capturing() -> bool:
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
