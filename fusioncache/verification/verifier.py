"""Verify mode compiles each shared region alone as well, and compares its results with the template's.

``FUSIONCACHE_VERIFY=1`` or ``FusionCache(verify=True)`` compares at each site of a trace that calls a template, in its
first call for each layout of the arguments; ``FUSIONCACHE_VERIFY=all`` or ``verify="all"`` compares in every call. Both
compute everything twice where they compare, wait for the GPU, and compile as much as Thunder would without fusioncache.
The ledger counts verified regions, and counts compiles for verification separately.

In an untested Thunder, a program calls templates only once all of them are verified, so that nothing unverified is
stored. The store lists the verified templates, so that later processes need not verify them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import torch

from fusioncache.backends.api import Backend, Run
from fusioncache.backends.torch_settings import is_capturing
from fusioncache.cache.call import CallTarget, Dispatcher, Fallback, TemplateCall
from fusioncache.cache.executable import Builder, Executable
from fusioncache.ir import Binding, Graph, Instance, Key
from fusioncache.ir.graph import pick
from fusioncache.ir.ops import writes_of
from fusioncache.ir.template import count_elements, layouts_of
from fusioncache.observe.record.database import record_path
from fusioncache.observe.record.ledger import Ledger
from fusioncache.process.files import make_folders, open_privately
from fusioncache.process.settings import VERIFY
from fusioncache.process.warning import warn_once
from fusioncache.store import Store
from fusioncache.store.entry import VERIFIED_SLOT
from fusioncache.store.store import WRITE_SECONDS
from fusioncache.template.canonical import canonicalize
from fusioncache.template.plan import Plan, Reordered, Rules, inline, keeps_every_bit, rules_of
from fusioncache.template.strides import strided_of
from fusioncache.template.text import graph_text
from fusioncache.template.writer import instance_of

_ALIGNMENT = 64
"""Alignment in bytes of torch's allocations. A kernel's loads, and so its order of summation, may depend on it."""


def describe_difference(found: Any, expected: Any, rule: Reordered | None) -> str | None:
    """Returns the difference of a result, or None. Without a rule every bit must be the same."""
    if _describe(found) != _describe(expected):
        return f"is {_describe(found)} where the region has {_describe(expected)}"
    if not isinstance(expected, torch.Tensor):
        return None if repr(found) == repr(expected) else f"is {found!r} where the region has {expected!r}"
    laid, wanted = (list(strided_of(each).apparent) for each in (found, expected))
    if laid != wanted:
        return f"lies in memory by strides {laid} where the region's does by {wanted}"
    one, other = _as_bits(found), _as_bits(expected)
    if torch.equal(one, other):
        return None
    off = (one != other).reshape(expected.numel(), -1).any(1)
    one, other = _widen(found), _widen(expected)
    gap = (one - other).abs().nan_to_num(nan=torch.inf, posinf=torch.inf)
    asked = "every bit must be the same"
    if rule is not None:
        sizes = other.abs()[other.isfinite()]
        allowed = rule.relative * (sizes.max().item() if sizes.numel() else 0.0)
        off &= (gap > allowed) & ~(one.isnan() & other.isnan())
        asked = f"{allowed:.3g} is allowed for {rule}"
    many = int(off.sum())
    most = gap[off].max().item() if many else 0.0
    return f"differs in {many} of {expected.numel()} elements, by {most:.6g} at most; {asked}" if many else None


def _describe(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return f"a {type(value).__name__}"
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)} on {value.device}"


def _as_bits(tensor: torch.Tensor) -> torch.Tensor:
    packed = tensor.detach().resolve_conj().resolve_neg().contiguous()
    # A single element is contiguous with any stride.
    return packed.as_strided((packed.numel(),), (1,)).view(torch.uint8)


def _widen(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().reshape(-1).to(torch.complex128 if tensor.is_complex() else torch.float64)


def copy_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a copy with the same layout and alignment."""
    start = tensor.data_ptr() % _ALIGNMENT // tensor.element_size()
    memory = tensor.new_empty(start + count_elements(tensor.shape, tensor.stride()))
    return memory.as_strided(tensor.shape, tensor.stride(), start).copy_(tensor.detach())


LIMIT = 16
"""The most pairs of a Thunder and a compiler for which a template is stored as verified.

When this is reached, the list starts anew.
"""


