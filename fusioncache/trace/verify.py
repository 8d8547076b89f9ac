"""Verify mode: each shared region is compiled on its own as well, and what its template computes is compared with that.

``FUSIONCACHE_VERIFY=1`` or ``FusionCache(verify=True)`` compares at each place of a trace that calls a template, in its
first call for each layout of the arguments; ``FUSIONCACHE_VERIFY=all`` compares in every call. Both compute everything
twice where they compare, wait for the GPU, and compile as much as Thunder would without fusioncache.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from enum import Enum
from itertools import count
from typing import Any

import torch

from fusioncache.cache.entry import Entry
from fusioncache.cache.program import Program, Run
from fusioncache.template.exactness import written
from fusioncache.template.expand import inline
from fusioncache.trace.difference import copied
from fusioncache.trace.maker import Maker
from fusioncache.trace.mismatch import Site, problems, report

__all__ = ["Site", "VerificationError", "VerifiedCall", "Verifier", "When", "own_function", "verified", "when_asked"]

VARIABLE = "FUSIONCACHE_VERIFY"


class VerificationError(RuntimeError):
    """A template computed something else than its region. The message says what, and where both are written out."""


class When(Enum):
    """In which calls of a template its results are compared: for each layout the first, or every one."""

    FIRST = "1"
    EVERY = "all"


def when_asked(verify: bool | None) -> When | None:
    """When to compare, by the option of ``FusionCache`` and, if that does not say no, the environment; None for never.

    Raises:
        TypeError: if the option is none of True, False and None.
        ValueError: if the environment says something else than 0, 1 or all.
    """
    if verify is not None and not isinstance(verify, bool):
        raise TypeError(f"verify must be True, False or None, got {verify!r}")
    if verify is False:
        return None
    said = os.environ.get(VARIABLE, "")
    if said not in ("", "0", "1", "all"):
        raise ValueError(f"{VARIABLE} must be 0, 1 or all, got {said!r}")
    if said == "all":
        return When.EVERY
    return When.FIRST if verify or said == "1" else None


class VerifiedCall:
    """What ``call_of`` takes in place of a ``TemplateCall``: for one site, under a name of its own."""

    def __init__(self, site: Site, name: str, when: When):
        self.template = site.call.template
        self.name = name
        self.takes_arities = site.call.takes_arities
        self.entry = verified(site, when)
        self.entry.__name__ = self.entry.__qualname__ = name
        self.entry.name = name  # type: ignore[attr-defined]  # as for ``TemplateCall``


class Verifier:
    """Makes verifying calls for the sites of a model's traces."""

    def __init__(self, when: When):
        self._when = when
        self._numbers = count()

    def at(self, site: Site) -> VerifiedCall:
        """The call for one site. Its name tells sites of one template apart."""
        return VerifiedCall(site, f"{site.call.name}_verified_{next(self._numbers)}", self._when)


def verified(site: Site, when: When) -> Entry:
    """The entry of a site's template, which raises a ``VerificationError`` where it computes something else.

    While a CUDA graph is captured nothing is compared. A call that raised has written into its inputs all the same.
    """
    run, takes_arities = site.call.entry, site.call.takes_arities
    own = own_function(site)
    targets = [target for _, target in written(site.call.template.graph)]
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
        good.add(layout)
        return results

    return entry


def own_function(site: Site) -> Run:
    """The region compiled on its own, in its template's terms.

    That is the region as its executor made it, unless that uses another compiler than the template, or wants inputs
    that it has in vain. Then the region is compiled from its own definition by the template's compiler.
    """
    if None not in site.fallback.inputs and _compiler_of(site.maker) == site.backend.name:
        return site.fallback
    graph = inline(site.call.template.graph, site.binding.arities)
    program = Program(graph, site.backend, site.original)
    return lambda args: program.run_for(args, _nobody)(args)


def _nobody(seconds: float, *, loaded: bool = False) -> None:
    """Nobody counts what only a comparison needs."""


def _compiler_of(maker: Maker) -> str:
    """The backend that a region's executor compiles it with."""
    from fusioncache.trace import executor

    return maker.backend or ("inductor" if executor.best_backend("cpu") == "inductor" else "eager")


def _layout(values: Sequence[Any]) -> tuple:
    return tuple((v.shape, v.stride(), v.device) if hasattr(v, "stride") else None for v in values)


def _capturing() -> bool:
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
