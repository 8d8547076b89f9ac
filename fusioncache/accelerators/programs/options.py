"""The ingredient ``jit options``: what ``thunder.jit`` was told, its executors and its transforms with their options.

A transform or an executor may change a program in any way, and nothing of it is watched. So each transform has to say
what it depends on. There is a small protocol for this, and any transform or executor may follow it::

    def cache_key(self) -> str: ...

It returns what the programs that this takes part in depend on, beside its inputs: options, versions. That is stored as
it is, so there must be no secret in it. Those of Thunder's own that are listed here do without. Programs with any other
are not kept.

A process group is made anew in each job, and has no value of its own. What a program depends on of it are its ranks,
how many the job has, and the libraries that carry its messages. A program names a group by its place among those of the
model. No program says on which rank it runs, so that all ranks may use the same one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from typing import Any

from fusioncache.accelerators.programs.definitions import Definitions
from fusioncache.accelerators.programs.describe import Describer
from fusioncache.accelerators.programs.functions import describe_group
from fusioncache.accelerators.programs.text import (
    AgreementReference,
    GroupReference,
    Reference,
    TemplateReference,
)
from fusioncache.accelerators.schedule.scheduling import CollectiveAgreement, Stretch, counts_of_process
from fusioncache.cache.peers import find_job_store
from fusioncache.ir import Declined, Scope, is_declined
from fusioncache.ir.keys import NamedValue

_LEFT_OUT: Mapping[str, frozenset[str]] = {
    "thunder.transforms.constant_folding.ConstantFolding": frozenset(),
    "thunder.transforms.extraction_only_prologue_transform.ExtractionOnlyPrologueTransform": frozenset(),
    "thunder.transforms.prune_prologue_checks.PrunePrologueChecks": frozenset(),
    "thunder.distributed.transforms.fsdp_v2.FSDPTransform": frozenset({"process_group", "global_rank"}),
    "thunder.distributed.transforms.ddp_v2.DDPTransform": frozenset({"process_group"}),
    "thunder.transforms.materialization.MaterializationTransform": frozenset({"init", "have_materialized"}),
}
"""Transforms of Thunder's whose attributes say all that they depend on, and those attributes that no trace depends on
or that are described with the model: groups, the rank, and what gave parameters their values."""


def find_groups(compile_data: Any) -> tuple[Any, ...]:
    """Returns the process groups of a model that ranks share, each once; none if it is not shared.

    Args:
        compile_data: Thunder's ``CompileData`` of the model.
    """
    transforms = getattr(compile_data, "transforms", None) or ()
    given = [compile_data.process_group_for_ddp, *(getattr(each, "process_group", None) for each in transforms)]
    return tuple({id(group): group for group in given if group is not None}.values())


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


def _sort(value: Any) -> Any:
    """Returns what is known by the names of parameters in the order of the names, anything else as it is."""
    is_named = type(value) is dict and all(type(name) is str for name in value)
    return dict(sorted(value.items())) if is_named else value


def find_job_references(compile_data: Any) -> Callable[[Any], Reference | None]:
    """Returns what says of a value that a trace holds which part of the job it is; None if it is none.

    Args:
        compile_data: Thunder's ``CompileData`` of the model.
    """

    def find(value: Any) -> Reference | None:
        if not isinstance(value, CollectiveAgreement):
            return refer_to_group(value, compile_data)
        stretches = [(refer_to_group(each.group, compile_data), tuple(each.messages)) for each in value.stretches]
        found = [(group, messages) for group, messages in stretches if group is not None]
        return AgreementReference(tuple(found)) if len(found) == len(stretches) else None

    return find


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


_INSTEAD = {"thunder.transforms.cudagraph.CUDAGraphTransform": "use FusionCache(graphs=True) instead"}
"""Transforms of Thunder's that fusioncache has a replacement for, and the advice to use it."""

_ELSEWHERE = frozenset(
    {
        "fn",
        "executor_lookasides",
        "executors_list",
        "transforms",
        "compile_options",
        "debug_options",
        "langctx",
        "process_group_for_ddp",
        "autocast_stack",
        "is_grad_enabled",
        "get_computation_and_inputs",
        "_get_computation_and_inputs",
        "populate_cache_info",
        "acquire_initial_trace",
        "apply_transforms_and_build_cache_entry",
        "debug_log",
        "_thunder_module_map",
    }
)
"""Attributes of Thunder's ``CompileData`` that are described in another way or elsewhere, or are functions and tables
of Thunder's own. All others are options."""

_TABLES = frozenset({"_name", "_implmap", "_lookasides", "_opmap"})
"""What each executor has. Nothing is looked up in its ``opmap`` while a program is derived."""


