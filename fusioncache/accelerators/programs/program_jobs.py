"""What the traces of a program hold of the job: process groups, and what ranks tell each other of collectives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fusioncache.accelerators.programs.process_groups import refer_to_group, resolve_group
from fusioncache.accelerators.programs.references import (
    AgreementReference,
    GroupReference,
    Reference,
    TemplateReference,
)
from fusioncache.accelerators.schedule.agreement import CollectiveAgreement, Stretch, counts_of_process
from fusioncache.cache.peers import find_job_store


def find_job_references(compile_data: Any) -> Callable[[Any], Reference | None]:
    """Returns what says of a value that a trace holds which part of the job it is; None if it is none.

    Args:
        compile_data: Thunder's ``CompileData`` of the model.
    """

    def find(value: Any) -> Reference | None:
        if not isinstance(value, CollectiveAgreement):
            return _refer_to_group(value, compile_data)
        stretches = [(_refer_to_group(each.group, compile_data), tuple(each.messages)) for each in value.stretches]
        found = [(group, messages) for group, messages in stretches if group is not None]
        return AgreementReference(tuple(found)) if len(found) == len(stretches) else None

    return find


def _refer_to_group(value: Any, compile_data: Any) -> GroupReference | None:
    import torch.distributed as distributed

    if not distributed.is_available() or not isinstance(value, distributed.ProcessGroup):
        return None
    return refer_to_group(value, compile_data)


def resolve_of_job(
    compile_data: Any, resolve_template: Callable[[TemplateReference], Callable[..., Any]]
) -> Callable[[Reference], Any]:
    """Returns what gives the parts of the job that references name, and of templates the functions to call.

    Args:
        compile_data: Thunder's ``CompileData`` of the model.
        resolve_template: gives these functions.
    """

    def resolve(reference: Reference) -> Any:
        match reference:
            case GroupReference():
                return resolve_group(reference, compile_data)
            case AgreementReference(stretches):
                return _agree([(resolve_group(group, compile_data), messages) for group, messages in stretches])
            case TemplateReference():
                return resolve_template(reference)
        raise ValueError(f"a {type(reference).__name__} is nothing of the job's")

    return resolve


def _agree(stretches: list[tuple[Any, tuple[str, ...]]]) -> CollectiveAgreement:
    """Returns what tells the other ranks of these collectives, of each group.

    Raises:
        ValueError: if ranks do not meet anywhere.
    """
    from torch.distributed import get_process_group_ranks, get_rank

    store = find_job_store()
    if store is None:
        raise ValueError("the ranks of the job have no store")
    found = [
        Stretch(group, group.group_name, tuple(get_process_group_ranks(group)), messages)
        for group, messages in stretches
    ]
    return CollectiveAgreement(found, get_rank(), store, counts_of_process())