@dataclass(frozen=True, slots=True)
class VerifiedTemplates:
    """The templates that were verified.

    Attributes:
        store: has the list, or None.
        sources: the digest of the sources of the installed Thunder, which makes the regions.
    """

    store: Store | None
    sources: str

    def has(self, key: Key, compiler: str) -> bool:
        """True if a template by this compiler was verified. Never raises."""
        return f"{self.sources} {compiler}" in self._list_marks(key)

    def add(self, key: Key, compiler: str) -> None:
        """Marks a template by a compiler as verified. Never raises."""
        if self.store is None or not self.sources:
            return
        with self.store.take_turn(key, VERIFIED_SLOT, WRITE_SECONDS):
            known, mark = self._list_marks(key), f"{self.sources} {compiler}"
            if mark not in known:
                marks = dict.fromkeys((*(known if len(known) < LIMIT else ()), mark), b"")
                self.store.replace(key, VERIFIED_SLOT, marks, name="verified template")

    def _list_marks(self, key: Key) -> list[str]:
        """Returns the marks of a template, which are the names of its artifacts in the store."""
        return list((self.store.load(key, VERIFIED_SLOT, asks_remote=False) if self.store else None) or ())


@dataclass(frozen=True, slots=True)
class Site:
    """A region of a trace, and the call that replaces it.

    Attributes:
        fusion: the region's fused bound symbol.
        outputs: the region's names of the template's outputs.
        binding: maps the region's values to the template's slots.
        call: the call of the template.
        backend: compiles the template.
        own_backend: the name of the backend of the region's executor.
        fallback: the region as its executor made it.
        instance: the region as it was read.
    """

    fusion: Any
    outputs: tuple[str, ...]
    binding: Binding
    call: TemplateCall
    backend: Backend
    own_backend: str
    fallback: Fallback
    instance: Instance


def _rules_of(site: Site) -> Rules:
    """Returns the rules for equal results. The template must have been called: they depend on its executables."""
    template, arities = site.call.template.graph, site.binding.arities
    executables = site.call.executables(arities)
    inlined = len(executables) == 1 and _is_inlined(site, executables[0])
    alike = inlined and executables[0].sources == (site.instance.region,)
    plan = Plan.INLINE if inlined else Plan.FOLD
    return rules_of(template, exact=keeps_every_bit(template, plan, alike=alike))


def _is_inlined(site: Site, executable: Executable) -> bool:
    return executable.graph == inline(site.call.template.graph, site.binding.arities)


def find_problems(site: Site, found: Sequence[Any], expected: Sequence[Any]) -> Iterator[str]:
    """Yields the differences of two lists, each of the template's outputs followed by its current inputs."""
    rules = _rules_of(site)
    outputs = len(rules.outputs)
    names = [f"output {slot} ({name})" for slot, name in enumerate(site.outputs)]
    names += [f"input {target}, which it writes in place," for target in rules.writes]
    indices = [*range(outputs), *(outputs + target for target in rules.writes)]
    for name, index, rule in zip(names, indices, [*rules.outputs, *rules.writes.values()], strict=True):
        problem = describe_difference(found[index], expected[index], rule)
        if problem:
            yield f"{name} {problem}"


def write_report(site: Site, args: Sequence[Any], found: Sequence[str]) -> str:
    """Writes both definitions into a file, and returns a message with the differences and the path."""
    name, region = site.call.template.name, site.fusion.sym.name
    head = f"{name} computes something else than {region}, in whose place it is called"
    parts = [("what differs", lambda: "\n".join(found)), *_definitions(site, args)]
    written = [(title, _shield(part)) for title, part in parts]
    text = f"{head}.\n\n" + "\n".join(f"# {title}\n\n{part.rstrip()}\n" for title, part in written if part)
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return f"{head}: {found[0]}{more}. {_save(f'{name}-{region}', text)}"


def _save(name: str, text: str) -> str:
    """Writes a report into the cache directory, and returns a sentence with its path."""
    path: Path = record_path().parent / "mismatches" / f"{name}-{os.getpid()}-{time.time_ns()}.txt"
    try:
        make_folders(path.parent)
        with open(path, "w", opener=open_privately) as file:
            file.write(text)
    except OSError as error:
        return f"Both definitions could not be written to {path} ({error.strerror})"
    return f"Both definitions are in {path}"


