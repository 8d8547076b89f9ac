"""Finds what a template computes otherwise than one of its regions, and reports it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fusioncache.backends.api import Backend
from fusioncache.cache.call import Fallback, TemplateCall
from fusioncache.cache.executable import Executable
from fusioncache.ir import Binding, Graph, Instance
from fusioncache.ir.permutation import pick
from fusioncache.observe.record.schema import record_path
from fusioncache.process.private_files import make_folders, open_privately
from fusioncache.template.canonical import canonicalize
from fusioncache.template.exactness import Rules, keeps_every_bit, rules_of
from fusioncache.template.expand import inline
from fusioncache.template.instance import instance_of
from fusioncache.template.plan import Plan
from fusioncache.template.text import graph_text
from fusioncache.verification.tensors import describe_difference


@dataclass(frozen=True, slots=True)
class Site:
    """A region of a trace, and the call that takes its place.

    Attributes:
        fusion: the region's fused bound symbol.
        outputs: the name that the region gives to each output of its template.
        binding: says which of the region's values fills which slot of the template.
        call: the call of the template.
        backend: compiles the template.
        own_backend: the name of the backend with which the region's executor compiles it.
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
    """Returns what must be the same. The template must have been called: only then it is known what was compiled."""
    template, arities = site.call.template.graph, site.binding.arities
    executables = site.call.executables(arities)
    inlined = len(executables) == 1 and _is_inlined(site, executables[0])
    alike = inlined and executables[0].sources == (site.instance.region,)
    plan = Plan.INLINE if inlined else Plan.FOLD
    return rules_of(template, exact=keeps_every_bit(template, plan, alike=alike))


def _is_inlined(site: Site, executable: Executable) -> bool:
    return executable.graph == inline(site.call.template.graph, site.binding.arities)


def find_problems(site: Site, found: Sequence[Any], expected: Sequence[Any]) -> Iterator[str]:
    """Yields what differs between two lists of the template's outputs, followed by its inputs as they are now."""
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
    """Writes both definitions into a file, and returns what was found and where the file is."""
    name, region = site.call.template.name, site.fusion.sym.name
    head = f"{name} computes something else than {region}, in whose place it is called"
    parts = [("what differs", lambda: "\n".join(found)), *_definitions(site, args)]
    written = [(title, _shield(part)) for title, part in parts]
    text = f"{head}.\n\n" + "\n".join(f"# {title}\n\n{part.rstrip()}\n" for title, part in written if part)
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return f"{head}: {found[0]}{more}. {_save(f'{name}-{region}', text)}"


def _save(name: str, text: str) -> str:
    """Writes a report into the cache directory, and returns where it is."""
    path: Path = record_path().parent / "mismatches" / f"{name}-{os.getpid()}-{time.time_ns()}.txt"
    try:
        make_folders(path.parent)
        with open(path, "w", opener=open_privately) as file:
            file.write(text)
    except OSError as error:
        return f"Both definitions could not be written to {path} ({error.strerror})"
    return f"Both definitions are in {path}"


def _shield(part: Callable[[], str | None]) -> str | None:
    """Returns a part of a report. What goes wrong in it must not hide the mismatch."""
    try:
        return part()
    except Exception as error:
        return f"not available: {error!r}"


def _definitions(site: Site, args: Sequence[Any]) -> Iterator[tuple[str, Callable[[], str | None]]]:
    """Yields the definitions of the region and of its template; None where the compiler is given no text."""
    instance, template = site.instance, site.call.template
    yield f"the region {site.fusion.sym.name} as Thunder wrote it", lambda: str(site.fusion)
    yield "the region as it was read", lambda: graph_text(instance.region)
    yield f"the template {template.name}, in canonical form", lambda: graph_text(template.graph)
    executables = site.call.executables(site.binding.arities)
    for executable in executables:
        for source in executable.sources:
            yield "what was compiled for the template", partial(graph_text, source)
    yield f"{site.backend.title}'s definition of the region", lambda: _define_region(site, args)
    for executable in executables:
        inlined = len(executables) == 1 and _is_inlined(site, executable)
        for source in executable.sources:
            yield (
                f"{site.backend.title}'s definition for the template",
                partial(_define_source, site.backend, source, args if inlined else None),
            )


def _define_region(site: Site, args: Sequence[Any]) -> str | None:
    # What Thunder's wrapper ran, if it was what ran.
    definition = getattr(site.fallback.call, "last_used", None)
    if definition is not None and site.own_backend == site.backend.name:
        return repr(definition)
    return site.backend.definition(site.instance.region, pick(args, site.instance.inputs))


def _define_source(backend: Backend, source: Graph, args: Sequence[Any] | None) -> str | None:
    """Returns the definition for the layout of a template's arguments; for contiguous tensors if there are none."""
    if args is None:
        return backend.definition(source)
    inputs = instance_of(source, canonicalize(source).binding).inputs
    return backend.definition(source, pick(args, inputs))