def read_options(describer: Describer, definitions: Definitions, compile_data: Any) -> Iterator[NamedValue]:
    """Yields the options of ``thunder.jit`` by name, then the executors, then the transforms, both in their order.

    Raises:
        Declined: if a transform does not say what it depends on, or an option cannot be described.
    """
    yield from _read_own_options(describer, definitions, compile_data)
    yield "executors", " ".join(_name_of(executor) for executor in compile_data.executors_list)
    for executor in compile_data.executors_list:
        yield from read_executor(definitions, executor)
    yield "lookasides", definitions.name(compile_data.executor_lookasides)
    for number, transform in enumerate(compile_data.transforms):
        yield f"transforms.{number}", write_transform(describer, transform)
        # What the class does besides its code, the transform has said.
        with definitions.trusting():
            yield f"transforms.{number}.class", definitions.name(type(transform))


def _read_own_options(describer: Describer, definitions: Definitions, compile_data: Any) -> Iterator[NamedValue]:
    known = vars(compile_data)
    for name in sorted(known.keys() - _ELSEWHERE):
        yield name, definitions.name(known[name])
    yield "langctx", compile_data.langctx.name
    for group in ("compile_options", "debug_options"):
        options = known[group] if isinstance(known[group], dict) else vars(known[group])
        for name, value in sorted(options.items(), key=lambda option: str(option[0])):
            yield f"{group}.{_write_name(name)}", describer.describe(value, name)


def _name_of(executor: Any) -> str:
    """Returns an executor's name. That of the one that Thunder makes for each function is its id."""
    from fusioncache.thunder_adapter.accelerator_api import TemporaryExecutor

    return "(ad-hoc)" if type(executor) is TemporaryExecutor else _write_name(executor.name)


def read_executor(definitions: Definitions, executor: Any) -> Iterator[NamedValue]:
    """Yields what an executor is, and what it does with each operation.

    Raises:
        Declined: if its ``cache_key`` fails, its fuel is limited, or something in its tables cannot be described.
    """
    from fusioncache.thunder_adapter.accelerator_api import FUEL_LEVEL, TemporaryExecutor

    name = f"executors.{_name_of(executor)}"
    own = ask_for_key(executor)
    with definitions.trusting() if own is not None else nullcontext():
        yield f"{name}.class", definitions.name(type(executor))
    yield f"{name}.version", str(executor.version)
    if own is not None:
        yield f"{name}.key", own
    elif getattr(executor, "_optimization_fuel", FUEL_LEVEL.UNLIMITED) is not FUEL_LEVEL.UNLIMITED:
        raise Declined(
            f"the optimization fuel of the executor {_name_of(executor)} is limited, and tracing consumes it",
            Scope.PROGRAM,
        )
    elif type(executor) is not TemporaryExecutor:
        for key, value in sorted(vars(executor).items()):
            if key not in _TABLES:
                yield f"{name}.{key}", definitions.name(value)
    # Of the ad hoc executor only the lookasides outlive a trace: its operations have new names each time.
    with definitions.trusting() if own is not None else nullcontext():
        if type(executor) is not TemporaryExecutor:
            yield f"{name}.operations", definitions.name(executor.implmap)
        yield f"{name}.lookasides", definitions.name(executor._lookasides)


def is_shared(executor: Any) -> bool:
    """True if functions share an executor; False for the one that Thunder makes for each function."""
    from fusioncache.thunder_adapter.accelerator_api import TemporaryExecutor

    return type(executor) is not TemporaryExecutor


def write_transform(describer: Describer, transform: Any) -> str:
    """Returns what a transform says that it depends on.

    Raises:
        Declined: if it does not say, or one of Thunder's has an option that cannot be described.
    """
    cls = type(transform)
    name = f"{cls.__module__}.{cls.__qualname__}"
    own = ask_for_key(transform)
    if own is not None:
        return own
    if name not in _LEFT_OUT:
        advice = _INSTEAD.get(name, "add one that returns its settings")
        raise Declined(f"the transform {name} has no method cache_key(): {advice}", Scope.PROGRAM)
    # Thunder goes through the names of a tied parameter as a set of texts, whose order is another one in each process,
    # and looks parameters up by their names: so they are compared by name.
    kept = {key: _sort(value) for key, value in sorted(vars(transform).items()) if key not in _LEFT_OUT[name]}
    # Its class is in no module that the function map looks over.
    return f"{name} {describer.describe(kept)} {describer.describe(cls)}"


def ask_for_key(owner: Any) -> str | None:
    """Returns what a transform or an executor says that its programs depend on; None if it has no ``cache_key``.

    Raises:
        Declined: if it does not know either.
    """
    method = getattr(type(owner), "cache_key", None)
    if method is None:
        return None
    name = f"{type(owner).__module__}.{type(owner).__qualname__}"
    try:
        key = method(owner)
    except Exception as error:
        if is_declined(error, Scope.PROGRAM):
            raise
        raise Declined(f"cache_key() of {name} failed: {type(error).__name__}", Scope.PROGRAM) from error
    if not isinstance(key, str):
        raise Declined(f"cache_key() of {name} returned no text", Scope.PROGRAM)
    return " ".join(key.split())


def _write_name(name: Any) -> str:
    return "_".join(str(name).split())