def _shield(part: Callable[[], str | None]) -> str | None:
    """Returns a part of a report. An error in it must not hide the mismatch."""
    try:
        return part()
    except Exception as error:
        return f"not available: {error!r}"


def _definitions(site: Site, args: Sequence[Any]) -> Iterator[tuple[str, Callable[[], str | None]]]:
    """Yields titles and definitions of the region and of its template; None if the compiler takes no text."""
    instance, template, backend = site.instance, site.call.template, site.backend
    yield f"the region {site.fusion.sym.name} as Thunder wrote it", lambda: str(site.fusion)
    yield "the region as it was read", lambda: graph_text(instance.region)
    yield f"the template {template.name}, in canonical form", lambda: graph_text(template.graph)
    yield (
        f"{backend.title}'s definition of the region",
        lambda: backend.definition(instance.region, pick(args, instance.inputs)),
    )
    for executable in site.call.executables(site.binding.arities):
        values = args if _is_inlined(site, executable) else None
        for source in executable.sources:
            yield "what was compiled for the template", partial(graph_text, source)
            yield f"{backend.title}'s definition for the template", partial(_define_source, backend, source, values)


def _define_source(backend: Backend, source: Graph, args: Sequence[Any] | None) -> str | None:
    """Returns the definition for the layout of a template's arguments; for contiguous tensors if ``args`` is None."""
    if args is None:
        return backend.definition(source)
    inputs = instance_of(source, canonicalize(source).binding).inputs
    return backend.definition(source, pick(args, inputs))


DIFFERENT = "a template computed something else than its region in a Thunder that was not tried"


class VerificationError(RuntimeError):
    """A template's results differ from its region's. The message has the differences and the path of a report."""


class VerifyMode(Enum):
    """The calls of a template in which its results are compared.

    ``FIRST`` is the first call for each layout of each site, ``EVERY`` each call. With these a difference raises.
    ``TEMPLATE`` is the first call of each template, at any of its sites: no option selects it, it is used in an
    untested Thunder. With it a difference causes a warning, and the regions are called from then on.
    """

    FIRST = "1"
    EVERY = "all"
    TEMPLATE = "template"


def choose_mode(verify: bool | str | None) -> VerifyMode | None:
    """Returns when to compare, by the option of ``FusionCache`` and, if that is not False, by the environment.

    Returns:
        When to compare; None for never.

    Raises:
        TypeError: if the option is none of True, False, "all" and None.
        ValueError: if the environment variable is none of 0, 1 and all.
    """
    if not (verify is None or isinstance(verify, bool) or verify == VerifyMode.EVERY.value):
        raise TypeError(f'verify must be True, False, "all" or None, got {verify!r}')
    if verify is False:
        return None
    said = VERIFY.get_text()
    if VerifyMode.EVERY.value in (verify, said):
        return VerifyMode.EVERY
    return VerifyMode.FIRST if verify or said == "1" else None


