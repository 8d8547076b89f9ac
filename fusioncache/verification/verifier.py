"""Verify mode compiles each shared region on its own as well, and compares what the template computes with that.

``FUSIONCACHE_VERIFY=1`` or ``FusionCache(verify=True)`` compares at each site of a trace that calls a template, in its
first call for each layout of the arguments; ``FUSIONCACHE_VERIFY=all`` or ``verify="all"`` compares in every call. Both
compute everything twice where they compare, wait for the GPU, and compile as much as Thunder would without fusioncache.
The ledger counts what was verified, and what was compiled for it apart from what was compiled.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from itertools import count
from typing import Any

from fusioncache.backends.api import Run
from fusioncache.backends.torch_state import is_capturing
from fusioncache.cache.call import CallTarget
from fusioncache.cache.dispatch import Dispatcher
from fusioncache.cache.executable import Builder, Executable
from fusioncache.ir import Key
from fusioncache.ir.ops import writes_of
from fusioncache.observe.record.ledger import Ledger
from fusioncache.process.settings import VERIFY
from fusioncache.process.warning import warn_once
from fusioncache.template.expand import inline
from fusioncache.verification.mismatch import Site, find_problems, write_report
from fusioncache.verification.tensors import copy_tensor
from fusioncache.verification.verified_templates import VerifiedTemplates

__all__ = ["Site", "VerificationError", "Verifier", "When", "choose_when", "compile_region", "make_verifying_function"]


DIFFERENT = "a template computed something else than its region in a Thunder that was not tried"


class VerificationError(RuntimeError):
    """A template computed something else than its region. The message says what, and where both are written down."""


class When(Enum):
    """The calls of a template in which its results are compared.

    ``FIRST`` is the first call for each layout of each site, ``EVERY`` each call. ``TEMPLATE`` is the first call of
    each template, at any of its sites: it is not asked for, but used in a Thunder that was not tried. A difference
    raises with the others. Here the regions are called from then on, and a warning says so.
    """

    FIRST = "1"
    EVERY = "all"
    TEMPLATE = "template"


def choose_when(verify: bool | str | None) -> When | None:
    """Chooses when to compare, by the option of ``FusionCache`` and, if that is not False, by the environment.

    Returns:
        When to compare; None for never.

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


class Verifier:
    """Makes the functions that verify templates at the sites of a model's traces.

    Args:
        when: the calls in which to compare.
        ledger: counts what is verified and compiled.
        on_count: is called when the ledger counted something.
        verified: the templates that need no comparison with ``When.TEMPLATE``.
    """

    def __init__(self, when: When, ledger: Ledger, on_count: Callable[[], None], verified: VerifiedTemplates):
        self._verified = verified
        self._when = when
        self._ledger = ledger
        self._on_count = on_count
        self._numbers = count()
        self._verdicts: dict[str, Verdict] = {}

    def verify(self, site: Site) -> CallTarget:
        """Returns what a trace calls at a site. The names of two sites of one template differ."""
        if self._when is When.TEMPLATE:
            key, compiler = site.call.template.key, site.backend.name
            if self._verified.has(key, compiler):
                return site.call.target
            verdict = self._verdicts.setdefault(key.digest, Verdict())
            judge = partial(self._judge, key, compiler)
            function = make_judging_function(site, verdict, self._ledger.count_verify_compile, judge)
        else:
            function = make_verifying_function(
                site, self._when, self._ledger.count_verify_compile, self._count_verified
            )
        return replace(
            site.call.target, name=f"{site.call.target.name}_verified_{next(self._numbers)}", function=function
        )

    def _judge(self, key: Key, compiler: str, report: str | None) -> None:
        """Counts that a template was compared with its region, or why its regions are called in its place."""
        if report is None:
            self._verified.add(key, compiler)
            self._count_verified()
            return
        self._ledger.count_bypass(DIFFERENT, region=False)
        warn_once(f"{DIFFERENT}: regions of it run as Thunder made them. {report}")

    def _count_verified(self) -> None:
        self._ledger.count_verified()
        self._on_count()


class Comparison:
    """Calls the template of a site, its region, or both to compare them.

    Args:
        site: the region and the call that takes its place.
        on_compile: is told the seconds of each compilation for the region.
    """

    __slots__ = ("_site", "_takes_arities", "_targets", "run", "run_region")

    def __init__(self, site: Site, on_compile: Callable[[float], None]):
        self._site = site
        self._takes_arities = site.call.target.takes_arities
        self._targets = [target for _, target in writes_of(site.call.template.graph)]
        self.run = site.call.target.function
        self.run_region = compile_region(site, on_compile)

    def values_of(self, args: Sequence[Any]) -> Sequence[Any]:
        """Returns the values among a call's arguments, which the region takes too."""
        return args[1:] if self._takes_arities else args

    def compare(self, args: Sequence[Any]) -> Compared:
        """Calls the template, and the region with copies of what it writes in place."""
        values = self.values_of(args)
        copies = [copy_tensor(value) if index in self._targets else value for index, value in enumerate(values)]
        expected = self.run_region(copies)
        results = self.run(*args)
        found = list(find_problems(self._site, [*results, *values], [*expected, *copies]))
        report = write_report(self._site, values, found) if found else None
        written = {index: (values[index], copies[index]) for index in self._targets}
        return Compared(results, expected, written, report)


