"""Tasks that compile what a store knows for lengths that no process has used.

A family of programs says which templates a model has at a length. The requests that compiled its templates at a known
length say how arguments lie, and under which settings. Together they are requests for the new length. A request that no
call makes, because a guess was wrong, costs a compile: what is compiled is found by its own key only.
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
from fusioncache.cache.backend_executables import refuses_general
from fusioncache.ir import Declined, GeneralInstance, Graph, Instance, Scope
from fusioncache.ir.template import Request
from fusioncache.store import Store
from fusioncache.template.generalization import in_order_of_template, make_family
from fusioncache.template.plan import Plan, inline
from fusioncache.template.skeleton import skeleton_of
from fusioncache.template.strides import lay_out_alike

_Requests = Mapping[tuple[str, Graph], Sequence[Request]]
"""Requests by backend and graph: one for each layout of the arguments, and for each of the settings of torch."""


def list_unseen(
    store: Store, tasks: Iterable[CompileTask], lengths: Sequence[int]
) -> tuple[list[CompileTask], Counter[str]]:
    """Returns the tasks for lengths of the stored families, and how many families and lengths have none, by reason.

    Args:
        store: has the families.
        tasks: for all that the store has.
        lengths: the wanted ones.
    """
    known: dict[tuple[str, Graph], list[Request]] = defaultdict(list)
    for task in tasks:
        requests = known[task.request.backend, task.request.graph]
        if task.request not in requests:  # the same may have been compiled alone, and of code for any sizes
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
        Declined: if nothing says which templates the program has there.
    """
    text = family.known[0].text
    before = [text.templates()[name] for name in list_templates(text)]
    after = family.fill_templates(length, lambda found: {name: Identity(name, "") for name in found})
    pairs = ((before[int(name.removeprefix(TEMPLATE))], template) for name, template in after.items())
    return [task for old, new in pairs for task in _list_tasks(old, new, known)]


def _list_tasks(old: TemplateReference, new: TemplateReference, known: _Requests) -> Iterator[CompileTask]:
    """Yields the tasks for a template at a new length: one for each request at a known one."""
    if not backend_class(new.backend).derives_sizes:
        return  # its code for any sizes serves the length
    for one, other in zip(old.uses, new.uses, strict=True):
        if other.plan is not Plan.INLINE:
            continue
        graph = inline(new.graph, other.arities)
        for request in known.get((old.backend, inline(old.graph, one.arities)), ()):
            layouts = lay_out_alike(request.layouts, graph)
            if layouts is not None:
                made = _generalize(one.instance, other.instance)
                yield CompileTask(replace(request, graph=graph, layouts=layouts), other.instance.compiled, made=made)


def _generalize(old: Instance, new: Instance) -> GeneralInstance | None:
    """Returns a region as an instance of what it has in common with one of other sizes.

    None if they are equal, or no code for any sizes serves it: a call asks for code of its own then.
    """
    regions = in_order_of_template(old.compiled), in_order_of_template(new.compiled)
    is_alike = regions[0] != regions[1] and skeleton_of(regions[0]) == skeleton_of(regions[1])
    if not is_alike or refuses_general(regions[1]):
        return None
    return make_family(regions).find_instance(regions[1])