class Verifier:
    """Makes the functions that verify templates at the sites of a model's traces.

    Args:
        mode: the calls in which to compare.
        ledger: counts verifications and compiles.
        on_count: called after the ledger counted something.
        verified: the templates that need no comparison with ``VerifyMode.TEMPLATE``.
    """

    def __init__(self, mode: VerifyMode, ledger: Ledger, on_count: Callable[[], None], verified: VerifiedTemplates):
        self._verified = verified
        self._mode = mode
        self._ledger = ledger
        self._on_count = on_count
        self._numbers = count()
        self._verdicts: dict[str, bool] = {}  # by the digest of a template, for all of its sites

    def verify(self, site: Site) -> CallTarget:
        """Returns the callable for a site of a trace. Two sites of one template get different names.

        The function compares nothing while a CUDA graph is captured.
        """
        target, judges = site.call.target, self._mode is VerifyMode.TEMPLATE
        if judges and self._verified.has(target.template.key, site.backend.name):
            return target
        comparison = RegionComparison(site, self._count_compile)
        function = self._make_judge(comparison, site) if judges else self._make_check(comparison)
        return replace(target, name=f"{target.name}_verified_{next(self._numbers)}", function=function)

    def _make_check(self, comparison: RegionComparison) -> Dispatcher:
        """Returns a function that calls the template and raises a ``VerificationError`` if the region differs.

        A call that raises has written into its inputs nevertheless.
        """
        verified: set[Any] = set()

        def check(*args: Any) -> Sequence[Any]:
            layout = _layout_of(comparison.values_of(args))
            if (self._mode is VerifyMode.FIRST and layout in verified) or is_capturing():
                return comparison.run(*args)
            compared = comparison.compare(args)
            if compared.report is not None:
                raise VerificationError(compared.report)
            if layout not in verified:
                verified.add(layout)
                self._count_verified()
            return compared.results

        return check

    def _make_judge(self, comparison: RegionComparison, site: Site) -> Dispatcher:
        """Returns a function that calls the template, or its region once the template was found to differ.

        While a CUDA graph is captured, it calls the region of a template that was not compared yet.
        """
        key, verdicts = site.call.template.key, self._verdicts

        def judge(*args: Any) -> Sequence[Any]:
            is_right = verdicts.get(key.digest)
            if is_right:
                return comparison.run(*args)
            if is_right is False or is_capturing():
                return comparison.run_region(comparison.values_of(args))
            compared = comparison.compare(args)
            verdicts[key.digest] = compared.report is None
            if compared.report is None:
                self._verified.add(key, site.backend.name)
                self._count_verified()
                return compared.results
            self._ledger.count_bypass(DIFFERENT, region=False)
            warn_once(f"{DIFFERENT}: regions of it run as Thunder made them. {compared.report}")
            return compared.correct()

        return judge

    def _count_compile(self, seconds: float) -> None:
        self._ledger.count("verify_compiles")
        self._ledger.count("verify_compile_seconds", seconds)

    def _count_verified(self) -> None:
        self._ledger.count("verified")
        self._on_count()


class RegionComparison:
    """Calls a site's template, its region, or both to compare them.

    Args:
        site: the region and the call that replaces it.
        on_compile: called with the seconds of each compilation for the region.
    """

    __slots__ = ("_site", "_takes_arities", "_targets", "run", "run_region")

    def __init__(self, site: Site, on_compile: Callable[[float], None]):
        self._site = site
        self._takes_arities = site.call.target.takes_arities
        self._targets = [target for _, target in writes_of(site.call.template.graph)]
        self.run = site.call.target.function
        self.run_region = compile_region(site, on_compile)

    def values_of(self, args: Sequence[Any]) -> Sequence[Any]:
        """Returns a call's arguments without arities, as the region takes them."""
        return args[1:] if self._takes_arities else args

    def compare(self, args: Sequence[Any]) -> Compared:
        """Calls the template, and the region with copies of the tensors that it writes in place."""
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
        written: by index, the tensors that the template wrote in place, each with the copy that the region wrote.
        report: describes the differences; None if there are none.
    """

    results: Sequence[Any]
    expected: Sequence[Any]
    written: Mapping[int, tuple[Any, Any]]
    report: str | None

    def correct(self) -> Sequence[Any]:
        """Copies the region's values into the tensors that the template wrote, and returns the region's results."""
        for tensor, copy in self.written.values():
            tensor.copy_(copy)
        return [self._take_original(result) for result in self.expected]

    def _take_original(self, result: Any) -> Any:
        """Returns the original tensor if a result is its copy that the region wrote in place, else the result."""
        for tensor, copy in self.written.values():
            if _layout_of([result]) == _layout_of([copy]) and result.data_ptr() == copy.data_ptr():
                return tensor
        return result


def compile_region(site: Site, on_compile: Callable[[float], None]) -> Run:
    """Returns a function that computes the region alone, with the arguments and results of the template.

    It is the region as its executor made it. If the executor has another compiler than the template, or the region has
    unused inputs, the template's compiler compiles the region's own definition instead.

    Args:
        site: the region and the call that replaces it.
        on_compile: called with the seconds of each compilation.
    """
    if None not in site.fallback.inputs and site.own_backend == site.backend.name:
        return _time_compiles(site.fallback, on_compile)
    graph = inline(site.call.template.graph, site.binding.arities)
    executable = Executable(graph, Builder(site.backend), site.instance)
    return lambda args: executable.run_for(args, layouts_of(args), lambda _, function: on_compile(function.seconds))(
        args
    )


def _time_compiles(run: Run, on_compile: Callable[[float], None]) -> Run:
    """Returns an executor's function that reports the seconds of its first call for each layout, when it compiles."""
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