@dataclass(frozen=True, slots=True)
class Compared:
    """The results of a template and of its region.

    Attributes:
        results: of the template.
        expected: of the region.
        written: by index the tensors that the template wrote in place, each with the copy that the region wrote.
        report: describes the differences; None if there are none.
    """

    results: Sequence[Any]
    expected: Sequence[Any]
    written: Mapping[int, tuple[Any, Any]]
    report: str | None

    def correct(self) -> Sequence[Any]:
        """Writes the region's values into the tensors that the template wrote, and returns the region's results."""
        for tensor, copy in self.written.values():
            tensor.copy_(copy)
        return [self._take_original(result) for result in self.expected]

    def _take_original(self, result: Any) -> Any:
        """Returns the tensor that is written in place if a result is the copy of it, else the result."""
        for tensor, copy in self.written.values():
            if _layout_of([result]) == _layout_of([copy]) and result.data_ptr() == copy.data_ptr():
                return tensor
        return result


def make_verifying_function(
    site: Site, when: When, on_compile: Callable[[float], None], on_equal: Callable[[], None]
) -> Dispatcher:
    """Makes a function that calls the template of a site and raises a ``VerificationError`` where the region differs.

    The function compares nothing while a CUDA graph is captured. A call that raises has written into its inputs all the
    same.

    Args:
        site: the region and the call that takes its place.
        when: the calls in which to compare.
        on_compile: is told the seconds of what is compiled for the comparison only.
        on_equal: is called after the first comparison for each layout that found no difference.
    """
    comparison = Comparison(site, on_compile)
    verified: set[Any] = set()

    def verify(*args: Any) -> Sequence[Any]:
        layout = _layout_of(comparison.values_of(args))
        if (when is When.FIRST and layout in verified) or is_capturing():
            return comparison.run(*args)
        compared = comparison.compare(args)
        if compared.report is not None:
            raise VerificationError(compared.report)
        if layout not in verified:
            verified.add(layout)
            on_equal()
        return compared.results

    return verify


@dataclass(slots=True)
class Verdict:
    """Whether a template computes what its region does, for all of its sites; None before the first comparison."""

    is_right: bool | None = None


def make_judging_function(
    site: Site, verdict: Verdict, on_compile: Callable[[float], None], on_verdict: Callable[[str | None], None]
) -> Dispatcher:
    """Makes a function that calls a site's template, or its region once the template was found to be wrong.

    While a CUDA graph is captured, a template that was not compared yet is not called either.

    Args:
        site: the region and the call that takes its place.
        verdict: of the template, for all of its sites.
        on_compile: is told the seconds of what is compiled for the comparison only.
        on_verdict: is told once for each template: None if there was no difference, else what differed.
    """
    comparison = Comparison(site, on_compile)

    def judge(*args: Any) -> Sequence[Any]:
        if verdict.is_right:
            return comparison.run(*args)
        if verdict.is_right is False or is_capturing():
            return comparison.run_region(comparison.values_of(args))
        compared = comparison.compare(args)
        verdict.is_right = compared.report is None
        on_verdict(compared.report)
        return compared.results if verdict.is_right else compared.correct()

    return judge


def compile_region(site: Site, on_compile: Callable[[float], None]) -> Run:
    """Returns a function that computes the region on its own, and takes and returns what the template does.

    That is the region as its executor made it. Where the executor has another compiler than the template, or the region
    has inputs that it does not use, the template's compiler compiles the region's own definition.

    Args:
        site: the region and the call that takes its place.
        on_compile: is told the seconds of each compilation.
    """
    if None not in site.fallback.inputs and site.own_backend == site.backend.name:
        return _time_compiles(site.fallback, on_compile)
    graph = inline(site.call.template.graph, site.binding.arities)
    executable = Executable(graph, Builder(site.backend), site.instance)
    return lambda args: executable.run_for(args, lambda _, function: on_compile(function.seconds))(args)


def _time_compiles(run: Run, on_compile: Callable[[float], None]) -> Run:
    """Returns a function of an executor that tells the seconds of its first call for each layout: then it compiles."""
    layouts: set[Any] = set()

    def run_timed(args: Sequence[Any]) -> Sequence[Any]:
        layout = _layout_of(args)
        if layout in layouts:
            return run(args)
        start = time.perf_counter()
        results = run(args)
        on_compile(time.perf_counter() - start)
        layouts.add(layout)
        return results

    return run_timed


def _layout_of(values: Sequence[Any]) -> tuple:
    return tuple((v.shape, v.stride(), v.device) if hasattr(v, "stride") else None for v in values)
