"""Tasks that compile a store's templates for lengths that no process has used.

A family of programs gives the templates of a model at any length. The requests for its templates at a stored length
give the layouts of arguments and the settings. Together they make requests for the new length. A wrong guess is a
request that no call makes. It costs a compile and nothing else, because an executable is found by its key only.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from fusioncache.accelerators.precompile.entry_compiler import CompileTask
from fusioncache.accelerators.programs.general import TEMPLATE, Identity, list_templates
from fusioncache.accelerators.programs.text import TemplateReference
from fusioncache.accelerators.sizes.families import Family, list_stored_families
from fusioncache.backends.api import backend_class
from fusioncache.cache.generals import find_general_obstacle
from fusioncache.ir import Declined, GeneralInstance, Graph, Instance, Scope
from fusioncache.ir.template import Request
from fusioncache.store import Store
from fusioncache.template.generalization import in_order_of_template, make_family
from fusioncache.template.plan import Plan, inline
from fusioncache.template.skeleton import skeleton_of
from fusioncache.template.strides import lay_out_alike

_Requests = Mapping[tuple[str, Graph], Sequence[Request]]
"""Requests by backend and graph: one for each combination of argument layouts and torch settings."""


def list_unseen(
    store: Store, tasks: Iterable[CompileTask], lengths: Sequence[int]
) -> tuple[list[CompileTask], Counter[str]]:
    """Returns the tasks for lengths of stored families, and the number of families without tasks, by length and reason.

    Args:
        store: contains the families.
        tasks: of all entries of the store.
        lengths: the wanted lengths.
    """
    known: dict[tuple[str, Graph], list[Request]] = defaultdict(list)
    for task in tasks:
        requests = known[task.request.backend, task.request.graph]
        if task.request not in requests:  # the same may have been compiled alone and derived from code for any sizes
            requests.append(task.request)
    found, refused = list[CompileTask](), Counter[str]()
    for family in list_stored_families(store):
        for length in lengths:
            try:
                found += _list_for(family, length, known)
            except Declined as declined:
                declined.require(Scope.LENGTH)
                refused[f"not at length {length}: {declined.reason}"] += 1
    return found, refused


def _list_for(family: Family, length: int, known: _Requests) -> list[CompileTask]:
    """Returns the tasks for one length of a family.

    Raises:
        Declined: if the family does not determine the templates at this length.
    """
    text = family.known[0].text
    before = [text.templates()[name] for name in list_templates(text)]
    after = family.fill_templates(length, lambda found: {name: Identity(name, "") for name in found})
    pairs = ((before[int(name.removeprefix(TEMPLATE))], template) for name, template in after.items())
    return [task for old, new in pairs for task in _list_tasks(old, new, known)]


def _list_tasks(old: TemplateReference, new: TemplateReference, known: _Requests) -> Iterator[CompileTask]:
    """Yields the tasks for a template at a new length: one for each request at a stored length."""
    if not backend_class(new.backend).derives_sizes:
        return  # its code for any sizes serves the length
    for one, other in zip(old.uses, new.uses, strict=True):
        if other.plan is not Plan.INLINE:
            continue
        graph = inline(new.graph, other.arities)
        for request in known.get((old.backend, inline(old.graph, one.arities)), ()):
            layouts = lay_out_alike(request.layouts, graph)
            if layouts is not None:
                compiled, as_general = other.instance.compiled, _generalize(one.instance, other.instance)
                yield CompileTask(replace(request, graph=graph, layouts=layouts), compiled, as_general=as_general)


def _generalize(old: Instance, new: Instance) -> GeneralInstance | None:
    """Returns a region as an instance of the generalization of itself and a region of other sizes.

    None if they are equal, or code for any sizes cannot serve it: a call then requests code for its size alone.
    """
    regions = in_order_of_template(old.compiled), in_order_of_template(new.compiled)
    is_alike = regions[0] != regions[1] and skeleton_of(regions[0]) == skeleton_of(regions[1])
    if not is_alike or find_general_obstacle(regions[1]) is not None:
        return None
    return make_family(regions).find_instance(regions[1])
