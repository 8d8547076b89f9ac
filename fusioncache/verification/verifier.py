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
from itertools import count
from typing import Any

from fusioncache.backends.api import Run
from fusioncache.backends.torch_state import is_capturing
from fusioncache.cache.call import CallTarget
from fusioncache.cache.dispatch import Dispatcher
from fusioncache.cache.executable import Builder, Executable
from fusioncache.ir.ops import writes_of
from fusioncache.process.settings import VERIFY
from fusioncache.process.warning import warn_once
from fusioncache.record.ledger import Ledger
from fusioncache.template.expand import inline
from fusioncache.verification.mismatch import Site, find_problems, write_report
from fusioncache.verification.tensors import copy_tensor

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
    """

    def __init__(self, when: When, ledger: Ledger, on_count: Callable[[], None]):
        self._when = when
        self._ledger = ledger
        self._on_count = on_count
        self._numbers = count()
        self._verdicts: dict[str, Verdict] = {}

    def verify(self, site: Site) -> CallTarget:
        """Returns what a trace calls at a site. The names of two sites of one template differ."""
        if self._when is When.TEMPLATE:
            verdict = self._verdicts.setdefault(site.call.template.key.digest, Verdict())
            function = make_judging_function(site, verdict, self._ledger.count_verify_compile, self._judge)
        else:
            function = make_verifying_function(
                site, self._when, self._ledger.count_verify_compile, self._count_verified
            )
        return replace(
            site.call.target, name=f"{site.call.target.name}_verified_{next(self._numbers)}", function=function
        )

    def _judge(self, report: str | None) -> None:
        """Counts that a template was compared with its region, or why its regions are called in its place."""
        if report is None:
            self._count_verified()
            return
        self._ledger.count_bypass(DIFFERENT, region=False)
        warn_once(f"{DIFFERENT}: regions of it run as Thunder made them. {report}")

    def _count_verified(self) -> None:
        self._ledger.count_verified()
        self._on_count()


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
    run, takes_arities = site.call.target.function, site.call.target.takes_arities
    run_region = compile_region(site, on_compile)
    targets = [target for _, target in writes_of(site.call.template.graph)]
    verified: set[Any] = set()

    def verify(*args: Any) -> Sequence[Any]:
        values = args[1:] if takes_arities else args
        layout = _layout_of(values)
        if (when is When.FIRST and layout in verified) or is_capturing():
            return run(*args)
        own_values = [copy_tensor(value) if index in targets else value for index, value in enumerate(values)]
        expected = run_region(own_values)
        results = run(*args)
        found = list(find_problems(site, [*results, *values], [*expected, *own_values]))
        if found:
            raise VerificationError(write_report(site, values, found))
        if layout not in verified:
            verified.add(layout)
            on_equal()
        return results

    return verify


@dataclass(slots=True)
class Verdict:
    """Whether a template computes what its region does, as all its sites know it: None before the first comparison."""

    is_right: bool | None = None


def make_judging_function(
    site: Site, verdict: Verdict, on_compile: Callable[[float], None], on_verdict: Callable[[str | None], None]
) -> Dispatcher:
    """Makes a function that calls a site's template, or its region if the template computed something else once.

    Args:
        site: the region and the call that takes its place.
        verdict: of the template, for all of its sites.
        on_compile: is told the seconds of what is compiled for the comparison only.
        on_verdict: is told once for each template: None if there was no difference, else what differed.
    """
    run, takes_arities = site.call.target.function, site.call.target.takes_arities
    run_region = compile_region(site, on_compile)
    targets = [target for _, target in writes_of(site.call.template.graph)]

    def judge(*args: Any) -> Sequence[Any]:
        values = args[1:] if takes_arities else args
        if verdict.is_right or is_capturing():
            return run(*args)
        if verdict.is_right is False:
            return run_region(values)
        own_values = [copy_tensor(value) if index in targets else value for index, value in enumerate(values)]
        expected = run_region(own_values)
        results = run(*args)
        found = list(find_problems(site, [*results, *values], [*expected, *own_values]))
        verdict.is_right = not found
        if not found:
            on_verdict(None)
            return results
        on_verdict(write_report(site, values, found))
        written = {index: values[index].copy_(own_values[index]) for index in targets}
        return [_in_place_of(result, own_values, written) for result in expected]

    return judge


def _in_place_of(result: Any, copies: Sequence[Any], written: Mapping[int, Any]) -> Any:
    """Returns the tensor that a region wrote into where its result is the copy of that tensor, else the result."""
    for index, tensor in written.items():
        copy = copies[index]
        if _layout_of([result]) == _layout_of([copy]) and result.data_ptr() == copy.data_ptr():
            return tensor
    return result


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
