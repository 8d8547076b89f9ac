"""Process groups in programs of models that ranks share: what is compared of a group, and how a program names one.

A group is made anew in each job, and has no value of its own. What a program depends on of it are its ranks, how many
the job has, and the libraries that carry its messages. A program names a group by its place among those of the model;
which rank it is that runs is in no program, so that all ranks may use the same one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from fusioncache.accelerators.programs.references import GroupReference
from fusioncache.ir.errors import Declined, Scope
from fusioncache.ir.key_text import NamedValue

if TYPE_CHECKING:
    from fusioncache.accelerators.programs.describe import Describer

_LEFT_OUT: Mapping[str, frozenset[str]] = {
    "thunder.distributed.transforms.fsdp_v2.FSDPTransform": frozenset({"process_group", "global_rank"}),
    "thunder.distributed.transforms.ddp_v2.DDPTransform": frozenset({"process_group"}),
    "thunder.transforms.materialization.MaterializationTransform": frozenset({"init", "have_materialized"}),
}
"""Transforms of Thunder's that share a model, and those of their attributes that no trace depends on or that are
described with the model: groups, the rank, and what gave parameters their values."""


def find_groups(compile_data: Any) -> tuple[Any, ...]:
    """Returns the process groups of a model that ranks share, each once; none if it is not shared.

    Args:
        compile_data: Thunder's ``CompileData`` of the model.
    """
    transforms = getattr(compile_data, "transforms", None) or ()
    given = [compile_data.process_group_for_ddp, *(getattr(each, "process_group", None) for each in transforms)]
    return tuple({id(group): group for group in given if group is not None}.values())


def describe_group(group: Any) -> str:
    """Returns what a program depends on of a process group: its ranks, the size of the job, and its libraries."""
    from torch.distributed import get_backend_config, get_process_group_ranks, get_world_size

    ranks = ",".join(map(str, get_process_group_ranks(group)))
    return f"ranks {ranks} of {get_world_size()} over {get_backend_config(group)}"


def read_groups(compile_data: Any) -> Iterator[NamedValue]:
    """Yields what a program depends on of the job that it is for: nothing if no ranks share the model.

    Raises:
        Declined: if a group cannot be described, as one that this rank is not in, or that is gone.
    """
    groups = find_groups(compile_data)
    if not groups:
        return
    try:
        yield "process_groups", len(groups)
        for number, group in enumerate(groups):
            yield f"process_groups.{number}", describe_group(group)
        yield "process_groups.job", describe_group(None)
    except Exception as error:  # torch raises anything here
        raise Declined(f"a process group of the model cannot be described: {error}", Scope.PROGRAM) from error


def refer_to_group(group: Any, compile_data: Any) -> GroupReference | None:
    """Returns how a program names a process group; None if it is none of the model's."""
    for number, own in enumerate(find_groups(compile_data)):
        if own is group:
            return GroupReference(number, describe_group(group))
    return None


def resolve_group(reference: GroupReference, compile_data: Any) -> Any:
    """Returns the process group that a program names.

    Raises:
        ValueError: if the model has no such group, or it is another one.
    """
    groups = find_groups(compile_data)
    if reference.number >= len(groups):
        raise ValueError(f"the model has no process group {reference.number}")
    group = groups[reference.number]
    if describe_group(group) != reference.text:
        raise ValueError(f"process group {reference.number} is another one: {describe_group(group)}")
    return group


def write_sharing_key(describer: Describer, transform: Any) -> str | None:
    """Returns what a program depends on of a transform of Thunder's that shares a model; None if it is none of these.

    Its code is among Thunder's sources, which the key has. Its group is in the key by itself. Thunder goes through the
    names of a tied parameter as a set of texts, whose order is another one in each process, and looks parameters up by
    their names: so they are compared by name.

    Raises:
        Declined: if something else of it cannot be described.
    """
    cls = type(transform)
    name = f"{cls.__module__}.{cls.__qualname__}"
    left_out = _LEFT_OUT.get(name)
    if left_out is None:
        return None
    kept = {key: _sort(value) for key, value in sorted(vars(transform).items()) if key not in left_out}
    return f"{name} {describer.describe(kept)}"


def _sort(value: Any) -> Any:
    """Returns what is known by the names of parameters in the order of the names, anything else as it is."""
    is_named = type(value) is dict and all(type(name) is str for name in value)
    return dict(sorted(value.items())) if is_named else value
